"""The backend: where jobs and deployments run.

One Protocol, and contract tests (``tests/contract``) that both implementations run: processes on one machine
(:mod:`muster.backends.local`) and a Kubernetes cluster (:mod:`muster.backends.kubernetes`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from muster.core.cancelling import UNKNOWN
from muster.core.job import JobSpec
from muster.core.status import JobEvent, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.backends.tracking import Tracking

PATIENCE_SECONDS = 90.0  # with a cluster that is away: an API server that restarts, or moves, is back by then


class Backend(Protocol):
    """Where jobs and deployments run."""

    @property
    def store(self) -> LocalStore:
        """The store that this backend's jobs read and write."""

    @property
    def deployments(self) -> Deployments:
        """The deployments here, of which :mod:`muster.backends.releases` makes releases and rollbacks."""

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse at once what can never run here, and return warnings about what runs otherwise.

        :raises CannotSchedule: more memory than the machine has, GPUs that are required and missing …
        """

    def side_by_side(self, job: JobSpec) -> int | None:
        """Return how many such jobs should run at once, if nothing else does; None where a queue sees to that."""

    def tracking(self, job: JobSpec) -> Tracking:
        """Return how such a job's ranks reach MLflow, as far as this process is told it.

        :raises SpecError: this process lacks one of the job's secrets.
        """

    def build(self, image: str, lock: Path, digest: str, say: Callable[[str], None]) -> None:
        """Have an image ready before a job asks for it, where images are built here; else do nothing.

        :param say: takes each line that tells how far it is.
        :raises ImageError: it cannot be built.
        """

    def submit(self, job: JobSpec, *, job_id: str, owner: str | None = None) -> tuple[str, ...]:
        """Start every replica or none, now or when there is room.

        The same job_id twice is one job: a running one goes on, an ended one stays ended, and one
        whose supervisor was lost is picked up from its last checkpoint, or committed if it had sealed.

        :return: what :meth:`check` warned of, where this call entered the job; its log begins with that.
        :raises SpecError: it can never run here, or the job_id is taken by another spec.
        """

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now; never wait. :raises NotFound: no such job."""

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs at once for little more than the cost of one; leave out what cannot be found or read."""

    def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended; its end is the last event.

        :param after: the offset of the last event that was seen, to go on after a disconnect.
        """

    def cancel(
        self, job_id: str, *, owner: str | None = None, wait: bool = True, why: Verdict = UNKNOWN
    ) -> None:
        """End the job and leave no process. Idempotent; nothing happens for another owner's job.

        :param owner: who asks; None is an operator at the command line and always may.
        :param wait: whether to return only when nothing of it runs any more. Where not, the job's end
            is certain on return, and its ranks may still have their grace.
        """

    def sweep(self) -> tuple[str, ...]:
        """Delete what jobs that ended unwatched left where they ran; return the ids of those jobs.

        Idempotent, and any number of us may do it at once.
        """

    def close(self) -> None:
        """Give back what is held open to look at jobs; the backend is asked no more. Jobs go on."""
