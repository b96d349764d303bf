"""The backend: where jobs and deployments run.

One Protocol, one contract test (``tests/contract/test_backend.py``), run by every implementation:
processes on one machine (:mod:`muster.backends.local`), later a Kubernetes cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from muster.core.deployment import DeploymentSpec, DeploymentStatus
from muster.core.job import JobSpec
from muster.core.status import JobEvent, JobStatus
from muster.volumes.base import Store

PATIENCE_SECONDS = 90.0  # with a cluster that is away: an API server that restarts, or moves, is back by then


class Backend(Protocol):
    """Where jobs and deployments run."""

    @property
    def store(self) -> Store:
        """The store that this backend's jobs read and write."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Which model servers a deployment may name here."""

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse at once what can never run here, and return warnings about what runs otherwise.

        :raises CannotSchedule: more memory than the machine has, GPUs that are required and missing …
        """

    def submit(self, job: JobSpec, *, job_id: str, owner: str | None = None) -> None:
        """Start every replica or none, now or when there is room.

        The same job_id twice is one job: a running one goes on, an ended one stays ended, and one
        whose supervisor was lost is picked up from its last checkpoint, or committed if it had sealed.

        :raises SpecError: it can never run here, or the job_id is taken by another spec.
        """

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now; never wait. :raises NotFound: no such job."""

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs at once for little more than the cost of one; leave out what cannot be found or read."""

    def watch(self, job_id: str, *, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended; its end is the last event.

        :param after: the cursor of the last event that was seen, to go on after a disconnect.
        """

    def cancel(self, job_id: str, *, owner: str | None = None, wait: bool = True) -> None:
        """End the job and leave no process. Idempotent; nothing happens for another owner's job.

        :param owner: who asks; None is an operator at the command line and always may.
        :param wait: whether to return only when nothing of it runs any more. Where not, the job's end
            is certain on return, and its ranks may still have their grace.
        """

    def sweep(self) -> tuple[str, ...]:
        """Take away what ended jobs left where they ran because nobody looked any more; return which jobs.

        Idempotent, and any number of us may do it at once.
        """

    def deploy(self, spec: DeploymentSpec, *, allow_older: bool = True) -> None:
        """Bring a revision up beside what serves; it takes over when it has answered the smoke test.

        Idempotent, and does not wait: :meth:`deployment` tells how far it is. What serves now
        answers until the new one does, and goes on if the new one is refused.

        :param allow_older: where it is False, nothing newer of the same volume may serve or be on its
            way to (:mod:`muster.backends.ordering`): looked at and decided in one step.
        :raises Conflict: a newer one does; the message says which.
        """

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now. :raises NotFound: no such deployment."""

    def deployments(self) -> list[str]:
        """Every deployment's name, sorted."""

    def retire(self, name: str) -> None:
        """Take a deployment away and leave no process; idempotent."""

    def close(self) -> None:
        """Give back what is held open to look at jobs; the backend is asked no more. Jobs go on."""
