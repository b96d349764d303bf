"""``muster search``: searches, their rungs and their trials."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.backends.tracking import PORT, tracking_database, tracking_uri
from muster.cli.command import Json, example, group, open_backend, open_store, person
from muster.cli.foreground import check_port, python_of_image, serve
from muster.cli.screen import Table, emit, fields, note, safe, say, seconds, when
from muster.core.errors import NotFound
from muster.core.interpreters import python_command
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.ext.search.overview import SearchOverview
    from muster.volumes.protocols import Store


_APP = "mlflow.server.fastapi_app:app"


def mlflow(
    *,
    image: Annotated[str, typer.Option(help="The image with MLflow.")] = "mlflow",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = PORT,
) -> None:
    """Show the MLflow runs of this machine's jobs, until Ctrl-C.

    A job gets the database's address in MLFLOW_TRACKING_URI, unless its task's env sets another. The first use builds an
    image. While the server runs, the link "MLflow run" of a task in Airflow leads to it; for a port other than 5000, set
    mlflow_url under [muster] in Airflow's configuration.
    """
    settings = Settings.load()
    database = tracking_database(settings.home)
    if not database.is_file():
        raise NotFound(
            f"no job here has tracked a run: there is no {database}. A job that calls mlflow.log_metric(…), in an "
            "image with mlflow-skinny, sqlalchemy and alembic, creates it; on a cluster the task's env names the MLflow server"
        )
    check_port(port)
    image_python = python_of_image(image)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends with this process
    say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
    # `mlflow server` would start a child process for this, and more for its own jobs; they would outlive it.
    where = ("--host", "127.0.0.1", "--port", str(port))
    server = python_command("-m", "uvicorn", *where, _APP, of=image_python, isolated=True)
    serve("MLflow", server, folder=database.parent, variables={"MLFLOW_TRACKING_URI": tracking_uri(database)})


app = group("Searches: their rungs, their trials, the best trial.")

Which = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH", help="A search's id or the start of it, a Dag, or DAG/TASK; of several the newest."
    ),
]


@app.command("ls", epilog=example("muster search ls", "muster search ls --json | jq -r '.[0].search_id'"))
def list_searches(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most searches to show.")] = 20,
    as_json: Json = False,
) -> None:
    """List searches, newest first."""
    from muster.ext.search.stored import KIND

    store = open_store()
    found = [_look(store, search_id) for search_id in store.logs(KIND)[:limit]]
    if as_json:
        emit([{**vars(each), "trials": len(each.trials)} for each in found])
        return
    table = Table(["search", "task", "state", "began", ">took", ">trials", ">running", "best"])
    for each in found:
        tried = f"{len(each.trials)} of {each.most}"
        task, took = f"{each.dag_id}.{each.stage}", seconds((each.ended or time.time()) - each.began)
        table.add(
            each.search_id, task, each.state.value, when(each.began), took, tried, each.running, _best(each)
        )
    table.show(empty="no searches yet")


@app.command(
    "show",
    epilog=example("muster search show flights_search", "muster search show flights_search --trials 50"),
)
def show(
    search: Which,
    *,
    trials: Annotated[int, typer.Option(min=0, help="The most trials to show, the best first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a search: its rungs and its trials, with what each does now."""
    from muster.ext.search.driver import look_up
    from muster.ext.search.importance import importance
    from muster.ext.search.overview import find_search, overview

    backend = open_backend()
    search_id = find_search(backend.store, search)
    spec, state = look_up(backend.store, search_id)
    found = overview(search_id, spec, state)
    if as_json:
        emit(found)
        return
    say(typer.style(safe(found.search_id), bold=True))
    took = (found.ended or time.time()) - found.began
    fields(
        [
            ("task", f"{found.dag_id}.{found.stage}, {found.run_id}"),
            ("state", found.state.value),
            ("reason", found.reason),
            ("waits", found.waits),
            ("rules", found.rules),
            (
                "began",
                f"{when(found.began)}, {seconds(took)} ago" if found.ended is None else when(found.began),
            ),
            ("took", "" if found.ended is None else seconds(took)),
            (
                "trials",
                f"{len(found.trials)} of at most {found.most}, {found.running} running, {found.failed} failed",
            ),
            ("best", _best(found)),
            *((f"  {name}", text) for name, text in found.space.items()),
        ]
    )
    say()
    rungs = Table([">rung", ">reached", ">paused", f">best {found.metric}", ""])
    for rung in found.rungs:
        bar = "█" * round(30 * rung.reached / max(1, len(found.trials)))
        rungs.add(f"{rung.at:g}", rung.reached, rung.paused, _number(rung.best), bar or " ")
    rungs.show(empty="")
    shares = [each for each in importance(spec.spec, state.trials) if each.matters]
    if shares:
        told = ", ".join(f"{safe(each.param)} {each.share:.0%}" for each in shares)
        say(f"\nmatters at {found.rungs[0].at:g}: {told}; the others no more than chance would")
    say()
    _show_trials(found, trials, backend)


def _show_trials(found: SearchOverview, most: int, backend: Any) -> None:
    running = [each.jobs[-1] for each in found.trials if each.phase.value == "running"]
    states = {job_id: _doing(status) for job_id, status in backend.statuses(running).items()}
    table = Table([">trial", "phase", ">at", f">{found.metric}", "job", "params"])
    for each in found.trials[:most]:
        job = each.jobs[-1] if each.jobs else ""
        doing = states.get(job, each.phase.value)
        table.add(each.trial, doing, f"{each.at:g}", _number(each.value), job, _params(each.params))
    table.show(empty="no trial yet")
    if len(found.trials) > most:
        note(f"{len(found.trials) - most} more: --trials {len(found.trials)}")
    for each in found.trials:
        if each.phase.value == "failed":
            note(f"trial {each.trial} failed: {safe(each.reason)}")
            break


@app.command(
    "best",
    epilog=example(
        "muster search best flights_search", "muster search best flights_search --json | jq .params"
    ),
)
def best(search: Which, *, as_json: Json = False) -> None:
    """Show the best trial: its params, metrics and versions.

    While the search runs, it is the best one so far.
    """
    from muster.ext.search.overview import find_search

    store = open_store()
    found = _look(store, find_search(store, search))
    row = found.best_row
    if row is None:
        raise NotFound(f"search {found.search_id}: no trial has told {found.metric} yet")
    status = store.ledger.status(row.jobs[-1])
    versions = status.result.outputs if status.result is not None else {}
    metrics = status.result.metrics if status.result is not None else {}
    if as_json:
        emit({"search_id": found.search_id, **vars(row), "metrics": metrics, "versions": versions})
        return
    say(f"{typer.style(f'trial {row.trial}', bold=True)}  {found.metric}={_number(row.value)}")
    fields(
        [
            *row.params.items(),
            ("metrics", ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())),
            *((name, ", ".join(each)) for name, each in versions.items()),
            ("jobs", ", ".join(row.jobs)),
        ]
    )


@app.command("cancel", epilog=example("muster search cancel flights_search"))
def cancel(search: Which) -> None:
    """End a search and its trials; its task fails.

    A search that has already ended stays as it is.
    """
    from muster.ext.search.driver import SearchDriver
    from muster.ext.search.overview import find_search

    backend = open_backend(patient=True)
    search_id = find_search(backend.store, search)
    driver = SearchDriver(backend, search_id)
    if not driver.cancel(f"{person()} cancelled it with `muster search cancel`"):
        note(f"{search_id} had ended already")
        return
    say(f"{search_id}: cancelled, {len(driver.state.running)} trials are ended")


def _look(store: Store, search_id: str) -> SearchOverview:
    from muster.ext.search.driver import look_up
    from muster.ext.search.overview import overview

    return overview(search_id, *look_up(store, search_id))


def _best(found: SearchOverview) -> str:
    row = found.best_row
    return (
        ""
        if row is None
        else f"{found.metric}={_number(row.value)} by trial {row.trial} {_params(row.params)}"
    )


def _doing(status: Any) -> str:
    progress = ", ".join(f"{name} {told}" for name, told in status.progress.items() if told.total is not None)
    return f"{status.state.value} {progress}".rstrip()


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in params.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].add_typer(app, name="search")
    groups[""].command("mlflow", epilog=example("muster mlflow", "muster mlflow --port 5001"))(mlflow)
