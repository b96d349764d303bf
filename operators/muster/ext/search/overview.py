"""How a search stands, for people: its rungs and its trials. The command and the page show this one thing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from muster.core.origin import stage_title
from muster.core.status import JobState
from muster.ext.search.rules import Spent, hopeless, used_up
from muster.ext.search.spec import Search
from muster.ext.search.state import Phase, SearchState, Trial
from muster.ext.search.stored import KIND, stored_search

if TYPE_CHECKING:
    from muster.ext.search.space import Dimension
    from muster.volumes.protocols import Store


@dataclass(frozen=True, kw_only=True)
class Rung:
    """How many trials a rung has seen.

    :param at: the resource's value.
    :param reached: of which `passed` went on, or at the last rung ended; `paused` wait there to go on, and `left` failed there or
        ended before the last.
    """

    at: float
    reached: int
    paused: int
    best: float | None
    passed: int = 0
    left: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial. :param at: how far it is known to be, by the resource. `values`: what it told at each rung that it reached."""

    trial: int
    phase: Phase
    at: float
    value: float | None
    values: tuple[float | None, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchOverview:
    """A search. Times are seconds since the epoch.

    :param state: running, succeeded or failed. `best`: the best trial so far, or that it ended with; None: none has told a value.
    :param reason: why it failed. `waits`: what a search that runs waits for.
    :param resource: of what rungs count, what all trials have used for the rungs that they reached; `resource_name`: what it is
        called, empty where trials tell it with a total. `budget`: what may be used of what.
    :param trials: the best first, those without a value last.
    """

    search_id: str
    dag_id: str
    run_id: str
    stage: str
    state: JobState
    began: float
    ended: float | None
    metric: str
    mode: str
    most: int
    running: int
    failed: int
    resource: float
    best: int | None
    reason: str
    space: Mapping[str, str]
    rungs: tuple[Rung, ...]
    trials: tuple[TrialRow, ...]
    waits: str = ""
    sampler: str = ""
    stopping: str = ""
    seed: int = 0
    at_once: int | None = None
    retries: int = 0
    resource_name: str = ""
    budget: Mapping[str, float] = field(default_factory=dict)
    earlier: tuple[str, ...] = ()

    @property
    def best_row(self) -> TrialRow | None:
        """The best trial; None where no trial has told a value."""
        return next((each for each in self.trials if each.trial == self.best), None)

    @property
    def rules(self) -> str:
        """By which rules it searches, as one line for people."""
        told = f"{self.stopping} by {self.sampler}, seed {self.seed}"
        return told if self.at_once is None else f"{told}, {self.at_once} at once"


def overview(search_id: str, search: Search, state: SearchState) -> SearchOverview:
    """Describe a search."""
    spec, origin, closed = search.spec, search.trial.origin, state.closed
    ordered = sorted(
        state.trials, key=lambda trial: (trial.value is None, spec.order(trial.value), trial.number)
    )
    best = (
        closed.trial
        if closed is not None
        else next((each.number for each in ordered if each.value is not None), -1)
    )
    how = JobState.RUNNING if closed is None else JobState.SUCCEEDED if closed.trial >= 0 else JobState.FAILED
    return SearchOverview(
        search_id=search_id,
        dag_id=origin.dag_id,
        run_id=origin.run_id,
        stage=stage_title(origin.task_id, origin.map_index),
        state=how,
        began=search.began,
        ended=None if closed is None else closed.at,
        metric=spec.metric,
        mode=spec.mode.value,
        most=spec.points,
        running=len(state.running),
        failed=state.failed,
        resource=state.resource,
        best=None if best < 0 else best,
        reason="" if closed is None else closed.reason,
        space={name: f"{each}{_asked_where(each)}" for name, each in spec.space.items()},
        rungs=tuple(_rung(search, state, rung) for rung in range(len(spec.rungs))),
        trials=tuple(_row(search, each) for each in ordered),
        waits=waits(search, state),
        sampler=spec.sampler.value,
        stopping=spec.stopping.value,
        seed=spec.seed,
        at_once=spec.at_once,
        retries=spec.retries,
        resource_name=spec.resource,
        budget={name: most for name, most in vars(spec.budget).items() if most},
        earlier=spec.earlier,
    )


def waits(search: Search, state: SearchState, *, now: float | None = None) -> str:
    """Say what a search that has not ended waits for; empty where it has, or where new trials are still begun.

    :param now: seconds since the epoch; the clock's where it is None. Card-hours are not counted.
    """
    if state.closed is not None:
        return ""
    seconds = (time.time() if now is None else now) - search.began
    over = used_up(search.spec, state, Spent(seconds=seconds)) or hopeless(state)
    running = len(state.running)
    if not running:
        return over or "no trial runs: its task begins the next one, or goes on with it when it runs again"
    one = running == 1
    if over:
        return f"{over}: {running} {'trial runs to its' if one else 'trials run to their'} next rung"
    if len(state.trials) >= search.spec.points:
        return f"all points were asked for, and {running} {'trial runs' if one else 'trials run'}"
    return ""


def find_search(store: Store, text: str) -> str:
    """Return the newest search whose id begins with `text`, or whose Dag or Dag/task it is.

    :raises NotFound: there is none.
    """
    from muster.core.errors import NotFound

    for search_id in store.logs(KIND):
        if search_id.startswith(text):
            return search_id
        origin = stored_search(store, search_id).trial.origin
        if text in (origin.dag_id, f"{origin.dag_id}/{origin.task_id}"):
            return search_id
    raise NotFound(f"no search {text!r:.80}: `muster search ls` lists what is there")


def _asked_where(dimension: Dimension) -> str:
    """When a param is asked, as an author writes it."""
    given = [
        f"{name}={json.dumps(values[0] if len(values) == 1 else list(values))}"
        for name, values in dimension.given.items()
    ]
    return f".when({', '.join(given)})" if given else ""


def _rung(search: Search, state: SearchState, rung: int) -> Rung:
    here = [trial for trial in state.trials if rung in trial.values]
    ends = [trial for trial in here if trial.rung == rung]
    last = rung == search.spec.last
    paused = sum(trial.phase is Phase.PAUSED for trial in ends)
    left = sum(trial.phase is Phase.FAILED or (trial.phase is Phase.ENDED and not last) for trial in ends)
    going = sum(trial.phase in (Phase.RUNNING, Phase.AGAIN) for trial in ends) if last else 0
    told = [value for trial in here if (value := trial.values[rung]) is not None]
    return Rung(
        at=search.spec.rungs[rung],
        reached=len(here),
        paused=paused,
        passed=len(here) - paused - left - going,
        left=left,
        best=min(told, key=search.spec.order, default=None),
    )


def _row(search: Search, trial: Trial) -> TrialRow:
    return TrialRow(
        trial=trial.number,
        phase=trial.phase,
        at=search.spec.rungs[trial.rung] if trial.values else 0.0,
        value=trial.value,
        values=tuple(trial.values[rung] for rung in sorted(trial.values)),
        params=trial.params,
        jobs=tuple(trial.jobs),
        reason=trial.reason,
    )
