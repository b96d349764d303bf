"""Commits every job whose replicas have all sealed, and records its end.

No client has to wait for it: GPUs are free as soon as the last replica has sealed, and Airflow may be away.
Once all replicas have sealed the job is going to be committed: nothing else can end it.
"""

from __future__ import annotations

import errno
import logging
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from muster.core.advice import uncommitted
from muster.core.errors import BadOutput, MusterError, NotFound, StoreError
from muster.core.progress import Told, heard
from muster.core.replica import Report
from muster.core.room import CLAIM, Room, is_full, make_room
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.text import one_line
from muster.core.verdict import Cause, Verdict
from muster.core.wire import loads
from muster.volumes.base import Staging
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import ONCE, Journals
from muster.volumes.service.refusals import Over
from muster.volumes.survived import bad_output, survived, with_survived

PATIENCE_SECONDS = 600.0
"""How long a commit is tried again on a full or failing disk."""
AT_ONCE = 4

_LOG = logging.getLogger(__name__)
_LOCKS = 64
_WITHOUT_SUCCESS = (JobState.FAILED, JobState.CANCELLED)
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


class Committer:
    """Commits in the background, several jobs at once."""

    def __init__(self, store: FolderStore, journals: Journals, hearing: Hearing) -> None:
        self._store, self._journals, self._hearing = store, journals, hearing
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._stopping = threading.Event()
        self._begun: set[str] = set()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="commit")

    @contextmanager
    def alone(self, job_id: str) -> Iterator[None]:
        """Hold the job's lock, for moments only: no other thread decides about the job."""
        with self._locks[hash(job_id) % _LOCKS]:
            yield

    def start(self) -> None:
        """Find jobs that were sealed and not committed when the service last ended, and commit them."""
        threading.Thread(target=self._pick_up, name="pick-up", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing new. Commits in progress may be interrupted: the next start resumes them."""
        self._stopping.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def decided(self, job_id: str) -> bool:
        """Whether all replicas of the current attempt have sealed, so the job is going to be committed."""
        staging = self._store.staging(job_id)
        if staging is None or not self.report(staging).is_file():
            return False
        return all(map(_is_regular, staging.seals(self._store.ledger.spec(job_id))))

    def report(self, staging: Staging) -> Path:
        """The file of rank 0's report until the commit."""
        first = self._store.ledger.spec(staging.job_id).roles[0].name
        return staging.sealed(first, 0).with_suffix(".report")

    def check_going_on(self, job_id: str) -> None:
        """Refuse a call that comes too late; call it within :meth:`alone`.

        :raises Over: the job has ended, or all its replicas have sealed.
        """
        state = self._store.ledger.status(job_id).state
        if state.ended:
            raise Over(f"job {job_id} has ended ({state.value}): nothing of it runs or seals any more")
        if self.decided(job_id):
            self.commit(job_id)
            raise Over(f"job {job_id} has sealed: it is committed, never run again")

    def update(self, status: JobStatus, *, owner: str | None = None) -> bool:
        """Record a client's status of a job, unless its end is decided; the first verdict stays.

        :return: False where `owner` is given and another one owns the job.
        """
        with self.alone(status.job_id):
            before = self._store.ledger.status(status.job_id)
            if (
                not status.state.ended
            ):  # a client may have read it before a restart in the gang's pods, which it does not see
                status = replace(status, restarts=max(before.restarts, status.restarts))
            if owner not in (None, before.owner):
                return False
            if before.verdict not in (None, status.verdict):
                return True
            committing = before.state is JobState.COMMITTING
            if not (committing or status.state.ended) or not self.decided(status.job_id):
                if not self._note(self._hearing.with_news(status), owner=owner):
                    return False
                ends = status.state in _WITHOUT_SUCCESS and not before.state.ended
                if ends and not self._stopping.is_set():
                    cause = None if status.verdict is None else status.verdict.cause
                    self._threads.submit(self._give_back, status.job_id, cause)
            return True

    def _note(self, status: JobStatus, *, owner: str | None) -> bool:
        """Record a status; on a full claim, delete a failed job's staged files to make room for it."""
        try:
            return self._store.ledger.update(status, owner=owner)
        except MusterError as error:
            if status.verdict is None or not is_full(error):
                raise
            self._give_back(status.job_id, status.verdict.cause)
            return self._store.ledger.update(status, owner=owner)

    def tell(self, job_id: str, once: str, line: str) -> None:
        """Write a line into a job's log, once.

        :param once: its name; another line of this name is not written.
        """
        self._journals.of(job_id).append(f"{ONCE}{once}", f"{line}\n".encode(), offset=0)

    def commit(self, job_id: str) -> None:
        """Begin the commit of a job whose replicas have all sealed, once; call it within :meth:`alone`."""
        status = self._store.ledger.status(job_id)
        if not status.state.ended and job_id not in self._begun:
            # its pods are done, and give back what they hold
            self._store.ledger.note_tally(job_id, self._store.ledger.tally(job_id).ended(time.time()))
            self._store.ledger.update(replace(status, state=JobState.COMMITTING, reason="", verdict=None))
            self._begun.add(job_id)
            self._threads.submit(self.bring_to_end, job_id)

    def _give_back(self, job_id: str, cause: Cause | None) -> None:
        """Delete the staged files of a job without success; gc deletes the rest."""
        try:
            self._store.ended.give_back(job_id, cause=cause)
        except (MusterError, OSError) as error:
            _LOG.warning("job %s has ended, and what it staged is still there: %s", job_id, error)

    def _pick_up(self) -> None:
        """Check every job, and retry those that could not be read."""
        unseen: list[str] | None = None
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            try:
                jobs = self._store.ledger.jobs() if unseen is None else unseen
                unseen = [job_id for job_id in jobs if not self._picked_up(job_id)]
            except OSError as error:
                _LOG.error("the jobs cannot be listed yet: %s", error)
            if unseen == [] or self._stopping.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _picked_up(self, job_id: str) -> bool:
        """Commit the job if it has sealed; return whether it could be read."""
        try:
            with self.alone(job_id):
                if not self._store.ledger.status(job_id).state.ended and self.decided(job_id):
                    self.commit(job_id)
        except (MusterError, OSError) as error:
            _LOG.error("job %s cannot be looked at: %s", job_id, error)
            return not _passes(error)
        return True

    def bring_to_end(self, job_id: str) -> None:
        """Commit and record a job whose replicas have sealed; tried again, with longer pauses, until it is recorded."""
        pause = SHORTEST_PAUSE_SECONDS
        try:
            ended = self._outcome(job_id)
            before = ""
            if isinstance(ended, JobResult):
                before = str(survived(self._store.ledger, job_id))
            elif ended is not None:
                ended = with_survived(ended, self._store.ledger, job_id)
            while ended is not None and not self._recorded(job_id, ended, before):
                if self._stopping.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except Exception:
            _LOG.exception("job %s has sealed and its end cannot be recorded", job_id)
        finally:
            self._begun.discard(job_id)

    def _outcome(self, job_id: str) -> JobResult | Verdict | None:
        """Commit, and retry where the disk fails; None where the service ends meanwhile."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, SHORTEST_PAUSE_SECONDS
        while True:
            try:
                return self._result(job_id)
            except MusterError as error:
                if not _passes(error) or time.monotonic() > deadline:
                    return self._verdict(job_id, error)
                _LOG.warning("job %s is not committed yet: %s", job_id, error)
                self._tell(job_id, str(error))
            except Exception as error:  # without an end, clients would wait for the job for ever
                _LOG.exception("job %s has sealed and cannot be committed", job_id)
                said = (
                    f"the store service failed at the commit ({type(error).__name__}): its log says at what"
                )
                return self._verdict(job_id, StoreError(said))
            if self._stopping.wait(pause):
                return None
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _tell(self, job_id: str, why: str) -> None:
        """Write into the job's status why its commit takes long."""
        with suppress(MusterError, OSError):  # a disk that takes no commit may take no status either
            status = self._store.ledger.status(job_id)
            self._store.ledger.update(replace(status, reason=one_line(f"is tried again: {why}")))

    def _verdict(self, job_id: str, error: MusterError) -> Verdict:
        if is_full(error):
            staging = self._store.staging(job_id)
            said = f"{one_line(str(error))[:240]}: {Room.of(self._store.layout.root, disk=CLAIM)}"
            advice = make_room(None if staging is None else staging.checkpoints)
            return Verdict(cause=Cause.DISK_FULL, message=said, advice=advice)
        if isinstance(error, BadOutput):
            return bad_output(error, self._store.ledger, job_id)
        cause = Cause.COMMIT_FAILED
        return Verdict(cause=cause, message=str(error), advice=uncommitted(cause, job_id))

    def _result(self, job_id: str) -> JobResult:
        with translated(f"commit job {job_id}"):
            staging = self._store.staging(job_id)
            if staging is None:
                raise NotFound(f"job {job_id}: no attempt of it was ever started")
            report = loads(Report, self.report(staging).read_bytes())
            made = self._store.commit(
                job_id, attempt=staging.attempt, metrics=report.metrics, modules=report.modules
            )
        return JobResult(
            outputs={name: tuple(version.address for version in versions) for name, versions in made.items()},
            metrics=report.metrics,
            modules=report.modules,
            links=self._told(job_id).links,
        )

    def _told(self, job_id: str) -> Told:
        """Return progress and links in the job's log; empty if it cannot be read: the versions are there."""
        told = Told()
        try:
            lines, cursor = self._store.ledger.read(job_id)
            while lines:
                told = told.then(heard(lines))
                lines, cursor = self._store.ledger.read(job_id, after=cursor)
        except OSError as error:
            _LOG.warning(
                "the log of job %s cannot be read, links that it told are left out: %s", job_id, error
            )
        return told

    def _recorded(self, job_id: str, ended: JobResult | Verdict, before: str) -> bool:
        try:
            self._record(job_id, ended, before)
        except (MusterError, OSError) as error:
            if not _passes(error):
                raise
            _LOG.warning("the end of job %s is not recorded yet: %s", job_id, error)
            return False
        return True

    def _record(self, job_id: str, ended: JobResult | Verdict, before: str) -> None:
        status = self._hearing.with_news(self._store.ledger.status(job_id))
        status = replace(status, ended=time.time(), reason="")
        if isinstance(ended, JobResult):
            self._journals.of(job_id).tell_left_out()
            status = replace(status, state=JobState.SUCCEEDED, reason=before, result=ended)
        else:
            self._give_back(job_id, ended.cause)  # first: recording its end needs room, too
            ended = ended.going_on(self._store.ledger.spec(job_id).origin.again)
            last_words = (ended.render(job_id=job_id) + "\n").encode()
            self._journals.of(job_id).append("muster/verdict", last_words, offset=0)
            status = replace(status, state=JobState.FAILED, verdict=ended)
        self._store.ledger.update(status)
        self._store.release(job_id)


def _is_regular(path: Path) -> bool:
    """Whether a regular file is there; opened by name, since listings may be late, and not waiting for a pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _passes(error: MusterError | OSError) -> bool:
    """Whether a retry may succeed: the disk was full or failing."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
