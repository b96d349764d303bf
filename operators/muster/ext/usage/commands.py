"""``muster usage``: who held GPUs and CPUs, and what was made of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, example, open_deployments, open_store, read_since
from muster.cli.screen import Table, emit, note, safe, say
from muster.core.address import SCHEME, Address, Select
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore


def usage(
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]",
            help="Only the jobs of its lineage: that made it, or what it was made from. Such as flights/model@7.",
        ),
    ] = None,
    *,
    by: Annotated[
        str | None,
        typer.Option(
            help="One or more of dag, task, team, user, class, state, volume, model, with commas; by default dag. "
            "A model is a version that a deployment serves, with its lineage."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Such as 30d, 12h or 2026-11-01: what was held before does not count. By default 30d; of models all."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the GPU- and CPU-hours that jobs held, used and wasted.

    The most wasted are first. Held is what was asked for, times the time in which the gang had it; wasted is what is left of that without what was used.
    Jobs that go on count until now. The log goes back 400 days, also for jobs whose own folders are deleted.
    """
    from muster.ext.usage.service import ask, deployed
    from muster.ext.usage.table import UsageQuestion, document, without

    columns = tuple(
        dict.fromkeys(name.strip() for name in (by or ("model" if version else "dag")).split(","))
    )
    every = version is not None or "model" in columns
    begin = 0.0 if every and since is None else read_since(since or "30d", now=time.time())
    try:
        question = UsageQuestion(by=columns, since=begin)
    except SpecError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from error
    gc.disable()  # two thirds of the time would go into looking for garbage among lines that are all needed
    store = open_store()
    models = {}
    if version is not None:
        models = {_exact(version, store): version.removeprefix(SCHEME)}
    elif "model" in columns:
        models = deployed(each.status for each in open_deployments().look_at(counts=False))
        if not models:
            note("no deployment serves a model: name a version, such as muster usage flights/model@7")
    found = ask(store, replace(question, models=models))
    if as_json:
        emit({"by": columns, "since": begin, "rows": [document(columns, row) for row in found.rows]})
        return
    shown = Table([*columns, ">jobs", ">GPU-hours", ">used", ">wasted", ">CPU-hours", ">used", ">wasted"])
    for row in found.rows:
        shown.add(*row.keys, row.jobs, *map(_hours, (*row.gpu[:3], *row.cpu[:3])))
    shown.show(empty="no job held anything in this time")
    for row in without(found.rows, len(columns)):
        if version is not None:
            what, (held, _, wasted, _) = ("GPU", row.gpu) if row.gpu[0] else ("CPU", row.cpu)
            say(
                f"{safe(version.removeprefix(SCHEME))} cost {_hours(held)} {what}-hours, {_hours(wasted)} wasted"
            )
        if row.gpu[3] or row.cpu[3]:
            said = f"{_hours(row.gpu[3])} GPU-hours, {_hours(row.cpu[3])} CPU-hours"
            note(f"not measured, so neither used nor wasted: {said}")


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2f}"


def _exact(version: str, store: LocalStore) -> str:
    """Return a version's address with its number; that of one which gc deleted has to have it."""
    address = Address.parse(version)
    if address.select is Select.NUMBER:
        return f"{SCHEME}{address.volume}@{address.value}"
    return store.resolve(version)[-1].address


def budget(
    whose: Annotated[
        str | None, typer.Argument(metavar="[WHOSE]", help="dag:NAME or team:NAME, to set its budget.")
    ] = None,
    *,
    gpu_hours: Annotated[float | None, typer.Option(help="Hours of one card.")] = None,
    cpu_hours: Annotated[float | None, typer.Option(help="Hours of one core.")] = None,
    none: Annotated[bool, typer.Option("--none", help="It has no budget any more.")] = False,
    as_json: Json = False,
) -> None:
    """Show the budgets of Dags and teams, or set one.

    Jobs beyond the budget of a month wait for the next one, or a higher one; what runs goes on. A Dag sets its own by budget=, with each
    job that it submits.
    """
    from muster.core.tally import HourBudget
    from muster.ext.usage.budgets import BudgetQuestion
    from muster.ext.usage.service import ask_budgets

    given = {}
    if whose is not None:
        given[whose] = None if none else HourBudget(gpu_hours=gpu_hours, cpu_hours=cpu_hours)
    elif none or gpu_hours is not None or cpu_hours is not None:
        raise typer.BadParameter("name whose budget it is: dag:NAME or team:NAME", param_hint="WHOSE")
    found = ask_budgets(open_store(make=bool(given)), BudgetQuestion(given=given), keep=bool(given)).budgets
    if as_json:
        emit(found)
        return
    shown = Table(["whose", ">GPU-hours", ">used", ">CPU-hours", ">used"])
    for each in found:
        gpu, cpu = (
            f"{most:g}" if most is not None else "-"
            for most in (each.budget.gpu_hours, each.budget.cpu_hours)
        )
        shown.add(each.whose, gpu, _hours(each.gpu_hours), cpu, _hours(each.cpu_hours))
    shown.show(empty="no Dag and no team has a budget")


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command(
        "usage",
        epilog=example(
            "muster usage",
            "muster usage --by team,user --since 7d",
            "muster usage --by model",
            "muster usage flights/model@7",
        ),
    )(usage)
    groups[""].command(
        "budget", epilog=example("muster budget", "muster budget team:vision --gpu-hours 500")
    )(budget)
