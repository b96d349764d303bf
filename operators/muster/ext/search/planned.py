"""Plans a stage that searches: how many trials there is room for, what they cost, and the lines that say so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.entrypoints import uses_checkpoints
from muster.airflow.authoring.references import is_known
from muster.backends.forecast import Span, TaskCost
from muster.core.errors import NotFound
from muster.core.text import lasting
from muster.ext.search.simulation import Costs, Played, play
from muster.ext.search.spec import Budget, Mode, SearchSpec
from muster.ext.search.state import SearchState

if TYPE_CHECKING:
    from muster.airflow.authoring.code import DagFolder
    from muster.backends.base import Backend
    from muster.backends.forecast import Competition, Demand, TaskCost
    from muster.core.job import JobSpec
    from muster.core.series import Curve
    from muster.ext.search.operator import SearchOperator
    from muster.volumes.protocols import Ledger


NEWEST = 60
"""The number of a task's newest jobs from which its speed is estimated."""
_MOST_PLAYS, _FEWEST_PLAYS, _TRIALS_IN_ALL = 40, 3, 4000
_LOOKS_SECONDS = 0.5  # until a driver sees that a rung is reached, and then that the job has ended
HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How earlier jobs of a task trained.

    :param units: seconds for one of what rungs count, a number for each job.
    :param start: seconds from a job's submission to its first step, where it need not wait. `stop`: from its last one to its end.
    :param again: how many jobs went on from another one's checkpoints; `anew`: how many of them began anew nevertheless.
    """

    units: tuple[float, ...] = ()
    start: float = 0.0
    stop: float = 0.0
    again: int = 0
    anew: int = 0

    @property
    def goes_on(self) -> bool | None:
        """Whether trials that are taken up again go on from their checkpoints, as most of them did; None: none was taken up."""
        return 2 * self.anew <= self.again if self.again else None


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    """What a search would cost.

    :param trials: how many it tries at most. `at_once`: how many of them train at once.
    :param resource: the name of what rungs count, such as ``epochs``; empty where the search does not name it.
    :param units: of it, what all trials train together. `most`: where each trial is better than all before it, which is the
        dearest order. `full`: if no trial were stopped.
    :param repeated: what of it is trained twice, since a trial that is taken up again begins anew.
    :param checkpoints: whether trials go on from their checkpoints; None: nothing shows it, and they are taken to.
    :param seconds: from its beginning to its end; None where no earlier job told how fast it trains.
    :param cpu_hours: at the median, as `gpu_hours`: of all trials together; None as `seconds`.
    :param known: how many earlier jobs the pace is of.
    """

    trials: int
    at_once: int
    resource: str
    units: Span
    most: float
    full: float
    repeated: float = 0.0
    checkpoints: bool | None = None
    seconds: Span | None = None
    cpu_hours: float | None = None
    gpu_hours: float | None = None
    known: int = 0


def pace(ledger: Ledger, dag_id: str, task_id: str, metric: str) -> Pace:
    """Read how fast the newest jobs of a task trained, by the steps with which they told the metric."""
    mine = [job for job, origin in ledger.origins(dag_id=dag_id).items() if origin.task_id == task_id]
    newest = mine[-NEWEST:]
    statuses = {each.job_id: each for each in ledger.statuses(newest)}
    curves = {job: curve for job in newest if (curve := _curve(ledger, job, metric)) is not None}
    units = tuple(unit for curve in curves.values() if (unit := _unit(curve)) is not None)
    usual = median(units) if units else 0.0
    starts = [max(0.0, curve.seconds[0] - usual) for curve in curves.values()]
    ran = [(statuses[job], curve) for job, curve in curves.items() if job in statuses]
    waits = [each.started - each.submitted for each, _ in ran if each.started is not None]
    stops = [
        max(0.0, each.ended - each.started - curve.seconds[-1])
        for each, curve in ran
        if each.started is not None and each.ended is not None
    ]
    first = {job: next(step for step in curve.steps if step is not None) for job, curve in curves.items()}
    follows = {job: spec.follows for job, spec in ledger.specs(list(curves)).items()}
    again = [(job, before) for job, before in follows.items() if before is not None and before in first]
    return Pace(
        units=units,
        start=(median(starts) if starts else 0.0) + max(0.0, min(waits, default=0.0)),
        stop=median(stops) if stops else 0.0,
        again=len(again),
        anew=sum(first[job] <= first[before] for job, before in again),
    )


def estimate(
    spec: SearchSpec,
    *,
    workers: int,
    pace: Pace,
    checkpoints: bool | None = None,
    cpus: float = 0.0,
    gpus: float = 0.0,
) -> TaskCost:
    """Play a search some times, each with other trials, and return what it costs. The same arguments give the same.

    :param workers: how many trials there is room for at once.
    :param checkpoints: whether the trial's code uses its checkpoints; None: not known. What earlier jobs did counts before it.
    :param cpus: of one trial, as `gpus`.
    """
    checkpoints = checkpoints if pace.goes_on is None else pace.goes_on
    points = int(min(spec.points, math.prod(each.points for each in spec.space.values())))
    workers = min(workers, spec.at_once or workers, points)
    known = bool(pace.units)
    if not known:  # what it uses of hours is not known either
        spec = replace(spec, budget=Budget(resource=spec.budget.resource))
    count = max(_FEWEST_PLAYS, min(_MOST_PLAYS, _TRIALS_IN_ALL // points))

    def played(seed: int, *, rising: bool = False, at_once: int = workers) -> Played:
        dice = random.Random(seed)  # noqa: S311 - a play, not a secret
        quality = [float(number) if rising else dice.random() for number in range(points)]
        unit = [dice.choice(pace.units) if known else 1.0 for _ in range(points)]
        costs = Costs(
            unit=lambda params: unit[params[_NUMBER]],
            start=pace.start,
            stop=pace.stop + _LOOKS_SECONDS if known else 0.0,
            anew=checkpoints is False,
            gpus=gpus,
        )
        return play(
            spec,
            _quality(quality, spec.mode),
            workers=at_once,
            costs=costs,
            sampling=lambda _: _Numbered(points),
        )

    plays = [played(seed) for seed in range(count)]
    trained = [each.trained for each in plays]
    seconds = tuple(each.seconds for each in plays) if known else ()
    hours = median(each.busy for each in plays) / HOUR_SECONDS
    cost = SearchCost(
        trials=points,
        at_once=workers,
        resource=spec.resource or spec.until,
        units=Span.of(trained),
        most=max(*trained, *(played(0, rising=True, at_once=each).trained for each in {1, workers})),
        full=points * spec.rungs[-1],
        repeated=median(each.repeated for each in plays),
        checkpoints=checkpoints,
        seconds=Span.of(seconds) if known else None,
        cpu_hours=hours * cpus if known else None,
        gpu_hours=hours * gpus if known else None,
        known=len(pace.units),
    )
    return TaskCost(facts=cost, durations=seconds, cpu_hours=cost.cpu_hours, gpu_hours=cost.gpu_hours)


def _unit(curve: Curve) -> float | None:
    """Seconds for one step; None of a job that told no two steps, or told them at one time."""
    steps = [step for step in curve.steps if step is not None]
    many, seconds = steps[-1] - steps[0], curve.seconds[-1] - curve.seconds[0]
    return seconds / many if many > 0 and seconds > 0 else None


_NUMBER = "number"


class _Numbered:
    """Chooses for each trial nothing but its number."""

    def __init__(self, points: int) -> None:
        self._points = points

    def ask(self, state: SearchState) -> dict[str, Any] | None:
        """See :class:`muster.ext.search.simulation.Points`."""
        number = len(state.trials)
        return {_NUMBER: number} if number < self._points else None


def _quality(of: Sequence[float], mode: Mode) -> Callable[[Mapping[str, Any], float], float]:
    sign = 1 if mode is Mode.MAX else -1
    return lambda params, _: sign * of[params[_NUMBER]]


def _curve(ledger: Ledger, job_id: str, metric: str) -> Curve | None:
    """What rank 0 of a job told of the metric, if it told it with steps."""
    try:
        told = ledger.series(job_id).numbers
    except NotFound:
        return None
    found = (each for each in told if each.name == metric and each.source == "0")
    return next((each for each in found if any(step is not None for step in each.steps)), None)


def search_cost(
    operator: SearchOperator,
    trial: JobSpec,
    demand: Demand,
    outlook: Competition,
    backend: Backend,
    folder: DagFolder,
) -> TaskCost:
    """Return what a search costs. :param demand: of one trial."""
    spec, dag_id = operator.search_spec(), operator.dag.dag_id
    known = is_known([operator.entrypoint, operator.command])
    roles = operator.gang(folder) if known else ()
    room = _room(demand, outlook, spec.points)
    found = estimate(
        spec,
        workers=max(1, min(room, backend.runner.side_by_side(trial) or room)),
        pace=pace(backend.store.ledger, dag_id, operator.task_id, spec.metric),
        checkpoints=uses_checkpoints(roles, operator.travelling(folder)) if roles else None,
        cpus=sum(role.replicas * role.resources.cpus for role in trial.roles),
        gpus=demand.gpus,
    )
    return replace(found, lines=tuple(_lines(found.facts)), warnings=tuple(_warnings(found.facts)))


def _lines(cost: SearchCost) -> Iterator[str]:
    yield f"at most {cost.trials} trials, {cost.at_once} at once"
    yield (
        f"they train about {_units(cost.units.p50, cost)}, at most {cost.most:g}; "
        f"{cost.full:g} if none were stopped"
    )
    if cost.seconds is None:
        yield "how long is not known: no trial of it has told its metric here"
    else:
        low, high = lasting(cost.seconds.p50), lasting(cost.seconds.p90)
        cards = f", {cost.gpu_hours * 3600:,.0f} card-seconds" if cost.gpu_hours else ""
        jobs = f"{cost.known} earlier job{'s' * (cost.known != 1)}"
        yield f"{low if low == high else f'{low} to {high}'}{cards}, at the pace of {jobs}"


def _warnings(cost: SearchCost) -> Iterator[str]:
    if cost.checkpoints is False:
        twice = f"about {_units(cost.repeated, cost)} are trained twice" if cost.repeated else "none is here"
        yield f"its trials do not use {{checkpoints}}: one that is taken up again begins anew, and {twice}"


def _units(number: float, cost: SearchCost) -> str:
    return f"{number:.4g} {cost.resource or 'units of its rungs'}"


def _room(demand: Demand, outlook: Competition, most: int) -> int:
    """How many jobs like one there is room for beside those that run now."""
    free = dict(outlook.pools)
    for each in outlook.running:
        for pool, amount in each.choices[0].items():
            free[pool] = free.get(pool, 0.0) - amount
    fits = 0
    for choice in demand.choices:
        bounds = [free.get(pool, 0.0) // amount for pool, amount in choice.items() if amount > 0]
        fits = max(fits, int(min(bounds, default=most)))
    return min(fits, most)
