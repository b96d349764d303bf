"""The backend: where jobs and deployments run.

One Protocol, and contract tests (``tests/contract``) that both implementations run: processes on one machine
(:mod:`muster.backends.local`) and a Kubernetes cluster (:mod:`muster.backends.kubernetes`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from muster.core.cancelling import UNKNOWN
from muster.core.deployment import (
    Answer,
    Counts,
    DeploymentSpec,
    DeploymentStatus,
    Release,
    Revision,
    RevisionState,
    SmokeRequest,
)
from muster.core.job import JobSpec, Origin
from muster.core.status import JobEvent, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.backends.releases.figures import Seen

PATIENCE_SECONDS = 90.0  # with a cluster that is away: an API server that restarts, or moves, is back by then


class Deployments(Protocol):
    """Names that answer predictions, the revisions behind each, and the one route that shares traffic out.

    These are the steps of which :mod:`muster.backends.releases` makes releases and rollbacks. All are
    idempotent, and none waits but :meth:`withdraw`, for what its revision was asked before. The route holds the shares, what is under way and the latest revisions that are
    over; there is no other state, so whoever is killed between two steps, the next one goes on.
    """

    @property
    def servers(self) -> tuple[str, ...]:
        """Which model servers a deployment may name here."""

    @property
    def only_whole(self) -> str:
        """Why traffic can only be moved as a whole here; empty where it can be shared."""

    def prepare(
        self,
        spec: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        """Begin a release: bring a revision up beside what serves, without traffic.

        A revision that such a spec runs as (:meth:`DeploymentSpec.runs_as`), or that was kept for a rollback, is
        taken as it is. A release under way is superseded: its champion has all traffic again before anything else happens.

        :param by: who asks, as :class:`muster.core.deployment.Release` keeps it and `origin`. The same one again goes on.
        :param allow_older: where it is False, nothing newer of the same volume may serve or be on its
            way to (:mod:`muster.backends.ordering`): looked at and decided in one step.
        :param token: of the status on which this was decided, where it was decided on one.
        :raises Behind: a newer one does; the message says which.
        :raises Conflict: somebody else has written the route since `token`, or writes it all the time.
        :raises SpecError: it can never run here; :raises NotFound: the version is gone.
        """

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now.

        :raises NotFound: no such deployment; :raises Corrupt: nobody can read what stands there.
        """

    def deployments(self) -> list[str]:
        """Every deployment's name, sorted."""

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route, and not counted as traffic.

        :raises NotFound: no such revision. One that does not answer is an :class:`Answer` with an error.
        """

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out, in one write of the route, and return the token of what it is then.

        :param shares: percent by revision, in sum 100; nothing at all where nothing has traffic yet. Those
            of it that serve nothing yet have to be ready. One with 0 gets none, and is kept for a rollback.
        :param token: of the status on which this was decided.
        :param release: what is under way from now on.
        :raises Conflict: somebody else has written the route since; nothing was changed.
        :raises DeploymentError: a revision is not ready, or traffic cannot be shared here.
        """

    def counts(self, name: str) -> Mapping[str, Counts]:
        """What each revision has answered, by its name: from the servers themselves, those that can be reached.

        One with traffic of which no server says so has no entry: nobody knows how that is.

        :raises BackendError: nothing can be said now.
        """

    def look_at(self, names: Collection[str] | None = None) -> list[Seen]:
        """Report every deployment, or those of them, by name, each with its counts; leave out what is not there.

        One whose state nobody can read is down, and says so.
        """

    def repair(self, name: str) -> tuple[str, ...]:
        """Bring a deployment back to how muster left it, as far as that can be done now; idempotent.

        :return: what was done, a line each; nothing where nothing was to be done, or something is still coming up.
        :raises NotFound: no such deployment.
        """

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away, when what it was asked before is answered.

        :param state: what it is remembered as, REFUSED or RETIRED, with the reason.
        :raises Conflict: it has a share of the traffic, or a release that goes forward names it.
        """

    def retire(self, name: str) -> None:
        """Take a deployment away with all its revisions, and leave nothing that runs."""


class Backend(Deployments, Protocol):
    """Where jobs and deployments run."""

    @property
    def store(self) -> LocalStore:
        """The store that this backend's jobs read and write."""

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse at once what can never run here, and return warnings about what runs otherwise.

        :raises CannotSchedule: more memory than the machine has, GPUs that are required and missing …
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

    def watch(self, job_id: str, *, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended; its end is the last event.

        :param after: the cursor of the last event that was seen, to go on after a disconnect.
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
        """Take away what ended jobs left where they ran because nobody looked any more; return which jobs.

        Idempotent, and any number of us may do it at once.
        """

    def close(self) -> None:
        """Give back what is held open to look at jobs; the backend is asked no more. Jobs go on."""
