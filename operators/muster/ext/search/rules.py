"""The rules of a search: which trial passes a rung, and what a free place is used for.

Asynchronous successive halving (Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020, algorithm
2) takes a trial up again as soon as it is among the best ``1/eta`` of those that have reached its rung; ``eta`` is the
ratio of a rung to the one before. Synchronous halving waits until all trials of a rung have reached it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

from muster.ext.search.spec import SearchSpec, Stopping
from muster.ext.search.state import Phase, SearchState, Trial

_FEWEST_OUTCOMES = 5
"""A search fails when half of its trials have failed, but not before this many have shown how they do."""
_SHOWN = 3
_ROUNDING = 1e-9  # rungs (0.7, 2.1) have a ratio of 3.0000000000000004, of which three trials are one


@dataclass(frozen=True)
class Ask:
    """Try a new point of the space."""


@dataclass(frozen=True)
class Take:
    """Start a job for a trial, on to a rung; where it has reached that rung, it runs once more to end there."""

    trial: int
    rung: int


@dataclass(frozen=True)
class NothingYet:
    """Nothing is to be started before something else happens."""


@dataclass(frozen=True)
class Close:
    """The search is over. :param best: the trial, or -1, and `reason` says why there is none."""

    best: int
    reason: str = ""


Move = Ask | Take | NothingYet | Close


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What the search has used, beside what its events say. :param exhausted: the sampler has no further point."""

    seconds: float = 0.0
    gpu_hours: float = 0.0
    exhausted: bool = False


NOTHING = Spent()


def passes(state: SearchState, trial: Trial, rung: int, spent: Spent = NOTHING) -> bool:
    """Whether a trial that has just reached a rung goes on at once. At the last one it ends by itself.

    None does when a budget is used up, or when the search has failed.
    """
    if rung == state.spec.last or trial.is_finishing:
        return True
    if used_up(state.spec, state, spent) or hopeless(state):
        return False
    return state.spec.stopping is Stopping.NONE or _has_place(state, trial, rung, spent)


def next_move(state: SearchState, spent: Spent) -> Move:
    """Decide what a free place is used for."""
    if state.closed is not None:
        return Close(state.closed.trial, state.closed.reason)
    if reason := hopeless(state):
        return NothingYet() if state.running else Close(-1, reason)
    over = used_up(state.spec, state, spent)
    move = _end_again(state) if over else _start(state, spent)
    if move is not None:
        return move
    if state.running:
        return NothingYet()
    return _finish(state, over)


def places(state: SearchState, rung: int, spent: Spent = NOTHING) -> int:
    """How many of the trials that reached a rung may go on to the next one, as far as is known."""
    stopping = state.spec.stopping
    if stopping is Stopping.NONE:
        return len(state.trials)
    if stopping is Stopping.ASHA:
        return _share(state.told(rung), state.spec, rung)
    cohorts = _cohorts(state, spent)
    if not all(_is_whole(state, each, cohorts[each]) for each in range(rung + 1)):
        return 0
    return max(1, _share(cohorts[rung], state.spec, rung))


def used_up(spec: SearchSpec, state: SearchState, spent: Spent) -> str:
    """Say which budget is used up; empty where none is."""
    budget = spec.budget
    for name, used, most in (
        ("resource", state.resource, budget.resource),
        ("gpu_hours", spent.gpu_hours, budget.gpu_hours),
        ("seconds", spent.seconds, budget.seconds),
    ):
        if most and used >= most:
            return f"its budget of {name} is used up ({used:.4g} of {most:g})"
    return ""


def hopeless(state: SearchState) -> str:
    """Say why a search has failed: half of its trials did, of at least five that show how they do.

    A trial that ended well and never told the metric counts as one that failed: there is nothing to compare it by. One is proof where no
    other trial has told it.
    """
    if state.silent and not any(each.values for each in state.trials):
        return f"no trial told {state.spec.metric}. {silence(state)}"  # nor will another one
    lost = state.failed + state.silent
    if state.shown < _FEWEST_OUTCOMES or 2 * lost < state.shown:
        return ""
    return " ".join(
        filter(None, (f"{lost} of {state.shown} trials failed.", failures(state), silence(state)))
    )


def silence(state: SearchState) -> str:
    """Say how many trials ended and never told the metric; empty where none did."""
    if not state.silent:
        return ""
    spec = state.spec
    return (
        f"{state.silent} of them ended and never told {spec.metric}: the script needs a line such as "
        f"`muster: {spec.resource or 'epoch'}=1/{spec.rungs[-1]:g} {spec.metric}=0.5` after each checkpoint, or metric_pattern= that finds both in its own lines"
    )


def failures(state: SearchState) -> str:
    """Say which trials failed, with what params, and why most of them did."""
    failed = [each for each in state.trials if each.phase is Phase.FAILED]
    if not failed:
        return ""
    reason, count = Counter(each.reason for each in failed).most_common(1)[0]
    shown = "; ".join(f"trial {each.number} {json.dumps(dict(each.params))}" for each in failed[:_SHOWN])
    more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return f"{count} of them: {reason or 'no reason is known'} ({shown}{more})"


def _start(state: SearchState, spent: Spent) -> Move | None:
    """What can be started: a trial whose job failed, one that is among the best of its rung, or a new one."""
    if state.again:
        trial = state.trials[state.again[0]]
        return Take(trial.number, trial.goal)
    for rung in range(state.spec.last - 1, -1, -1):
        best = state.best_paused(rung)
        if best is not None and _has_place(state, best, rung, spent):
            return Take(best.number, rung + 1)
    if state.new:  # asked for by a driver that was killed before it started the job
        return Take(state.new[0], 0)
    return None if _all_asked(state, spent) else Ask()


def _end_again(state: SearchState) -> Move | None:
    """Start the last run of a trial again, which failed: it trains nothing, so it costs no budget."""
    trials = (state.trials[number] for number in state.again)
    return next((Take(each.number, each.goal) for each in trials if each.is_finishing), None)


def _finish(state: SearchState, over: str) -> Move:
    """Decide what is still to be done when nothing runs and nothing new is to be started."""
    spec, best, told = state.spec, _known(state.best()), _known(state.best_told())
    if best is None and told is None:
        return Close(-1, _no_value(state, over))
    if best is None and not over and (highest := _highest(state)) is not None:
        return Take(highest.number, highest.rung + 1)
    paused = told is not None and told.phase is Phase.PAUSED
    if told is not None and paused and (best is None or spec.better(told.value, best.value)):
        return Take(told.number, told.rung)
    assert best is not None
    return Close(best.number)


def _known(trial: Trial | None) -> Trial | None:
    """A trial whose value is known; none can be the best by NaN, or without a value."""
    return None if trial is None or trial.value is None else trial


def _no_value(state: SearchState, over: str) -> str:
    metric = state.spec.metric
    if any(each.values for each in state.trials):
        found = f"every trial told NaN for {metric}, or failed"
    else:
        found = f"no trial told {metric}"
    return ". ".join(
        filter(None, (f"{over}, and {found}" if over else found, failures(state), silence(state)))
    )


def _highest(state: SearchState) -> Trial | None:
    """The best of the trials that came furthest: where too few were tried for a place at the next rung, it goes on."""
    paused = (_known(state.best_paused(rung)) for rung in range(state.spec.last - 1, -1, -1))
    return next((each for each in paused if each is not None), None)


def _has_place(state: SearchState, trial: Trial, rung: int, spent: Spent) -> bool:
    """Whether a trial is among those that go on from a rung. One that told NaN is not: nothing follows from NaN but NaN."""
    return trial.values[rung] is not None and state.place(trial, rung) < places(state, rung, spent)


def _all_asked(state: SearchState, spent: Spent) -> bool:
    return spent.exhausted or len(state.trials) >= state.spec.points


def _share(count: int, spec: SearchSpec, rung: int) -> int:
    """The best of a rung that go on: one of as many trials as the next rung is times as far."""
    return math.floor(count * spec.rungs[rung] / spec.rungs[rung + 1] + _ROUNDING)


def _cohorts(state: SearchState, spent: Spent) -> list[int]:
    """How many trials are to reach each rung in synchronous halving: at the first all that there are to be."""
    counts = [len(state.trials) if _all_asked(state, spent) else state.spec.points]
    for rung in range(state.spec.last):
        counts.append(max(1, _share(counts[rung], state.spec, rung)))
    return counts


def _is_whole(state: SearchState, rung: int, cohort: int) -> bool:
    """Whether all trials that are to reach a rung have, or never will."""
    expected = min(cohort, state.known(rung - 1)) if rung else cohort
    return state.told(rung) + state.left_before[rung] >= expected
