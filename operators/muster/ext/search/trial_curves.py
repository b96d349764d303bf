"""The learning curves of a search's trials: what rank 0 of their jobs told, read once of a job that has ended."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from muster.core.errors import MusterError
from muster.ext.search.overview import SearchOverview, TrialRow
from muster.ext.search.results import curve
from muster.ext.search.state import Phase
from muster.ext.search.trials import MOST_CURVES, drawn
from muster.volumes.protocols import Ledger

MOST_POINTS = 200
"""Of one trial."""
_MOST_KEPT = 2000
"""Curves of jobs that have ended and are kept in memory."""

Points = list[tuple[float, float]]


class TrialCurves:
    """The curves of the jobs of one ledger. Safe to share between threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._ended: OrderedDict[tuple[str, str], Points] = OrderedDict()

    def of(self, found: SearchOverview, *, told: bool) -> dict[str, Any]:
        """Return the curves of the trials that are drawn, the best trial's first.

        :param told: whether the user may see what jobs print; else a curve has what the search itself knows, its rungs.
        """
        trials = [each for each in found.trials if each.values or each.phase is Phase.RUNNING]
        chosen = sorted(drawn(trials, MOST_CURVES), key=lambda each: each.trial != found.best)
        curves = [self._curve(found, each, told=told) for each in chosen]
        return {
            "curves": [each for each in curves if each["points"]],
            "chosen": len(chosen),
            "of": len(trials),
            "told": told,
        }

    def _curve(self, found: SearchOverview, trial: TrialRow, *, told: bool) -> dict[str, Any]:
        known = dict(self._told(found, trial)) if told else {}
        rungs = zip((each.at for each in found.rungs), trial.values, strict=False)
        known |= {at: value for at, value in rungs if value is not None and at not in known}
        points = sorted(known.items())
        step = max(1, -(-len(points) // MOST_POINTS))
        kept = points[::step] if step == 1 or points[-1] in points[::step] else [*points[::step], points[-1]]
        return {"trial": trial.trial, "phase": trial.phase.value, "points": kept}

    def _told(self, found: SearchOverview, trial: TrialRow) -> Points:
        """What the jobs of a trial told, of those that begin again from a checkpoint the later one."""
        last = len(trial.jobs) - 1
        return [
            point
            for place, job_id in enumerate(trial.jobs)
            for point in self._job(
                job_id, found.metric, goes_on=place == last and trial.phase is Phase.RUNNING
            )
        ]

    def _job(self, job_id: str, metric: str, *, goes_on: bool) -> Points:
        key = job_id, metric
        with self._lock:
            if key in self._ended:
                self._ended.move_to_end(key)
                return self._ended[key]
        try:
            points = list(curve(self._ledger, job_id, metric))
        except MusterError:  # its rungs are known nevertheless
            points = []
        if not goes_on:
            with self._lock:
                self._ended[key] = points
                while len(self._ended) > _MOST_KEPT:
                    self._ended.popitem(last=False)
        return points
