"""The loop of a search: looks at its trials, writes down what happened, and starts what there is a place for.

The process that asks for a search drives it: a task, or its trigger. All that is known of it is its events, in the
store. Each is written before the next thing is done, and only behind the events that the writer knows; so a driver may
be killed between any two, another goes on from there, and two at once do nothing twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from muster.backends.base import PATIENCE_SECONDS
from muster.core.cancelling import by_person, pausing
from muster.core.errors import BackendError, Conflict, Corrupt, NotFound, StoreError, Unavailable
from muster.core.names import make_job_id
from muster.core.progress import lines_of_ranks
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.ext.search.reports import Reports
from muster.ext.search.results import earlier_of
from muster.ext.search.rules import Ask, Close, Spent, Take, next_move, passes
from muster.ext.search.sampling import Sampling
from muster.ext.search.spec import Event, EventKind
from muster.ext.search.state import SearchState, Trial
from muster.ext.search.stored import event_pages, stored_search, tell_search
from muster.ext.search.tracking import Tracker, with_tags

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.core.job import JobSpec
    from muster.ext.search.spec import Search
    from muster.volumes.protocols import Store

Say = Callable[[str], None]

_WAITING_SHARE = 4
"""One trial may wait for room, and one more for each `_WAITING_SHARE` that run: it takes a card as soon as that is free."""


def look_up(store: Store, search_id: str) -> tuple[Search, SearchState]:
    """Return a search, and how it stands. :raises NotFound: there is none."""
    search = stored_search(store, search_id)
    events = (event for page in event_pages(store, search_id) for event in page.events)
    return search, SearchState(search.spec, events)


class SearchDriver:
    """Drives one search, call by call, from wherever it is to its end.

    :param say: is told what happens, a line at a time.
    """

    def __init__(self, backend: Backend, search_id: str, *, say: Say = lambda _line: None) -> None:
        self.search_id = search_id
        self._backend, self._store = backend, backend.store
        self._say = say
        self.search = stored_search(self._store, search_id)
        self._spec = self.search.spec
        self._at_once = self._spec.at_once or backend.runner.side_by_side(self.search.trial)
        self.state = SearchState(self._spec)
        self._tracker = Tracker(
            search_id,
            self.search,
            tracking=lambda: backend.runner.tracking(self.search.trial),
            say=say,
            clock=time.time,
        )
        self._end = 0
        self._exhausted = False
        self._reports: dict[int, Reports] = {}
        self._offsets: dict[str, int] = {}
        self._stopping: set[int] = set()
        self._judged: set[int] = set()  # trials whose last rung was judged by this process
        self._gpu_seconds: dict[str, float] | None = None  # by job; None until they are asked for
        self._trouble: float | None = None
        self._said = ""

    def step(self) -> Event | None:
        """Look, do what is to be done, and return what closed the search once nothing of it runs any more.

        To be called every quarter of a second or so; a backend that is away is waited for, ``PATIENCE_SECONDS``.

        :raises MusterError: it stayed away. Its trials go on, and another driver can go on with the search.
        """
        since, self._trouble = self._trouble, None
        try:
            return self._step()
        except Conflict:
            return None  # another driver, or a person, was first: the next look shows what was written
        except (BackendError, Corrupt, NotFound, StoreError, Unavailable) as error:
            self._endure(error, since)
            return None

    def pause(self) -> None:
        """Pause every trial that runs: nothing drives the search for now. Another driver goes on with it.

        :raises MusterError: the store, or the backend, is away.
        """
        self._read()
        for number in sorted(self.state.running):
            self._stop(self.state.trials[number], "its search is not driven now", wait=True)
        statuses = self._statuses()
        for number in sorted(self.state.running):
            trial = self.state.trials[number]
            if (status := statuses.get(trial.jobs[-1])) is not None and status.state.ended:
                with suppress(Conflict):  # another driver has written the same
                    self._mind(trial, status)

    def close(self, reason: str) -> bool:
        """End the search without a best trial, for `reason`; :meth:`step` ends its jobs. False where it had ended."""
        while True:
            self._read()
            if self.state.closed is not None:
                return False
            with suppress(Conflict):  # another driver goes on meanwhile
                self._tell(Event(what=EventKind.CLOSED, at=time.time(), reason=reason))
                return True

    def leave(self) -> None:
        """Give back what is held open; the search goes on with another driver. Idempotent."""
        self._tracker.close()

    def cancel(self, reason: str) -> bool:
        """End the search and its jobs, whether or not anyone drives it. False where it had ended."""
        if not self.close(reason):
            return False
        for number in sorted(self.state.running):
            self._stop(self.state.trials[number], "its search was cancelled")
        return True

    def _step(self) -> Event | None:
        self._read()
        statuses = self._statuses()
        for number in sorted(self.state.running):
            trial = self.state.trials[number]
            self._mind(trial, statuses.get(trial.jobs[-1]))
        if self.state.closed is None:
            self._fill(statuses)
        self._tracker.tell(self.state)
        return self._closed()

    def _closed(self) -> Event | None:
        """What closed the search, once nothing of the search runs any more."""
        closed = self.state.closed
        if closed is None or self.state.running:
            return None
        self._store.release(self.search_id)
        self.leave()
        return closed

    def _read(self) -> None:
        for page in event_pages(self._store, self.search_id, after=self._end):
            for event in page.events:
                self._apply(event)
            self._end = page.end

    def _tell(self, *events: Event) -> None:
        self._end = tell_search(self._store, self.search_id, events, after=self._end)
        for event in events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        self.state.apply(event)
        self._tracker.note(event)

    def _event(self, what: EventKind, trial: int, **fields: Any) -> Event:
        return Event(what=what, at=time.time(), trial=trial, **fields)

    def _statuses(self) -> Mapping[str, JobStatus]:
        return self._backend.statuses(
            [self.state.trials[number].jobs[-1] for number in sorted(self.state.running)]
        )

    # One trial that runs

    def _mind(self, trial: Trial, status: JobStatus | None) -> None:
        if status is None:  # its driver was killed before it had submitted the job
            if self.state.closed is None:
                self._submit(trial)
            else:
                self._tell(self._event(EventKind.PAUSED, trial.number))
            return
        self._count(status)
        self._hear(trial, status)
        if status.state.ended:
            self._take_end(trial, status)
        elif self.state.closed is not None:
            self._stop(trial, "its search is over")
        elif not status.alive:
            self._submit(trial)  # its supervisor was lost, or it may start at last
        else:
            self._judge(trial)

    def _hear(self, trial: Trial, status: JobStatus) -> None:
        """Write down the rungs that a trial has reached since the last look."""
        job_id, reports = status.job_id, self._reports_of(trial)
        while True:
            before = self._offsets.get(job_id, 0)
            data, after = self._store.ledger.read(job_id, after=before)
            reached = [each for rank, line in lines_of_ranks(data) for each in reports.read(rank, line)]
            if reached:
                events = [
                    self._event(EventKind.REACHED, trial.number, rung=rung, value=value)
                    for rung, value in reached
                ]
                try:
                    self._tell(*events)
                except BaseException:
                    del self._reports[trial.number]  # what it has read is not written down
                    self._offsets.pop(job_id, None)
                    raise
                self._judged.discard(trial.number)
                self._say_reached(trial)
            self._offsets[job_id] = after
            if after == before:
                return

    def _reports_of(self, trial: Trial) -> Reports:
        if trial.number not in self._reports:
            self._reports[trial.number] = Reports(spec=self._spec, reached=trial.rung)
        return self._reports[trial.number]

    def _judge(self, trial: Trial) -> None:
        """Pause a trial that does not pass the rung that its job has reached."""
        if trial.number in self._judged or trial.number in self._stopping:
            return
        self._judged.add(trial.number)
        rung = trial.rung
        if rung < trial.began or passes(self.state, trial, rung, self._spent()):
            return
        place, of = self.state.place(trial, rung) + 1, self.state.told(rung)
        self._stop(trial, f"it was number {place} of {of} at {self._spec.rungs[rung]:g}")

    def _stop(self, trial: Trial, why: str, *, wait: bool = False) -> None:
        """Have a trial's job end from its checkpoint."""
        if trial.number not in self._stopping or wait:
            with suppress(NotFound):  # it was never submitted: there is nothing to end
                self._backend.cancel(trial.jobs[-1], wait=wait, why=pausing(why))
            self._stopping.add(trial.number)

    def _take_end(self, trial: Trial, status: JobStatus) -> None:
        """Write down how a trial's job has ended."""
        number, reports, verdict = trial.number, self._reports_of(trial), status.verdict
        if status.state is JobState.SUCCEEDED:
            value = reports.value if reports.told else trial.value
            self._tell(self._event(EventKind.ENDED, number, value=value))
            self._say(f"trial {number} ended{self._valued(trial)}")
            if (missing := reports.missing()) and (reports.told or not trial.values):
                self._warn(trial, missing)  # else an earlier job has told it
        elif verdict is not None and verdict.cause is Cause.CANCELLED and not by_person(verdict):
            rung = trial.rung if trial.rung >= trial.began else -1
            self._tell(self._event(EventKind.PAUSED, number, rung=rung))
        else:
            reason = "nothing says why" if verdict is None else verdict.line
            again = verdict is not None and verdict.cause.retried and trial.failures < self._spec.retries
            self._tell(self._event(EventKind.FAILED, number, reason=reason, final=not again))
            self._say(f"trial {number} failed{' and is tried again' * again}: {reason} {_shown(trial)}")
        for warning in reports.warnings:
            self._warn(trial, warning)
        reports.warnings.clear()
        self._stopping.discard(number)
        self._judged.discard(number)
        self._offsets.pop(status.job_id, None)
        self._backend.cancel(status.job_id, wait=False)  # it has ended: what it left where it ran goes

    # What comes next

    def _fill(self, statuses: Mapping[str, JobStatus]) -> None:
        """Start jobs while there are places for them."""
        running = [self.state.trials[number].jobs[-1] for number in self.state.running]
        waiting = sum(
            1 for each in running if each not in statuses or statuses[each].state is JobState.QUEUED
        )
        while self._is_place(waiting):
            move = next_move(self.state, self._spent())
            if isinstance(move, Ask):
                self._ask()
            elif isinstance(move, Take):
                self._take(self.state.trials[move.trial], move.rung)
                waiting += 1
            elif isinstance(move, Close):
                self._tell(self._event(EventKind.CLOSED, move.best, reason=move.reason))
                return
            else:
                return

    def _is_place(self, waiting: int) -> bool:
        running, most = len(self.state.running), self._at_once
        if most is not None and running >= most:
            return False
        return waiting < max(1, (running - waiting) // _WAITING_SHARE)

    @cached_property
    def _sampling(self) -> Sampling:
        return Sampling(self._spec, earlier=earlier_of(self._store, self._spec))

    def _ask(self) -> None:
        params = self._sampling.ask(self.state)
        if params is None:
            self._exhausted = True
        else:
            self._tell(self._event(EventKind.ASKED, len(self.state.trials), params=params))

    def _take(self, trial: Trial, rung: int) -> None:
        job_id = make_job_id(
            instance=self.search_id,
            task=self.search.trial.name,
            nonce=f"trial {trial.number}",
            attempt=len(trial.jobs) + 1,
        )
        self._tell(self._event(EventKind.STARTED, trial.number, job_id=job_id, rung=rung))
        if trial.number in self._reports:
            self._reports[trial.number].start_again()
        self._submit(trial)
        how = "begins" if len(trial.jobs) == 1 else "goes on"
        self._say(f"trial {trial.number} {how}, to {self._spec.rungs[rung]:g}: {_shown(trial)}")

    def _submit(self, trial: Trial) -> None:
        """Submit a trial's job, or see that it goes on."""
        job_id = trial.jobs[-1]
        try:
            job = self._store.ledger.spec(job_id)
        except NotFound:
            job = self._job(trial)
        self._backend.submit(job, job_id=job_id, owner=self.search_id, tally=self.search.tally)

    def _job(self, trial: Trial) -> JobSpec:
        last = trial.began if trial.is_finishing else self._spec.last
        follows = trial.jobs[-2] if len(trial.jobs) > 1 else None
        job = self.search.job(trial.params, until=self._spec.rungs[last], follows=follows)
        tags = self._tracker.tags(trial, trial.jobs[-1], trial.began)
        return replace(job, origin=replace(job.origin, trial=trial.number), env=with_tags(job.env, tags))

    def _spent(self) -> Spent:
        hours = sum((self._gpu_seconds or {}).values()) / 3600
        return Spent(seconds=time.time() - self.search.began, gpu_hours=hours, exhausted=self._exhausted)

    def _count(self, status: JobStatus) -> None:
        """Count the card-seconds of a job, where there is a budget of them."""
        if not self._spec.budget.gpu_hours:
            return
        if self._gpu_seconds is None:  # those of jobs that ended under another driver
            jobs = [job for trial in self.state.trials for job in trial.jobs]
            self._gpu_seconds = {job: self._held(each) for job, each in self._backend.statuses(jobs).items()}
        self._gpu_seconds[status.job_id] = self._held(status)

    def _held(self, status: JobStatus) -> float:
        """Return the card-seconds that a job has held."""
        if status.started is None:
            return 0.0
        gpus = sum(role.replicas * role.resources.gpus for role in self.search.trial.roles)
        return gpus * ((status.ended or time.time()) - status.started)

    # What is told to people

    def _say_reached(self, trial: Trial) -> None:
        rung = trial.rung
        place, of = self.state.place(trial, rung) + 1, self.state.told(rung)
        self._say(
            f"trial {trial.number} is at {self._spec.rungs[rung]:g}{self._valued(trial)}, number {place} of {of}"
        )

    def _valued(self, trial: Trial) -> str:
        return f" with {self._spec.metric}={'nan' if trial.value is None else f'{trial.value:.6g}'}"

    def _warn(self, trial: Trial, text: str) -> None:
        self._say(f"trial {trial.number}: {text}")

    def _endure(self, error: Exception, since: float | None) -> None:
        """Let a trouble pass that began a while ago. :raises Exception: it lasts too long."""
        now = time.time()
        self._trouble = now if since is None else since
        if now - self._trouble > PATIENCE_SECONDS:
            raise error
        if str(error) != self._said:
            self._said = str(error)
            self._say(f"trying again: {error}")


def _shown(trial: Trial) -> str:
    return json.dumps(dict(trial.params))
