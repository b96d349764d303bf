"""What tells one place where jobs run from another; the rest of a job's life is :class:`~muster.backends.base.Backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from muster.backends.tracking import Tracking
from muster.core.job import JobSpec
from muster.core.status import JobStatus
from muster.core.verdict import Verdict

Look = Callable[[JobStatus], JobStatus]


class Runner(Protocol):
    """Starts, shows and stops the jobs that the ledger holds. It may be shared between threads.

    :ivar pauses_seconds: between two looks of a watch, the shortest and the longest.
    :ivar part_bytes: of a log, read at a time.
    :ivar margin_seconds: how long a stopped job may take over and above the grace of its ranks.
    """

    pauses_seconds: tuple[float, float]
    part_bytes: int
    margin_seconds: float

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run here, and return warnings about what runs otherwise; nothing is made.

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

    def start(self, job: JobSpec, status: JobStatus) -> None:
        """Start a job that is entered and has not ended, now or when there is room; idempotent.

        What of it runs goes on. One that was lost goes on from its checkpoint, or is committed if it has sealed.

        :param status: what is recorded of it.
        """

    def look(self, *, many: bool) -> Look:
        """Return a function that adds to a recorded status what is seen of the job, and brings it to its end if due.

        What is the same for all jobs is looked up here, once. An ended job's status is returned as it is.

        :param many: whether it is worth while to look at all jobs at once.
        """

    def stop(self, job: JobSpec, status: JobStatus, why: Verdict, *, owner: str | None) -> bool:
        """Decide that a job ends with `why`, unless its end is decided, and begin to end it, without waiting.

        Once it is decided, the job ends, also where this process is killed.

        :param owner: decide it only while this one owns the job, compared and written in one step; None: always.
        :return: False where another one owns it, and nothing was done.
        """

    def end(self, job: JobSpec, job_id: str, *, late: bool) -> str:
        """Do what can be done now of the end of a job that was stopped; idempotent, and does not wait.

        :param late: it has had its time: use force, or give up.
        :return: what is still waited for; empty once nothing of it runs and its end is recorded.
        :raises BackendError: it is late, and force does not help.
        """

    def clear(self, job: JobSpec, job_id: str) -> bool:
        """Take away what an ended job left where it ran; whether there was anything."""

    def left(self) -> Iterable[str]:
        """Return the jobs, ended or not, of which something is there."""

    def close(self) -> None:
        """Give back what is held open to look at jobs; jobs go on."""
