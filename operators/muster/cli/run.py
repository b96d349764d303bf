"""``muster run``: one Dag from its first stage to its last, on this machine, under real Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from muster.cli.command import Json
from muster.cli.screen import emit, note
from muster.cli.warm import here
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.airflow.embedded.result import RunResult

INTERRUPTED = 130
STARTING = "starting Airflow"


class Resume(str, Enum):
    """How much of the last run is kept."""

    KEEP = "keep"
    STRICT = "strict"


class Resumable(TyperCommand):
    """Lets ``--resume`` stand alone: click's options take a value always or never."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after ``run``."""
        keep = f"--resume={Resume.KEEP.value}"
        return super().parse_args(ctx, [keep if word == "--resume" else word for word in args])


def run(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The Dag's id.")],
    *,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="A Param of the Dag; lists and objects as JSON."
        ),
    ] = None,
    resume: Annotated[
        Resume | None,
        typer.Option(
            "--resume",
            metavar="[=strict]",
            help="Go on from the first stage that did not succeed; strict also runs again what changed.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="Run this stage of the last run again, and what follows it."
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="STAGE", help="Run this stage of the last run again, alone."),
    ] = None,
    serial: Annotated[
        bool,
        typer.Option("--serial", help="Run one stage after the other, each on this terminal itself."),
    ] = False,
    dags: Annotated[Path, typer.Option("--dags", help="The folder of Dags.")] = Path("dags"),
    as_json: Json = False,
) -> None:
    """Run a Dag from its first stage to its last.

    Missing environments are built first. Stages that do not wait for each other run side by side, as far as the
    machine has room and Airflow's limits allow (pools, max_active_tasks, max_active_tis_per_dagrun). --serial runs one
    after the other, and a breakpoint() in a @task then works. --resume needs no id: it goes on with the last run from
    the first stage that did not succeed. A kept stage whose own code changed is named in a warning; with
    --resume=strict it runs again. Ctrl-C ends the running jobs, and with them the run; --resume goes on from there,
    and a stage that saves checkpoints from its last one. --from and --only keep the earlier stages of the last run
    as --resume does, and run a stage again that had succeeded.
    """
    params = dict(map(read_param, param or []))
    ended = _run_there(dag, dags=dags, params=params, resume=resume, start=start, only=only)
    if ended is not None:
        raise typer.Exit(ended)
    result = execute(dag, params=params, resume=resume, start=start, only=only, serial=serial, dags=dags)
    finish(result, as_json=as_json)


def _run_there(
    dag: str,
    *,
    dags: Path,
    params: Mapping[str, Any],
    resume: Resume | None,
    start: str | None,
    only: str | None,
) -> int | None:
    """Have the waiting process run this command, and return its exit code; None if it is to run here."""
    from muster.airflow.embedded.home import EmbeddedHome
    from muster.airflow.embedded.runner import Wanted, needs_airflow
    from muster.cli.screen import answers_go_to
    from muster.cli.warm.client import end_as, run_there
    from muster.core.settings import Settings

    home = EmbeddedHome(settings=Settings.load(), dags=dags.absolute())
    home.check()
    wanted = Wanted(params=params, resume=None if resume is None else resume.value, start=start, only=only)
    if not needs_airflow(dag, home, wanted):
        return None
    ended = run_there(home, stdout=answers_go_to(), starting=lambda: note(STARTING))
    return None if ended is None else end_as(ended)


def read_param(text: str) -> tuple[str, str]:
    """Split ``month=2013-11``; the Dag's Param says of which type the value is.

    :raises SpecError: there is no name before a ``=``.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SpecError(f"param {text!r:.80}: write it as NAME=VALUE, such as month=2013-11")
    return name, value


def execute(
    dag: str,
    *,
    params: Mapping[str, Any],
    resume: Resume | None,
    dags: Path,
    start: str | None = None,
    only: str | None = None,
    serial: bool = False,
) -> RunResult:
    """Run a Dag while showing it on stderr; see :func:`muster.airflow.embedded.runner.run_dag`."""
    from muster.cli.stages import view

    with view() as listener:
        if not here.forked:
            listener.note(STARTING)
        from muster.airflow.embedded.runner import run_dag

        return run_dag(
            dag,
            params=params,
            resume=None if resume is None else resume.value,
            dags=dags,
            listener=listener,
            start=start,
            only=only,
            serial=serial,
        )


def finish(result: RunResult, *, as_json: bool = False) -> None:
    """Print how a run ended and leave with its exit code: 0, 1, or 130 where it was interrupted."""
    from muster.cli import run_summary

    if as_json:
        emit(result)
    else:
        run_summary.show(result)
    if not result.succeeded:
        run_summary.complain_of(result)
        raise typer.Exit(INTERRUPTED if result.state == "interrupted" else 1)
