"""Compares what muster's jobs do with how their tasks stand, every few seconds, in the triggerer's own process.

A task that is marked, cleared or deleted calls no hook of ours where it is just being handed over from its
process to the triggerer, where its process was killed, or while the triggerer is away. So this does not wait
for a hook. It runs beside the triggerer's main loop, which has Airflow's database, and not among the triggers:
there it would run only while there are some, and each question would keep them waiting.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress

from muster.airflow.attempts.database import Standing, going_runs, standings
from muster.airflow.attempts.log import FailureLog
from muster.airflow.attempts.orphans import SweptJob, end, named, take_back, unowned
from muster.airflow.attempts.task_state import GIVEN_UP, GONE, over
from muster.backends.base import Backend
from muster.core.cancelling import WITH_RUN, with_task
from muster.core.errors import Corrupt, MusterError, NotFound
from muster.core.extensions import used as used_parts
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.protocols import Ledger
from muster.volumes.task_notes import EVERY_SECONDS

Ask = Callable[[Sequence[tuple[JobStatus, Origin]]], Mapping[str, Standing]]

log = logging.getLogger(__name__)

# A job is ended at most ten seconds after its task, so no rest is longer, however long the look before it took.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 4.0, 8.0
_IDLE_SHARE = 20.0  # what a look takes, it rests so many times
RELEASES_EVERY_SECONDS = 60.0  # one has its driver for its first minute in any case
_NOTE_EVERY_SECONDS = 60.0  # an alert is sent after many minutes without a note
LEFTOVERS_EVERY_SECONDS = 600.0  # they hold nothing that runs
# A version that stands longer is relied on by now, whatever became of its task.
_RETIRED_WITHIN_SECONDS = 86400.0


class Reconciler:
    """The looks of one process.

    :param open_backend: opens a backend; another one after a look that failed, since a token may have been renewed.
    :param instance: the Airflow's name; jobs of others are none of its business.
    :param ask: how the tasks of jobs stand.
    :param going: Dag and id of each run that goes on and has begun something of muster's.
    :param used: whether there is anything to compare: to open a backend of one machine makes its store.
    """

    def __init__(
        self,
        open_backend: Callable[[], Backend],
        instance: Callable[[], str],
        ask: Ask = standings,
        going: Callable[[], Set[tuple[str, str]]] = going_runs,
        *,
        used: Callable[[], bool] = lambda: True,
    ) -> None:
        self._open = open_backend
        self._used = used
        self._instance = instance
        self._ask = ask
        self._going = going
        self._noted: dict[Origin, float] | None = None  # runs, and when each was noted
        self._busy: set[tuple[str, str]] = set()  # Dag and id of the runs that have a job which goes on
        self._backend: Backend | None = None
        self._origins: dict[str, Origin] = {}  # they never change, so that each is read once
        self._judged: set[str] = set()  # jobs that have ended, and were looked at since
        self._asked: dict[str, Verdict] = {}
        self._told: set[str] = set()  # jobs in whose logs it stands that Airflow has no such Dag any more
        self._releases_at = time.monotonic() + RELEASES_EVERY_SECONDS
        self._leftovers_at = time.monotonic() + LEFTOVERS_EVERY_SECONDS
        self._note_at = time.monotonic()
        self._failures = FailureLog(
            log,
            cannot="muster cannot compare its jobs with Airflow's tasks now, and tries again",
            again="muster compares its jobs with Airflow's tasks again",
        )
        self._unnoted = FailureLog(
            log,
            cannot="jobs were compared with their tasks, and the store takes no note of that, which metrics show",
            again="the store notes again when jobs were compared with their tasks",
        )

    def run(self, stop: threading.Event) -> None:
        """Look, and rest, until `stop` is set."""
        rest = 0.0
        while not stop.wait(rest):
            began = time.monotonic()
            self.try_look()
            wanted = (time.monotonic() - began) * _IDLE_SHARE
            rest = min(max(PAUSE_SECONDS, wanted), LONGEST_PAUSE_SECONDS)

    def try_look(self) -> None:
        """Take one look; whatever fails is said now and then, and tried again."""
        failed = False
        for step in (self.look, self._note_runs, self._now_and_then):
            try:
                if not self._used():
                    return
                step()
            except Exception as error:
                # A store or a database that is away, or a defect: all jobs of this Airflow depend on the next look.
                failed = True
                self._close()
                self._failures.failed(error)
        if not failed:
            self._failures.over()
            self._note()

    def look(self) -> list[SweptJob]:
        """End the jobs whose tasks do not wait for them, and retire what one of them committed; return which."""
        backend, mine = self._opened(), self._instance()
        jobs = self._unjudged(backend.store.ledger)
        ours = [each for each in jobs if _is_of(each[1], mine)]
        going = [each for each in ours if not each[0].state.ended]
        self._busy = {(origin.dag_id, origin.run_id) for _, origin in going}
        made = [each for each in ours if _is_new(each[0])]
        stands = self._ask([*going, *made]) if going or made else {}
        done = [swept for status, swept in ends(going, stands) if self._end(backend, status, swept)]
        self._tell_stale(backend.store.ledger, [job for job in going if stands[job[0].job_id].stale])
        problems = {
            status.job_id: problem
            for status, origin in made
            if (problem := self._try_to_retire(backend, status, origin, stands[status.job_id]))
        }
        over_now = {status.job_id for status, _ in jobs if status.state.ended} - problems.keys()
        self._judged |= over_now
        self._asked = {job_id: why for job_id, why in self._asked.items() if job_id not in over_now}
        if done:  # on a cluster a backend that has ended a job follows it from then on
            self._close()
        for problem in problems.values():
            raise problem
        return done

    def _unjudged(self, ledger: Ledger) -> list[tuple[JobStatus, Origin]]:
        """The jobs that go on, or have ended since the last look, each with its task: as the ledger has them."""
        there = ledger.jobs()
        self._judged.intersection_update(there)
        found = []
        for status in ledger.statuses([each for each in there if each not in self._judged]):
            with suppress(NotFound, Corrupt):  # gc took it meanwhile; what cannot be read is for fsck to tell
                if status.job_id not in self._origins:
                    self._origins[status.job_id] = ledger.spec(status.job_id).origin
                found.append((status, self._origins[status.job_id]))
        self._origins = {status.job_id: origin for status, origin in found}
        return found

    def _end(self, backend: Backend, status: JobStatus, swept: SweptJob) -> bool:
        # Anew: it may have succeeded since, and its task with it, before Airflow was asked.
        if backend.store.ledger.status(status.job_id).state.ended or not end(backend, status, swept):
            return False
        if status.job_id not in self._asked:
            log.info("job %s is ended: %s (%s)", swept.job_id, swept.why.message, swept.task)
        self._asked[status.job_id] = swept.why
        return True

    def _tell_stale(self, ledger: Ledger, jobs: Sequence[tuple[JobStatus, Origin]]) -> None:
        """Tell a job's reader that nothing waits for it: it goes on, since its Dag may come back, and its task then takes it."""
        for status, origin in jobs:
            if status.job_id not in self._told:
                line = (
                    f"this Airflow has no Dag {origin.dag_id} any more: it was renamed, or its file was deleted. This job goes "
                    f"on and commits; Airflow goes on with run {origin.run_id} once it has the Dag under this name again. To "
                    f"end the job: muster jobs cancel {status.job_id}"
                )
                ledger.append(status.job_id, f"[muster] {line}\n".encode())
                log.warning("job %s: %s", status.job_id, line)
        self._told = {status.job_id for status, _ in jobs}

    def _try_to_retire(
        self, backend: Backend, status: JobStatus, origin: Origin, stands: Standing
    ) -> MusterError | None:
        """Return why that cannot be done now: what others committed is judged all the same."""
        try:
            self._retire(backend, status, origin, stands)
        except MusterError as error:
            return error
        return None

    def _retire(self, backend: Backend, status: JobStatus, origin: Origin, stands: Standing) -> None:
        """Hide what a job committed whose end was asked for, or whose try had ended by then."""
        why = self._asked.get(status.job_id) or late(status, stands)
        if why is None or status.result is None:
            return
        reason = f"committed by job {status.job_id} too late: {why.message}"
        for address in status.addresses:
            with suppress(NotFound):  # deleted since: nothing finds it
                backend.store.retire(address, reason=reason)
                log.warning("%s is retired: %s (%s)", address, reason, named(origin))

    def _now_and_then(self) -> None:
        """Take back the releases that no task watches, have extensions look, and take away what ended jobs left where they ran."""
        if (now := time.monotonic()) > self._releases_at:
            self._releases_at = now + RELEASES_EVERY_SECONDS
            for looks in used_parts(lambda each: each.reconciled):
                looks(self._opened().store)
            for one in take_back(self._opened().deployments, self._instance(), self._state):
                log.info("%s of %s is taken back: %s (%s)", one.revision, one.deployment, one.reason, one.by)
        if now > self._leftovers_at:
            self._leftovers_at = now + LEFTOVERS_EVERY_SECONDS
            for job_id in self._opened().sweep():
                log.info("job %s has ended: what it left is taken away", job_id)

    def _note_runs(self) -> None:
        """Note the runs that go on, each once a minute, and those that have ended, also while no triggerer was there.

        A job that goes on tells as much of its run: hundreds may wait in a queue, and each note is a call.
        """
        ledger, mine, now = self._opened().store.ledger, self._instance(), time.monotonic()
        if self._noted is None:
            left = (note.run for note in ledger.run_notes())
            self._noted = {run: -math.inf for run in left if run.instance == mine and not run.by_muster_run}
        going = {Origin(instance=mine, dag_id=dag, run_id=run) for dag, run in self._going()}
        for run in going:
            busy = (run.dag_id, run.run_id) in self._busy
            if not busy and now >= self._noted.get(run, -math.inf) + EVERY_SECONDS:
                ledger.note_run(run, going=True)
                self._noted[run] = now
        for run in self._noted.keys() - going:
            ledger.note_run(run, going=False)
            del self._noted[run]

    def _note(self) -> None:
        """Note in the store, once a minute, that jobs were compared; a service of an earlier release takes no note."""
        if (now := time.monotonic()) <= self._note_at:
            return
        self._note_at = now + _NOTE_EVERY_SECONDS
        try:
            self._opened().store.note_sweep()
        except MusterError as error:
            self._unnoted.failed(error)
        else:
            self._unnoted.over()

    def _state(self, origin: Origin) -> str | None:
        """How a task instance stands that has no job."""
        none = JobStatus(job_id="none", state=JobState.RUNNING, submitted=0.0)
        return self._ask([(none, origin)])[none.job_id].state

    def _opened(self) -> Backend:
        self._backend = self._backend or self._open()
        return self._backend

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def _is_of(origin: Origin, instance: str) -> bool:
    """Whether a task of this Airflow asked; `muster run` has a database of its own, and ends its jobs itself."""
    return origin.instance == instance and bool(origin.run_id) and not origin.by_muster_run


def _is_new(status: JobStatus) -> bool:
    recent = (status.ended or 0.0) > time.time() - _RETIRED_WITHIN_SECONDS
    return status.state is JobState.SUCCEEDED and recent


def ends(
    going: Sequence[tuple[JobStatus, Origin]], stands: Mapping[str, Standing]
) -> list[tuple[JobStatus, SweptJob]]:
    """Choose the jobs to end among those that go on."""
    found = {
        status.job_id: (status, SweptJob(job_id=status.job_id, task=named(origin), why=why))
        for status, origin in going
        if (why := unwanted(stands[status.job_id])) is not None
    }
    found |= {
        status.job_id: (status, swept)
        # those whose task has begun another
        for status, swept in unowned(going, lambda _: None, now=time.time())
        if status.job_id not in found
    }
    return list(found.values())


def unwanted(stands: Standing) -> Verdict | None:
    """Why a job that goes on has to end; None where its task, or the task's next try, waits for it."""
    if stands.cleared:
        return with_task(None)
    if stands.state == "restarting":
        return with_task(stands.state)
    if not over(stands.state):
        return None
    return WITH_RUN if stands.state == "skipped" and stands.run_failed else with_task(stands.state)


def late(status: JobStatus, stands: Standing) -> Verdict | None:
    """Why what a job has committed is used by nothing: its try had ended, and not as a success; None otherwise."""
    ended = stands.ended is not None and status.ended is not None and stands.ended < status.ended
    if not ended or stands.outcome == "success" or stands.state == GONE:
        return None
    if stands.cleared:
        return with_task(None)
    failed = stands.state in GIVEN_UP and stands.outcome in GIVEN_UP  # else the task's next try takes it
    return with_task(stands.outcome) if failed else None
