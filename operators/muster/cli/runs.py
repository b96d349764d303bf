"""``muster runs``: runs of Dags, each with its stages; what one did, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, example, group, open_store
from muster.cli.screen import Table, emit, fields, note, safe, say, seconds, when
from muster.core.errors import NotFound, SpecError
from muster.core.origin import stage_title

if TYPE_CHECKING:
    from muster.volumes.lineage import StageDifference
    from muster.volumes.protocols import LocalStore
    from muster.volumes.runs import Run, RunStage

app = group("Runs of Dags: stages, params, metrics, versions, durations.")

Which = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's id or the start of it, DAG/RUN, or a Dag for its newest run; of several the newest is taken.",
    ),
]


@app.command(
    "ls", epilog=example("muster runs ls --dag flights", "muster runs ls --json | jq -r '.[0].run_id'")
)
def list_runs(
    *,
    dag: Annotated[str | None, typer.Option(help="Only runs of this Dag.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most runs to show.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first.

    A run is made of muster's tasks; those of other operators are Airflow's alone.
    """
    from muster.volumes import runs

    dead = unended()
    found = [runs.as_held(run, dead) for run in runs.runs(open_store(), dag=dag, limit=limit)]
    if as_json:
        emit(found)
        return
    table = Table(["dag", "run", "state", "began", ">took", ">stages", "metrics"])
    for run in found:
        table.add(
            run.dag_id,
            run.run_id,
            run.state.value,
            when(run.began),
            seconds(run.seconds),
            len(run.stages),
            _metrics(run),
        )
    table.show(empty=f"no runs of {dag}: `muster runs ls` lists those of all Dags" if dag else "no runs yet")


def unended() -> dict[str, bool]:
    """Return the runs of `muster run` that have not come to their end here, and whether the process of each has died."""
    from muster.airflow.embedded.home import EmbeddedHome
    from muster.core.settings import Settings

    return EmbeddedHome(settings=Settings.load(), dags=Path()).notes.unended()


def _metrics(run: Run) -> str:
    """Return the metrics of the last stage that has some."""
    from muster.cli.lineage import values

    return next((values(stage.metrics) for stage in reversed(run.stages) if stage.metrics), "")


@app.command("show", epilog=example("muster runs show flights", "muster runs show flights/muster__2013-03"))
def show(run: Which, *, as_json: Json = False) -> None:
    """Show one run: its stages, params, metrics, inputs and versions."""
    from muster.volumes import runs

    store, dead = open_store(), unended()
    found = runs.as_held(find(store, run), dead)
    if as_json:
        emit(found)
        return
    say(typer.style(f"{safe(found.dag_id)} / {safe(found.run_id)}", bold=True))
    fields(
        [
            ("state", found.state.value),
            ("began", when(found.began)),
            ("took", seconds(found.seconds)),
            ("airflow", found.instance),
            ("its process", _died(store, found) if dead.get(found.run_id) else None),
        ]
    )
    for stage in found.stages:
        say()
        _show_stage(stage)


def _died(store: LocalStore, run: Run) -> str:
    """Say that a run's process died; and how the run goes on, which of a Dag's runs the last one alone does."""
    from muster.core.origin import MUSTER_RUN
    from muster.volumes import runs

    later = [each for dag_id, each in runs.names(store) if dag_id == run.dag_id and each > run.run_id]
    last = not any(each.startswith(MUSTER_RUN) for each in later)
    return f"died: muster run {safe(run.dag_id)} --resume" if last else "died"


def _show_stage(stage: RunStage) -> None:
    took = "" if stage.seconds is None else f"  {seconds(stage.seconds)}"
    state = "kept" if stage.kept_of else stage.state.value
    say(f"{typer.style(safe(stage.title), bold=True)}  {state}{took}")
    fields((f"  {name}", value) for name, value in _facts(stage))
    if stage.verdict:
        say(f"  {safe(stage.verdict)}", style="red")


def _facts(stage: RunStage) -> Iterator[tuple[str, object]]:
    from muster.cli.lineage import inputs, values
    from muster.core.data import CHECKPOINTS
    from muster.core.ingest import ENTRYPOINT

    yield "params", values(stage.params)
    yield "metrics", values(stage.metrics)
    for name, versions in stage.inputs.items():
        yield "input", f"{name} = {inputs(versions)}"
    for name, addresses in stage.versions.items():
        short = [address.removeprefix("volume://") for address in addresses]
        # The job of an ingest writes its data where others write checkpoints.
        said = "data" if name == CHECKPOINTS and stage.entrypoint == ENTRYPOINT else name
        yield (
            "kept" if stage.kept_of else "made",
            f"{said} = {', '.join(short[:3])}{f' … ({len(short)} in all)' if len(short) > 3 else ''}",
        )
    for job in stage.jobs:
        took = "" if job.seconds is None else f"  {seconds(job.seconds)}"
        yield "job", f"{job.job_id}  {job.state.value}{took}"
    if stage.kept_of:
        yield "made by", f"job {stage.kept_of}"
    elif stage.line:
        yield "said", stage.line
    elif not stage.jobs and stage.versions:
        yield "job", "deleted by gc: its versions' records are left"


@app.command("diff", epilog=example("muster runs diff flights/muster__2013-02 flights/muster__2013-03"))
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A run, as `muster runs show` takes it.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another.")],
    *,
    as_json: Json = False,
) -> None:
    """Compare two runs, stage by stage.

    Code with its files, the image's lock, inputs by digest, params, metrics and durations.
    """
    from muster.volumes.lineage import stages

    store = open_store()
    before, after = find(store, old), find(store, new)
    found = [(each, _code(store, each)) for each in stages(before, after)]
    if as_json:
        ids = [{"dag_id": run.dag_id, "run_id": run.run_id} for run in (before, after)]
        emit({"old": ids[0], "new": ids[1], "stages": [{**vars(each), "code": code} for each, code in found]})
        return
    for each, code in found:
        _show_difference(each, code)
    if not any(each.facts or each.only for each, _ in found):
        note("nothing but the durations differs")


def _code(store: LocalStore, each: StageDifference) -> list[str]:
    from muster.cli.diff import changed_code

    digests = next(((fact.old, fact.new) for fact in each.facts if fact.name == "code"), (None, None))
    return list(changed_code(store, *digests))


def _show_difference(each: StageDifference, code: list[str]) -> None:
    from muster.cli.diff import show_facts

    title = stage_title(each.task_id, each.map_index)
    if each.only:
        sign, colour = ("+", "green") if each.only == "new" else ("-", "red")
        say(f"{sign} {safe(title)}: only in the {each.only} run", style=colour)
        return
    was, now = (seconds(took) for took in each.seconds)
    say(f"{typer.style(safe(title), bold=True)}  {was} → {now}")
    show_facts(each.facts, code)


def find(store: LocalStore, text: str) -> Run:
    """Return the run that `text` names: an id, the start of one, ``DAG/RUN``, or a Dag for its newest run.

    Of several runs of one Dag it is the newest, and a note says so.

    :raises NotFound: there is none. :raises SpecError: runs of several Dags begin so.
    """
    from muster.volumes import runs

    known = runs.names(store)
    dag, slash, rest = text.partition("/")
    matches = [name for name in known if name[1] == text or name == (dag, rest)]
    if not matches:
        matches = [name for name in known if slash and name[0] == dag and name[1].startswith(rest)]
    if not matches:
        matches = [name for name in known if text and (name[0] == text or name[1].startswith(text))]
    if not matches and slash:
        return runs.run(store, dag, rest)  # gc may have deleted its jobs, not its versions
    if not matches:
        last = (
            f"the newest is {'/'.join(known[-1])}; `muster runs ls` lists them"
            if known
            else "there are no runs yet"
        )
        raise NotFound(f"no run {text!r:.80}: {last}")
    if len({dag_id for dag_id, _ in matches}) > 1:
        shown = ", ".join("/".join(name) for name in matches[-5:])
        raise SpecError(f"{text!r:.80} names runs of several Dags ({shown}): write DAG/RUN")
    if len(matches) > 1:
        note(f"the newest of {len(matches)} runs: {matches[-1][1]}")
    return runs.run(store, *matches[-1])
