"""``muster run``: runs one Dag from its first stage to its last, on this machine, under real Airflow."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from muster.cli import warm
from muster.cli.command import DAGS, Dags, Json, Params
from muster.cli.screen import emit, note
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.airflow.embedded.home import EmbeddedHome
    from muster.airflow.embedded.result import RunResult
    from muster.airflow.embedded.runner import Wanted

INTERRUPTED, NOTHING_TO_RESUME = 130, 3
STARTING = "starting Airflow"


class ResumeMode(str, Enum):
    """Which stages of the last run are kept."""

    KEEP = "keep"
    STRICT = "strict"


class Resumable(TyperCommand):
    """Lets ``--resume`` have a value or none: an option of click always or never has one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after ``run``."""
        keep = f"--resume={ResumeMode.KEEP.value}"
        return super().parse_args(ctx, [keep if word == "--resume" else word for word in args])


def run(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The Dag's id.")] = "",
    *,
    param: Params = None,
    resume: Annotated[
        ResumeMode | None,
        typer.Option(
            "--resume",
            metavar="[=strict]",
            help="Continue the last run at the first stage that did not succeed; strict also reruns changed stages.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="STAGE", help="Rerun this stage of the last run, and all after it."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="STAGE", help="Rerun only this stage of the last run."),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Make every stage anew, also those that earlier runs made of the same."
        ),
    ] = False,
    serial: Annotated[
        bool,
        typer.Option("--serial", help="Run one stage after the other, each on this terminal itself."),
    ] = False,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer", metavar="STAGE=OPTION", help="The answer to a stage that asks a person; repeatable."
        ),
    ] = None,
    dags: Dags = DAGS,
    as_json: Json = False,
) -> None:
    """Run a Dag from its first stage to its last.

    Missing environments are built first. Stages that do not wait for each other run side by side, as far as the machine
    has room and Airflow's limits allow (pools, max_active_tasks, max_active_tis_per_dagrun). --serial runs one after the
    other, and a breakpoint() in a @task then works. --resume needs no run id: it continues the last run at the first
    stage that did not succeed. A warning names each kept stage whose own code changed; --resume=strict reruns it. Ctrl-C
    ends the running jobs and the run; --resume continues there, and a stage with checkpoints at its last one. --from and
    --only keep the earlier stages of the last run as --resume does, and rerun a stage that succeeded. If the last run has
    succeeded and --resume keeps all of it, nothing runs and the exit code is 3.
    """
    from muster.airflow.embedded.home import EmbeddedHome
    from muster.airflow.embedded.runner import Wanted
    from muster.core.settings import Settings

    _refuse_file(dag, dags)
    such_as = "STAGE=OPTION, such as approve=Approve"
    params = dict(map(read_param, param or []))
    home = EmbeddedHome(settings=Settings.load(), dags=dags.absolute())
    home.check()
    wanted = Wanted(
        params=params,
        resume=None if resume is None else resume.value,
        start=start,
        only=only,
        no_cache=no_cache,
        serial=serial,
        answers=dict(read_param(text, what="answer", such_as=such_as) for text in answer or []),
    )
    with suppress(OSError):  # the error is reported where the run is noted
        home.settings.make_home()
    with nullcontext() if wanted.goes_on or not dag or warm.forked else home.notes.announced(dag, params):
        ended = _run_there(dag, home, wanted)
        if ended is not None:
            raise typer.Exit(ended)
        result = execute(dag, wanted, dags=dags)
    finish(result, as_json=as_json)


def _refuse_file(dag: str, dags: Path) -> None:
    """Refuse a Dag's file in the place of its id. :raises SpecError: it says which Dags the folder of Dags has."""
    if dag.endswith(".py") or "/" in dag:
        raise SpecError(
            f"{dag!r:.120} names a file: name its Dag, by the id that the file gives it, as in `muster run NAME`; "
            f"`muster run` lists those of {dags}"
        )


def _run_there(dag: str, home: EmbeddedHome, wanted: Wanted) -> int | None:
    """Have the waiting process run this command, and return its exit code; None if it is to run here."""
    from muster.airflow.embedded.runner import needs_airflow
    from muster.cli.screen import answers_go_to
    from muster.cli.warm.client import end_as, run_there

    if not needs_airflow(dag, home, wanted):
        return None
    ended = run_there(home, stdout=answers_go_to(), starting=lambda: note(STARTING))
    return None if ended is None else end_as(ended)


def read_param(
    text: str, *, what: str = "param", such_as: str = "NAME=VALUE, such as month=2013-11"
) -> tuple[str, str]:
    """Split ``month=2013-11``; the Dag's Param determines the value's type.

    :raises SpecError: there is no name or no ``=``.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SpecError(f"{what} {text!r:.80}: write it as {such_as}")
    return name, value


def execute(dag: str, wanted: Wanted, *, dags: Path) -> RunResult:
    """Run a Dag and show its progress on stderr; see :func:`muster.airflow.embedded.runner.run_dag`."""
    from muster.cli import run_summary  # noqa: F401 - by the end of the run another release's may be there
    from muster.cli.stages import view

    with view() as listener:
        if not warm.forked:
            listener.note(STARTING)
        from muster.airflow.embedded.runner import run_dag

        return run_dag(dag, wanted, dags=dags, listener=listener)


def finish(result: RunResult, *, as_json: bool = False) -> None:
    """Print how a run ended, and exit with its code: 0, 1, 3 if nothing was left to run, or 130 if it was interrupted."""
    from muster.cli import run_summary

    if as_json:
        emit(result)
    else:
        run_summary.show(result)
    if not result.succeeded:
        run_summary.complain_of(result)
        raise typer.Exit(INTERRUPTED if result.state == "interrupted" else 1)
    if result.nothing_ran:
        raise typer.Exit(NOTHING_TO_RESUME)
