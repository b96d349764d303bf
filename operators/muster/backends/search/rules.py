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

from muster.backends.search.state import Phase, SearchState, Trial
from muster.core.search import SearchSpec, Stopping

FEWEST_OUTCOMES = 5
"""A search fails when half of its trials have failed, but not before this many have shown how they do."""
_SHOWN = 3


@dataclass(frozen=True)
class Ask:
    """Try a new point of the space."""


@dataclass(frozen=True)
class Take:
    """Start a job for a trial, on to a rung; where it has reached that rung, it runs once more to end there."""

    trial: int
    rung: int


@dataclass(frozen=True)
class Wait:
    """Nothing is to be started before something else happens."""


@dataclass(frozen=True)
class Close:
    """The search is over. :param best: the trial, or -1, and `reason` says why there is none."""

    best: int
    reason: str = ""


Move = Ask | Take | Wait | Close


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What the search has used, beside what its events say. :param exhausted: the sampler has no further point."""

    seconds: float = 0.0
    gpu_hours: float = 0.0
    exhausted: bool = False


def passes(state: SearchState, trial: Trial, rung: int) -> bool:
    """Whether a trial that has just reached a rung goes on at once. At the last one it ends by itself."""
    if rung == state.spec.last or trial.is_finishing or state.spec.stopping is Stopping.NONE:
        return True
    return state.place(trial, rung) < places(state, rung)


def next_move(state: SearchState, spent: Spent) -> Move:
    """Decide what a free place is used for."""
    if state.closed is not None:
        return Close(state.closed.trial, state.closed.reason)
    if reason := hopeless(state):
        return Wait() if state.running else Close(-1, reason)
    over = used_up(state.spec, state, spent)
    move = None if over else _start(state, spent)
    if move is not None:
        return move
    if state.running:
        return Wait()
    return _finish(state, over)


def places(state: SearchState, rung: int) -> int:
    """How many of the trials that reached a rung may go on to the next one, as far as is known."""
    spec = state.spec
    if spec.stopping is Stopping.ASHA:
        return math.floor(state.told(rung) / _ratio(spec, rung))
    if spec.stopping is Stopping.HALVING and _whole(state, rung):
        return max(1, math.floor(_cohort(spec, rung) / _ratio(spec, rung)))
    return 0


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
    """Say why a search has failed: half of its trials did, of at least five that show how they do."""
    if state.shown < FEWEST_OUTCOMES or 2 * state.failed < state.shown:
        return ""
    return f"{state.failed} of {state.shown} trials failed. {failures(state)}"


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
        if best is not None and state.place(best, rung) < places(state, rung):
            return Take(best.number, rung + 1)
    if state.new:  # asked for by a driver that was killed before it started the job
        return Take(state.new[0], 0)
    return Ask() if not _all_asked(state, spent) else None


def _finish(state: SearchState, over: str) -> Move:
    """Decide what is still to be done when nothing runs and nothing new is to be started."""
    best, told = state.best(), state.best_told()
    if told is None and best is None:
        return Close(
            -1,
            f"no trial has ended. {failures(state)}".strip()
            if not over
            else f"{over}, and no trial has told {state.spec.metric}",
        )
    if best is None and told is not None and not over and told.rung < state.spec.last:
        highest = _highest(state)
        return Take(highest.number, highest.rung + 1)
    if (
        told is not None
        and told.phase is Phase.PAUSED
        and (best is None or state.spec.better(told.value, best.value))
    ):
        return Take(told.number, told.rung)
    assert best is not None
    return Close(best.number)


def _highest(state: SearchState) -> Trial:
    """The best of the trials that came furthest: where too few were tried for a place at the next rung, it goes on."""
    for rung in range(state.spec.last, -1, -1):
        if (best := state.best_paused(rung)) is not None:
            return best
    raise AssertionError("no trial is paused")


def _all_asked(state: SearchState, spent: Spent) -> bool:
    return spent.exhausted or len(state.trials) >= state.spec.points


def _ratio(spec: SearchSpec, rung: int) -> float:
    return spec.rungs[rung + 1] / spec.rungs[rung]


def _cohort(spec: SearchSpec, rung: int) -> int:
    """How many trials are to reach a rung in synchronous halving."""
    count = int(spec.points)
    for each in range(rung):
        count = max(1, math.floor(count / _ratio(spec, each)))
    return count


def _whole(state: SearchState, rung: int) -> bool:
    """Whether all trials that are to reach a rung have, or have failed."""
    expected = (
        _cohort(state.spec, rung) if rung == 0 else min(_cohort(state.spec, rung), state.told(rung - 1))
    )
    return state.told(rung) + state.failed_before[rung] >= expected
