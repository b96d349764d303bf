"""Plans a stage that searches: how many trials there is room for, what they cost, and the lines that say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.airflow.authoring.entrypoints import uses_checkpoints
from muster.airflow.authoring.references import is_known
from muster.core.text import lasting
from muster.ext.search.cost import SearchCost, estimate, pace

if TYPE_CHECKING:
    from muster.airflow.authoring.code import DagFolder
    from muster.backends.base import Backend
    from muster.backends.forecast import Competition, Demand, TaskCost
    from muster.core.job import JobSpec
    from muster.ext.search.operator import SearchOperator


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
