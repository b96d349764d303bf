"""The trials of a search as JSON values: one page of the table, and those that a picture of them all is drawn with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from muster.core.errors import SpecError
from muster.core.status import JobStatus
from muster.core.wire import plain
from muster.ext.search.overview import SearchOverview, TrialRow
from muster.ext.search.space import Dimension
from muster.ext.search.state import Phase

T = TypeVar("T")

MOST_DRAWN, MOST_CURVES = 300, 60
"""Of more trials a picture has those that :func:`drawn` chooses."""
LONGEST = 200
"""Characters of one param that are sent: a trial's job has it whole."""
COLUMNS = ("trial", "phase", "at", "value")
PARAM = "param."
_PHASES = tuple(Phase)


def shown(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params with long values cut."""
    return {name: cut(value) for name, value in params.items()}


def page(
    found: SearchOverview,
    *,
    sort: str = "value",
    down: bool = False,
    phase: str = "",
    offset: int,
    limit: int,
) -> tuple[list[TrialRow], dict[str, Any]]:
    """Return one page of the trials, and how many there are in all and by phase.

    :param sort: a name of :data:`COLUMNS`, or ``param.NAME``; `value` is the best first. What has none is last, whichever way.
    """
    chosen = [each for each in found.trials if phase in ("", each.phase.value)]
    ordered = _sorted(found, chosen, sort, down=down)
    counts = Counter(each.phase.value for each in found.trials)
    return ordered[offset : offset + limit], {"total": len(chosen), "phases": counts}


def row(each: TrialRow) -> dict[str, Any]:
    """Return one trial."""
    return {
        "trial": each.trial,
        "phase": each.phase.value,
        "at": each.at,
        "value": each.value,
        "values": each.values,
        "params": shown(each.params),
        "job_id": each.jobs[-1] if each.jobs else "",
        "jobs": len(each.jobs),
        "reason": each.reason,
    }


def doing(status: JobStatus | None) -> dict[str, Any] | None:
    """Return what a trial's job does now; None where there is no job yet."""
    if status is None:
        return None
    progress = {name: {"text": str(each), **plain(each)} for name, each in status.progress.items()}
    return {"state": status.state.value, "reason": status.reason, "alive": status.alive, "progress": progress}


def drawn(trials: Sequence[TrialRow], most: int) -> list[TrialRow]:
    """Choose the trials of a picture: a third are the best, at most a third run, and the others are evenly from better to worse.

    :param trials: the best first.
    """
    if len(trials) <= most:
        return list(trials)
    best = list(trials[: most // 3])
    rest = trials[most // 3 :]
    running = [each for each in rest if each.phase is Phase.RUNNING][: most // 3]
    others = [each for each in rest if each.phase is not Phase.RUNNING]
    return [*best, *running, *_evenly(others, most - len(best) - len(running))]


def points(found: SearchOverview, space: Mapping[str, Dimension], names: Sequence[str]) -> dict[str, Any]:
    """Return the params and the value of the trials that are drawn, over the axes of some params.

    A param's value is a number, or the place among its choices; None where a trial has none.
    """
    chosen = drawn(found.trials, MOST_DRAWN)
    axes = {name: space[name] for name in names}
    return {
        "axes": [_axis(name, each) for name, each in axes.items()],
        "trials": [
            [
                each.trial,
                each.phase.value,
                each.value,
                [_place(axis, each.params.get(name), name in each.params) for name, axis in axes.items()],
            ]
            for each in chosen
        ],
        "of": len(found.trials),
    }


def _sorted(found: SearchOverview, rows: Sequence[TrialRow], sort: str, *, down: bool) -> list[TrialRow]:
    if sort == "value":  # as they are: the best first, those without a value last
        known = [each for each in rows if each.value is not None]
        return [*(reversed(known) if down else known), *(each for each in rows if each.value is None)]
    if sort.startswith(PARAM) and sort.removeprefix(PARAM) in found.space:
        name = sort.removeprefix(PARAM)
        having = [each for each in rows if name in each.params]
        ordered = sorted(having, key=lambda each: _key(each.params[name]), reverse=down)
        return [*ordered, *(each for each in rows if name not in each.params)]
    keys = {
        "trial": lambda each: each.trial,
        "phase": lambda each: _PHASES.index(each.phase),
        "at": lambda each: each.at,
    }
    if sort not in keys:
        params = ", ".join(f"{PARAM}{name}" for name in found.space)
        raise SpecError(f"sort is {sort!r:.60}: expected one of {', '.join(COLUMNS)}, {params}")
    return sorted(rows, key=keys[sort], reverse=down)


def _key(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, "" if number else json.dumps(value, sort_keys=True)


def _axis(name: str, dimension: Dimension) -> dict[str, Any]:
    known = {"name": name, "choices": [cut(each) for each in dimension.choices], "log": dimension.log}
    low, high = (0, len(dimension.choices) - 1) if dimension.choices else dimension.bounds
    return {**known, "low": low, "high": high, "given": bool(dimension.given)}


def _place(dimension: Dimension, value: Any, has: bool) -> float | None:
    if not has:
        return None
    if dimension.choices:
        return dimension.index(value)
    return float(value)


def cut(value: Any) -> Any:
    """Return a value, or the beginning of its text where that is long."""
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _evenly(items: Sequence[T], most: int) -> list[T]:
    if len(items) <= most:
        return list(items)
    last = max(1, most - 1)
    return [items[round(place * (len(items) - 1) / last)] for place in range(most)]
