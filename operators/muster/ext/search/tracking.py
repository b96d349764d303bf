"""What MLflow is told of a search: a run of the search, and below it a run of each trial, which goes on as long as the trial does.

::

    flights.search                       params: the space and the rules; tags: the search; at its end the best trial
      trial 3                            params: the trial's point; the metric at each rung; tags: trial, rung, newest job
        what the trial's script begins   of each job one, as the script says; the tags come by ``MLFLOW_RUN_CONTEXT``

A script's own run is no run of ours: MLflow refuses to go on with a run under another experiment, or with a param that has another value, and
so would end a script that worked. All runs are looked up by their tags, so a driver that is killed makes no second ones.
MLflow that is away is told once, and asked again a minute later; nothing of the search waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from muster.backends.tracking import Tracking
from muster.core.errors import ImageError, MusterError, SpecError
from muster.core.job import MLFLOW_TAG, MLFLOW_TAGS
from muster.ext.search.mlflow.reach import PARENT, MlflowMetric, MlflowRun, MlflowRuns, reach
from muster.ext.search.spec import Event, EventKind
from muster.ext.search.state import Phase, SearchState, Trial

if TYPE_CHECKING:
    from muster.ext.search.spec import Search

T = TypeVar("T")

_SEARCH_TAG = "muster.search"
_TRIAL_TAG = "muster.trial"
_RUNG_TAG = "muster.rung"
_PHASE_TAG = "muster.phase"
_BEST_TAG = "muster.best_trial"
_REASON_TAG = "muster.reason"

_AWAY_SECONDS = 60.0
_UNBUILT_SECONDS = 5.0
_STATUS = {
    Phase.NEW: "SCHEDULED",
    Phase.AGAIN: "SCHEDULED",
    Phase.RUNNING: "RUNNING",
    Phase.PAUSED: "FINISHED",  # most trials end so; one that is taken up again runs again
    Phase.ENDED: "FINISHED",
    Phase.FAILED: "FAILED",
}


class Tracker:
    """Tells MLflow of one search, as its driver hears of it.

    :param tracking: says how the trials reach MLflow.
    :param say: is told what is wrong, once.
    :param connect: opens the way there; see :func:`muster.ext.search.mlflow.reach.reach`.
    """

    def __init__(
        self,
        search_id: str,
        search: Search,
        *,
        tracking: Callable[[], Tracking],
        say: Callable[[str], None],
        clock: Callable[[], float],
        connect: Callable[[Tracking], MlflowRuns | None] = reach,
    ) -> None:
        self._id, self._search, self._spec = search_id, search, search.spec
        self._tracking, self._connect = tracking, connect
        self._say, self._clock = say, clock
        self._runs: MlflowRuns | None = None
        self._parent = MlflowRun(run_id="", status="")
        self._trials: dict[int, MlflowRun] = {}
        self._changed: dict[int, None] = {}
        self._reached: dict[
            tuple[int, int], float
        ] = {}  # when a trial told a rung that MLflow is not told yet
        self._orphans: dict[str, int] = {}  # jobs that were submitted while MLflow was away, with their trial
        self._from = self._clock()  # not asked before
        self._off = self._ended = self._said = False

    def note(self, event: Event) -> None:
        """Take in an event that the state has taken in."""
        if event.what is EventKind.REACHED:
            self._reached.setdefault((event.trial, event.rung), event.at)
        if event.what not in (EventKind.CLOSED, EventKind.ASKED):
            self._changed[event.trial] = None

    def tags(self, trial: Trial, job_id: str, rung: int) -> dict[str, str]:
        """Return the tags of the runs that a trial's job begins, below the trial's own run."""
        found = {
            _SEARCH_TAG: self._id,
            _TRIAL_TAG: str(trial.number),
            _RUNG_TAG: f"{self._spec.rungs[rung]:g}",
        }
        run = self._ask(lambda runs: self._run(runs, trial))
        if run is not None:
            return {**found, PARENT: run.run_id}
        if not self._off:
            self._orphans[job_id] = trial.number
        return found

    def tell(self, state: SearchState) -> None:
        """Tell what has changed since the last call; at the end of the search, which trial is the best."""
        over = state.closed is not None and not state.running and not self._ended
        if self._changed or over:
            self._ask(lambda runs: self._tell(runs, state, over=over))

    def _tell(self, runs: MlflowRuns, state: SearchState, *, over: bool) -> None:
        for number in list(self._changed):
            self._update(runs, state.trials[number])
            del self._changed[number]
        if over:
            self._end(runs, state)

    def close(self) -> None:
        """Give back what is held open."""
        if self._runs is not None:
            self._runs.close()
        self._runs, self._off = None, True

    def _ask(self, does: Callable[[MlflowRuns], T]) -> T | None:
        """Ask MLflow; None where it cannot be reached now, or ever. What is wrong is said once."""
        try:
            runs = self._reach()
            return None if runs is None else does(runs)
        except (SpecError, ImageError) as error:  # nothing of it changes by itself
            self._off = True
            self._warn(error)
        except MusterError as error:
            self._from = self._clock() + _AWAY_SECONDS
            if self._runs is not None:
                self._runs.close()
            self._runs = None
            self._warn(error)
        return None

    def _reach(self) -> MlflowRuns | None:
        if self._runs is not None:
            return self._runs
        if self._off or self._clock() < self._from:
            return None
        tracking = self._tracking()
        try:
            runs = self._connect(tracking)
        except (SpecError, ImageError):
            self._said = (
                self._said or not tracking.chosen
            )  # without a server that the job names there is nothing to tell
            raise
        if runs is None:
            self._from = self._clock() + _UNBUILT_SECONDS
            return None
        self._runs = runs
        self._look_up(runs)
        return runs

    def _look_up(self, runs: MlflowRuns) -> None:
        """Find what an earlier driver began; the oldest counts."""
        found = runs.find(_SEARCH_TAG, self._id)
        parent = next((run for run in found if _TRIAL_TAG not in run.tags), None)
        if parent is None:
            origin = self._search.trial.origin
            about = {
                "muster.dag_id": origin.dag_id,
                "muster.run_id": origin.run_id,
                "muster.task_id": origin.stage,
            }
            tags = {_SEARCH_TAG: self._id, **{name: text for name, text in about.items() if text}}
            parent = runs.begin(self._search.trial.name, tags=tags, at=self._search.began)
        runs.add(parent.run_id, params=self._rules())  # each time: the same again is nothing
        self._parent = parent
        for run in reversed(found):
            if run.tags.get(PARENT) == parent.run_id and run.tags.get(_TRIAL_TAG, "").isdecimal():
                self._trials[int(run.tags[_TRIAL_TAG])] = run

    def _run(self, runs: MlflowRuns, trial: Trial) -> MlflowRun:
        """The trial's run, begun where it has none."""
        if trial.number not in self._trials:
            tags = {_SEARCH_TAG: self._id, _TRIAL_TAG: str(trial.number), PARENT: self._parent.run_id}
            run = runs.begin(f"trial {trial.number}", tags=tags, at=self._clock())
            self._trials[trial.number] = replace(run, tags=tags)
        return self._trials[trial.number]

    def _update(self, runs: MlflowRuns, trial: Trial) -> None:
        run, now = self._run(runs, trial), self._clock()
        metrics = [
            MlflowMetric(
                name=self._spec.metric,
                value=value,
                step=self._step(rung),
                at=self._reached[trial.number, rung],
            )
            for rung, value in sorted(trial.values.items())
            if value is not None
            and (trial.number, rung) in self._reached
            and self._spec.rungs[rung] > _number(run.tags.get(_RUNG_TAG))
        ]
        wanted = {_PHASE_TAG: trial.phase.value}
        if trial.values:
            wanted[_RUNG_TAG] = f"{self._spec.rungs[trial.rung]:g}"
        if trial.jobs:
            wanted[MLFLOW_TAG] = trial.jobs[-1]
        if trial.reason:
            wanted[_REASON_TAG] = trial.reason
        tags = {name: text for name, text in wanted.items() if run.tags.get(name) != text}
        if metrics or tags:
            new = _PHASE_TAG not in run.tags
            params = {name: _text(value) for name, value in trial.params.items()} if new else {}
            runs.add(run.run_id, params=params, metrics=metrics, tags=tags)
        status = _STATUS[trial.phase]
        if status != run.status:
            runs.mark(run.run_id, status, at=now if status in ("FINISHED", "FAILED") else None)
        self._trials[trial.number] = replace(run, status=status, tags={**run.tags, **wanted})
        for rung in trial.values:
            self._reached.pop((trial.number, rung), None)
        if trial.phase is not Phase.RUNNING:
            self._take_in(runs, trial, run)

    def _take_in(self, runs: MlflowRuns, trial: Trial, run: MlflowRun) -> None:
        """Put what a job's script began while MLflow was away from us below its trial."""
        for job_id in [job for job, number in self._orphans.items() if number == trial.number]:
            for each in runs.find(MLFLOW_TAG, job_id):
                if each.run_id != run.run_id and PARENT not in each.tags:
                    runs.add(each.run_id, tags={PARENT: run.run_id})
            del self._orphans[job_id]

    def _end(self, runs: MlflowRuns, state: SearchState) -> None:
        closed = state.closed
        assert closed is not None
        tags = {_BEST_TAG: str(closed.trial)} if closed.trial >= 0 else {_REASON_TAG: closed.reason}
        metrics = []
        if closed.trial >= 0 and (value := state.trials[closed.trial].value) is not None:
            rung = max(state.trials[closed.trial].rung, 0)
            metrics = [MlflowMetric(name=self._spec.metric, value=value, step=self._step(rung), at=closed.at)]
        if not tags.items() <= self._parent.tags.items():
            runs.add(self._parent.run_id, metrics=metrics, tags=tags)
        runs.mark(self._parent.run_id, "FINISHED" if closed.trial >= 0 else "FAILED", at=closed.at)
        self._ended = True

    def _step(self, rung: int) -> int:
        """MLflow's steps are whole: the rung itself where all of them are, else its number."""
        rungs = self._spec.rungs
        return int(rungs[rung]) if all(each.is_integer() for each in rungs) else rung

    def _rules(self) -> Mapping[str, str]:
        spec = self._spec
        found = {f"space.{name}": str(each) for name, each in spec.space.items()}
        return found | {
            "metric": spec.metric,
            "mode": spec.mode.value,
            "trials": str(spec.trials),
            "rungs": ", ".join(f"{each:g}" for each in spec.rungs),
            "stopping": spec.stopping.value,
            "sampler": spec.sampler.value,
            "seed": str(spec.seed),
        }

    def _warn(self, error: MusterError) -> None:
        if not self._said:
            self._said = True
            self._say(f"the search goes on without its runs in MLflow: {error}")


def with_tags(env: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return a job's variables, by which MLflow puts these tags on its runs beside those that the author gives."""
    try:
        own = json.loads(env.get(MLFLOW_TAGS, "{}"))
    except ValueError:
        own = {}
    own = own if isinstance(own, dict) else {}
    return {**env, MLFLOW_TAGS: json.dumps({**own, **tags})}


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
