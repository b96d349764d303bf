"""``muster plan``: what a run of a Dag would do now, before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.capacity import needs
from muster.cli.command import DAGS, Dags, Json, Params, example
from muster.cli.run import read_param
from muster.cli.screen import Table, emit, note, safe, say, seconds
from muster.core.address import short
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.forecast import Span
    from muster.ext.plan.plan import PlannedStage, RunPlan, Starts

SHOWN = 3


def plan(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The Dag's id.")],
    *,
    param: Params = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Plan a run that keeps no stage of earlier runs.")
    ] = False,
    dags: Dags = DAGS,
    as_json: Json = False,
) -> None:
    """Show what a run of a Dag would do now; nothing is submitted.

    For each stage: whether it is kept or runs and why, its image, what it asks for, and when it starts: now, after a
    wait (the median, and what nine in ten stay below), or never, and why. Durations are those of earlier runs. A
    stage whose inputs come from one that would run is not known further. Of a search: its trials, epochs and time.
    """
    found = plan_dag(dag, params=dict(map(read_param, param or [])), cache=not no_cache, dags=dags)
    if as_json:
        emit(found)
    else:
        show(found)


def plan_dag(
    dag_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    cache: bool = True,
    settings: Settings | None = None,
    dags: Path | None = None,
) -> RunPlan:
    """Return what a run of a Dag would do now; nothing is submitted or built.

    It makes this process an Airflow, as :func:`muster.airflow.embedded.runner.run_dag` does.

    :param params: as of `run_dag`. :param cache: False plans a run that keeps nothing, as ``--no-cache``.
    :raises MusterError: no such Dag, a wrong param, a cluster that is away.
    """
    from muster.airflow.embedded.home import EmbeddedHome, quieten

    settings = settings or Settings.load()
    home = EmbeddedHome(settings=settings, dags=(dags or Path("dags")).absolute())
    home.enter()
    from muster.airflow.embedded.load import parse
    from muster.airflow.site import connect

    quieten(home.log)
    from muster.ext.plan.planner import Planner  # it imports Airflow, which is quiet by now

    dag = parse(dag_id, home.dags)
    return Planner(dag, params or {}, connect(settings), settings, cache=cache).plan()


def show(found: RunPlan) -> None:
    """Print a plan: one line a stage, then what cannot run and why, then the sums."""
    table = Table(["stage", "does", "image", "needs", "starts", ">takes"])
    for stage in found.stages:
        table.add(
            stage.label, stage.does.value, _image(stage), _needs(stage), _starts(stage), _takes(stage.start)
        )
    table.show(empty="no stages")
    lines = [line for stage in found.stages for line in _told(stage)]
    if lines:
        say()
    for line in lines:
        say(line)
    say(f"\n{_sum(found)}")
    for line in filter(None, (*found.warnings, found.unseen)):
        note(safe(line))


def _image(stage: PlannedStage) -> str:
    if stage.image is None:
        return "-"
    return stage.image + {True: "", False: ", to be built", None: ""}[stage.image_built]


def _needs(stage: PlannedStage) -> str:
    return needs(stage.needs) if stage.needs and stage.start is not None else "-"


def _starts(stage: PlannedStage) -> str:
    start = stage.start
    if start is None:
        return "-"
    if start.starts is None:
        return start.when.value
    return "now" if start.starts.p90 <= 0 else f"in {_span(start.starts)}"


def _takes(start: Starts | None) -> str:
    if start is None or start.starts is None:
        return "-"
    return "not known" if start.ends is None else seconds(start.ends.p50 - start.starts.p50)


def _span(span: Span) -> str:
    """Write ``12 s to 40 s``; one time where both are alike."""
    low, high = seconds(span.p50), seconds(span.p90)
    return low if low == high else f"{low} to {high}"


def _told(stage: PlannedStage) -> Iterator[str]:
    """Yield what a table has no room for."""
    label = safe(stage.label)
    if stage.why:
        yield f"{label}: {safe(stage.why)}"
    yield from (f"{label}: {safe(text)}" for text in stage.warnings)
    if stage.deploys is not None:
        model, instead = stage.deploys.model, stage.deploys.instead_of
        how = f"in place of {safe(short(instead))}" if instead else "as the first version"
        how = "as it does now" if model == instead else how
        yield f"{label}: {safe(stage.deploys.name)} serves {safe(short(model))}, {how}"
    start = stage.start
    if start is None:
        return
    if start.why:
        yield f"{label}: {start.when.value}: {safe(start.why)}"
    if start.ahead:
        more = f" and {len(start.ahead) - SHOWN} more" if len(start.ahead) > SHOWN else ""
        names = ", ".join(map(safe, start.ahead[:SHOWN]))
        yield f"{label}: place {len(start.ahead) + 1} of queue {safe(start.queue)}, behind {names}{more}"
    if start.starts is not None and start.ends is None and stage.search is None:
        yield f"{label}: no run of it has ended here, so how long it takes is not known"


def _sum(found: RunPlan) -> str:
    from muster.ext.plan.plan import Does

    runs = sum(stage.start is not None for stage in found.stages)
    parts = [f"{safe(found.dag_id)}: {runs} of {len(found.stages)} stages run"]
    if deploys := sum(stage.does is Does.DEPLOYS for stage in found.stages):
        parts.append(f"{deploys} deploy{'s' * (deploys == 1)}")
    more = any(stage.start is not None and stage.cpu_hours is None for stage in found.stages)
    for hours, what in ((found.gpu_hours, "GPU"), (found.cpu_hours, "CPU")):
        if hours:
            parts.append(f"{'more than ' * more}{hours:.3g} {what}-hours")
    if found.ends is not None:
        parts.append(f"ends in {_span(found.ends)}")
    elif runs:
        parts.append("when it ends is not known")
    return ", ".join(parts)


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command(
        "plan",
        epilog=example("muster plan flights --param epochs=6", "muster plan flights --json | jq .gpu_hours"),
    )(plan)
