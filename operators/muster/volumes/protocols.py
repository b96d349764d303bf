"""The calls of a store, in seven parts. Each store has all, and passes ``tests/contract/test_store.py``.

==============  ==============================================================================
Versions        committed data, its origin, and which of it is kept or hidden
Snapshots       code, and the locks of images, by digest
Makings         what was made from what, so that nothing is made twice
Attempts        the staged files of jobs: sealed, committed, or fetched after a failure
EventLogs       what extensions note down, event by event
Ledger          jobs: spec, status, owner, log, series
Upkeep          checks, disk space and garbage collection
==============  ==============================================================================

None of these returns a path: an object store has none. Two more protocols are for some stores only:
:class:`LocalStore` gives folders that its caller can open, and :class:`ServedStore` is reached by pods.

The store service answers these calls by their signatures (:mod:`muster.volumes.service.calls`): a new
argument needs a default, so that earlier clients are understood.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from muster.core.job import JobSpec
from muster.core.origin import Origin
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.core.series import Series
from muster.core.status import JobStatus
from muster.core.tally import Tally
from muster.volumes.base import (
    Collected,
    CollectionPlan,
    Held,
    LogPage,
    LogTime,
    Made,
    Record,
    RunNote,
    Saved,
    Staging,
    TaskEnd,
    UpkeepNote,
    Version,
)
from muster.volumes.listing import Listing

if TYPE_CHECKING:
    from muster.volumes.fsck import Progress, Report


class VersionStore(Protocol):
    """Immutable directories by volume and number."""

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return the version that an address names now, or all versions of a selector of many.

        Retired versions are found by number and digest only. Several versions are sorted by partition.

        :raises NotFound: there is none; the message says what there is.
        """

    def volumes(self) -> list[str]:
        """Return every volume's name, sorted."""

    def versions(self, volume: str) -> list[Version]:
        """Return every readable version of a volume, oldest first."""

    def newest(
        self, volume: str, *, limit: int, before: int | None = None, partition: str | None = None
    ) -> list[Version]:
        """The newest `limit` versions of a volume (those below number `before`), newest first.

        Its cost does not grow with the volume, so a page of ten thousand versions is fast.

        :param partition: of this one alone. None: of all, and of those without one.
        """

    def last(self, volume: str, partition: str | None = None) -> int:
        """Return the highest number of a volume's partition (None: of what has none), 0 where there is none.

        Retired, damaged and deleted versions count: it is what an output may say that it comes after.
        """

    def count(self, volume: str) -> int:
        """Return the number of readable versions of a volume; 0 where there is no such volume."""

    def record(self, address: str) -> Record:
        """Return one version's record; also after gc deleted its data."""

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in their order, at little more than the cost of one."""

    def manifest(self, address: str) -> Listing:
        """Return every file of one version by its path, in the order of the paths, with hash and size; also after gc.

        What is not asked for is not read, so one file of a million costs little.

        :raises Corrupt: it is damaged, here or when the damaged part is asked for.
        """

    def add(
        self,
        volume: str,
        source: Path,
        *,
        partition: str | None = None,
        note: str = "",
        request: str | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> Version:
        """Copy a folder or file into a new version, for ``muster volumes put``.

        :param request: 16 hex digits; a second call with the same ones returns the same version. None: each makes one.
        :param checkpoints: at most :data:`~muster.volumes.base.MOST_CHECKPOINTS` folders of the version, each with the ended job of
            which it gets the checkpoints, or those of a job that it follows. The store copies them, sharing blocks where it can; they stay
            with the job. Links are left out, and a job without checkpoints is.
        :raises SpecError: a job has not ended. :raises NotFound: no such job.
        """

    def copy(
        self, address: str, volume: str, *, request: str, partition: str | None = None, note: str = ""
    ) -> Version:
        """Make a version with the files of another; the record names the same task, inputs, params and metrics.

        :param request: 16 hex digits; a second call with the same ones returns the same version.
        :raises NotFound: there is no such version, or gc deleted it.
        """

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason, such as ``deployment/flights``; idempotent."""

    def unpin(self, address: str, *, reason: str) -> Version:
        """Remove one reason."""

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` (a job_id) reads them."""

    def release(self, holder: str) -> None:
        """Release all leases of `holder`."""

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector; by number and digest it stays readable until gc."""

    def reinstate(self, address: str) -> Version:
        """Let selectors find a retired version again; idempotent."""


class Snapshots(Protocol):
    """Code, and the locks of images, each kept once under its digest."""

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        """Keep `files` (paths below `root`) as a code snapshot; the same bytes once. Return its digest.

        :param texts: files to write with this text, by path, in place of files below `root`.
        """

    def holds(self, digest: str) -> bool:
        """Whether a code snapshot, or an image's lock, is in the store."""


class Makings(Protocol):
    """What was made from what. A key is a digest that :mod:`muster.core.comparison` makes of a job."""

    def made(self, key: str = "", *, limit: int = 20) -> list[Made]:
        """Return what the jobs of a key made, newest first, where all that a job made is live.

        Live is what is committed and neither retired, damaged nor deleted. No manifest is read.

        :param key: empty for the jobs of all keys. :param limit: the most to return.
        """

    def use(self, job_id: str, *, by: Origin) -> None:
        """Note that a task of a later run takes what a job made: for gc it is as old as its last use, and so the task ends.

        :raises NotFound: some of it is not live any more.
        """

    def used(self, address: str) -> float:
        """Return when a run last used a version again that was made before, in seconds since the epoch; 0.0: none did."""

    def forget(self, job_id: str) -> bool:
        """Have what a job made never be used again; its versions stay. Return whether it was known."""

    def claim(self, key: str, *, job_id: str, expected: str | None = None) -> str:
        """Take the making of a key for a job if no job has it, or `expected` has; compared and set in one step.

        :return: the job that has it now.
        """


class Attempts(Protocol):
    """The staged files of jobs."""

    def saved(self, job_id: str) -> Saved | None:
        """Return the checkpoints of a job, or of a job that it follows; None where there are none.

        A job that succeeded has none. :raises NotFound: no such job.
        """

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make the sealed files of all replicas into versions: every output or none, once per job_id.

        A second call for the same job_id returns the same versions, also after a crash at any point.

        :raises Conflict: `attempt` is not the current one, or not all replicas have sealed.
        :raises StoreError: the disk is full, two replicas wrote the same file, …; nothing becomes visible.
        """

    def held(self) -> tuple[Held, ...]:
        """Return the disk space that ended jobs still use, oldest first."""

    def let_go(self, job_ids: Collection[str]) -> int:
        """Delete all staged files of these ended jobs; return their size in bytes.

        :raises SpecError: a job has not ended.
        """

    def salvage(self, job_id: str, target: Path) -> int:
        """Copy an ended job's uncommitted outputs to ``TARGET/REPLICA/OUTPUT/``; return the number of files.

        :param target: a folder that is not there yet, or is empty.
        :raises NotFound: there are none.
        """

    def follow(self, job_id: str, target: Path, *, begins: str) -> int:
        """Copy the files that a job has written so far to ``TARGET/REPLICA/OUTPUT/``; return their number.

        Called again it adds what has come since: it is for files that only grow, such as TensorBoard's events.
        On NFS a file that was just made may come with a later call.
        A file that a rank is writing may end in the middle of a record. What an ended job wrote is not there.

        :param begins: only files whose names begin with this.
        :raises NotFound: no such job.
        """


class EventLogs(Protocol):
    """Logs that extensions keep, by kind and name: what each is about, and what has happened, as JSON objects.

    A kind is a noun in the plural, such as searches. gc deletes a log in which nothing has happened for as long as ended
    jobs are kept, with the leases of the holder of that name.
    """

    def begin_log(self, kind: str, name: str, head: str) -> bool:
        """Begin a log; False where it is there already, with whatever head.

        :param head: a document that says what the log is about; it never changes.
        """

    def log_head(self, kind: str, name: str) -> str:
        """Return the head of a log. :raises NotFound: no such log."""

    def logs(self, kind: str) -> list[str]:
        """Return the names of all logs of a kind, newest first."""

    def log_events(self, kind: str, name: str, *, after: int = 0) -> LogPage:
        """Return the next events; none where there are no more.

        :param after: where the page before ended; 0 for the first.
        """

    def append_events(self, kind: str, name: str, events: Sequence[Mapping[str, Any]], *, after: int) -> int:
        """Add events, all or none, and return where they end; they are on the disk then.

        :param after: where all events that the caller knows end.
        :raises Conflict: there are more, such as another process's, or the caller's own whose answer was lost.
        :raises SpecError: an event is longer than 4 MiB, and no reader would get past it.
        """


class Ledger(Protocol):
    """Per job_id: spec, owner, status, log, series. The backend writes it, every part of muster reads it."""

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None, kept: str = "") -> bool:
        """Enter a job, whole or not at all; False where it is there already with the same spec.

        :param kept: why it may not start yet: it is entered as queued for that reason, without a process that works on it.
        :raises Conflict: the job_id is there with another spec.
        """

    def spec(self, job_id: str) -> JobSpec:
        """Return a job's spec. :raises NotFound: no such job."""

    def status(self, job_id: str) -> JobStatus:
        """Return the status that was recorded last. :raises NotFound: no such job."""

    def update(self, status: JobStatus, *, owner: str | None = None) -> bool:
        """Record a status, whole or not at all. An ended job's status is never changed again.

        The owner is not taken from `status`: only :meth:`own` sets it.

        :param owner: record it only if this one owns the job, compared and written in one step; None: always.
        :return: False where another one owns the job, and nothing was recorded.
        """

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now; return whether it was."""

    def tally(self, job_id: str) -> Tally:
        """Return for whom a job runs, and when it held its resources; empty where nothing was noted."""

    def note_tally(self, job_id: str, tally: Tally) -> None:
        """Add to a job's tally what a writer knows (:meth:`muster.core.tally.Tally.merged`). After the job's end only the end of its last time is made later.

        The time that goes on ends with the job.
        """

    def append(self, job_id: str, data: bytes) -> None:
        """Add whole lines to the job's log, and the numbers in them to its series (:mod:`muster.core.series`)."""

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines of the log from offset `after`, and the offset after them."""

    def log_bytes(self, job_id: str) -> int:
        """Return the length of the job's log now; 0 before its first line."""

    def log_times(self, job_id: str, *, after: int = 0, before: int | None = None) -> list[LogTime]:
        """Return when the lines of a log were stored, to about a second, in the order of the log.

        The first may lie before `after`, where the line there was stored with those before it. Lines without a time
        were stored by an earlier release.

        :param after: an offset in the log. `before`: another; None: up to the log's end.
        :raises NotFound: no such job.
        """

    def series(self, job_id: str) -> Series:
        """Return what the lines of a job's log, and its workers, told over time: small, and read without the log.

        Those of a job whose versions have their data are there, also when its ledger entry is deleted.

        :raises NotFound: no such job.
        """

    def jobs(self) -> list[str]:
        """Return every job_id, oldest first."""

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return the statuses of many jobs, at little more than the cost of one.

        Jobs that cannot be found or read are left out.
        """

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Return the specs of many jobs, as :meth:`statuses` does."""

    def origins(self, *, dag_id: str = "", run_id: str = "") -> dict[str, Origin]:
        """Return the task of every job that a Dag submitted, by job_id, oldest first; unreadable jobs are left out.

        :param dag_id: only jobs of this Dag. `run_id`: only jobs of runs with this id.
        """

    def end_task(self, end: TaskEnd) -> None:
        """Record the end of a task that no job records."""

    def task_ends(self, *, dag_id: str = "", run_id: str = "", runs: int = 20) -> list[TaskEnd]:
        """Return the ends of tasks that no job records, newest first. The store keeps the newest 2,000.

        :param dag_id: only tasks of this Dag. :param run_id: only tasks of this run.
        :param runs: the number of runs, the newest, whose tasks are returned.
        """

    def note_run(self, run: Origin, *, going: bool) -> None:
        """Note that a run goes on, once a minute, or that it has ended. :param run: an origin without a task."""

    def run_notes(self) -> list[RunNote]:
        """Return the runs that were noted and have not ended, the newest 1,000."""


class Upkeep(Protocol):
    """Checks of the store, and garbage collection."""

    def check(self, *, deep: bool = False, protect: bool = False, progress: Progress | None = None) -> Report:
        """Check every committed version, on the store's side; see :func:`muster.volumes.fsck.check`."""

    def plan(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        keep_partitions: int | None = None,
        partition_days: float | None = None,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> CollectionPlan:
        """Return what :meth:`collect` would delete now; see :class:`muster.volumes.retention.RetentionRules`.

        :raises Corrupt: the store is damaged, so gc deletes nothing.
        """

    def collect(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        keep_partitions: int | None = None,
        partition_days: float | None = None,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
        now: bool = False,
    ) -> Collected:
        """Delete what :meth:`plan` names; by the same rules.

        :param now: free the disk space at once, also of what was deleted before; a job that still reads it fails.
        """

    def room(self) -> Room:
        """Return the free space of the store's disk."""

    def upkept(self) -> list[UpkeepNote]:
        """Return when fsck, gc and a sweep last ended well, at most one note of each kind."""

    def note_sweep(self) -> None:
        """Note that jobs without a task were just looked for, and ended; fsck and gc are noted by themselves."""


class Store(VersionStore, Snapshots, Makings, Attempts, EventLogs, Upkeep, Protocol):
    """A whole store; its ledger is an attribute."""

    @property
    def ledger(self) -> Ledger:
        """The job ledger of this store."""

    def close(self) -> None:
        """Close open connections; the store must not be used after this."""


class LocalStore(Store, Protocol):
    """A store that gives its caller folders on the caller's own machine.

    A folder store gives its own folders, the client of a service those that it has fetched.
    """

    def path(self, address: str) -> Path:
        """Return the folder of one version's data (or the file that the address names in it)."""

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, unpacked and read-only."""

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt of a job in the ledger: an empty staging of its own, with checkpoints.

        The checkpoints are those of the attempt before; for a job's first attempt, those of the job that it
        follows. They are a copy, unless no process of that attempt is left (:meth:`note_gone`): then they are
        moved. Every earlier attempt is fenced: it can no longer be committed, nor write what this one reads.

        The client of a service returns the folder's path in the service: of use where the claim is mounted.
        """

    def note_gone(self, job_id: str, *, attempt: int) -> None:
        """Note that no process of an attempt is left, so that its checkpoints need not be copied for the next.

        Of an attempt that is not the current one it changes nothing.
        """

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""


class ServedStore(LocalStore, Protocol):
    """A store that the pods of a job reach over HTTP, each with a token of its job."""

    @property
    def url(self) -> str:
        """The service's address."""

    def attempt(self, job_id: str) -> tuple[int, bool]:
        """Return the current attempt, 0 before the first, and whether a pod has asked for it."""

    def size(self, job_id: str) -> int | None:
        """Return how many replicas the current attempt of an elastic gang has; None before the first, and of others."""

    def stop(self, job_id: str, *, attempt: int) -> bool:
        """Have the pods of an attempt stop their ranks, in 3 s; whether no process of it is left.

        To be called until then. The pods stay until they are deleted; if no attempt begins, and this is called no more,
        the gang soon goes on in them as it was.
        """

    def begin(self, job_id: str, *, after: int, replicas: int | None = None) -> int:
        """Begin the attempt that follows `after`, which is over, and return it; calling it twice begins one.

        :param replicas: of an elastic gang; without it, those of the attempt before.
        :raises Conflict: another was begun since, or the job has sealed or ended.
        """

    def equip(self, job_id: str, *, worker: bytes) -> None:
        """Store the worker's zipapp for a job: its pods get it with their bundle."""

    def token(self, job_id: str, *, attempt: int, lifetime_seconds: float) -> str:
        """Return a token for the pods of one attempt, the current one."""
