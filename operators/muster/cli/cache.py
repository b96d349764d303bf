"""``muster cache``: what a stage would keep, and what is never to be kept again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import DAGS, Dags, Json, example, group, open_store
from muster.cli.screen import Table, emit, safe, say, when
from muster.core.address import shown
from muster.core.names import check_job_id
from muster.core.origin import stage_title

if TYPE_CHECKING:
    from muster.volumes.base import Made, TaskEnd

_MOST_MADE = 1_000  # that are looked at, the newest
_MOST_RUNS = 1_000

app = group("Kept stages: what was made before, and is not made again.")


@app.command("ls", epilog=example("muster cache ls --dag flights", "muster cache ls --json"))
def list_made(
    *,
    dag: Annotated[str, typer.Option(help="Only what stages of this Dag made.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most rows to show.")] = 20,
    as_json: Json = False,
) -> None:
    """List what may be kept, and how many runs kept it.

    What stages made, newest first. Versions that were retired, deleted or damaged, and those that were dropped, are not in it.
    """
    store = open_store()
    found = [made for made in store.made(limit=_MOST_MADE) if dag in ("", made.spec.origin.dag_id)][:limit]
    uses = defaultdict(list)
    for end in store.ledger.task_ends(dag_id=dag, runs=_MOST_RUNS):
        uses[end.kept_of].append(end)
    if as_json:
        emit([_document(made, uses[made.job_id]) for made in found])
        return
    table = Table(["dag", "stage", "versions", "made", ">runs that kept it", "last"])
    for made in found:
        origin, kept = made.spec.origin, uses[made.job_id]
        table.add(
            origin.dag_id,
            origin.stage,
            shown(made.addresses),
            when(made.created),
            len(kept) or "",
            when(kept[0].at) if kept else "",
        )
    table.show(empty=f"nothing of {dag} can be kept" if dag else "nothing can be kept yet")


def _document(made: Made, uses: Sequence[TaskEnd]) -> dict[str, Any]:
    return {
        "job_id": made.job_id,
        "origin": made.spec.origin,
        "outputs": made.outputs,
        "created": made.created,
        "uses": [{"at": use.at, "origin": use.origin} for use in uses],
    }


@app.command("why", epilog=example("muster cache why flights train", "muster cache why flights train --json"))
def why(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The Dag's id.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The task's id.")],
    *,
    dags: Dags = DAGS,
    as_json: Json = False,
) -> None:
    """Say what a stage would keep now, and else what differs.

    Its files are compared as they are now; what only a run tells, such as Params, is that of its last job. Nothing is
    started.
    """
    from muster.airflow.embedded.would_keep import would_keep

    answers = would_keep(dag, stage, dags=dags)
    if as_json:
        emit(answers)
        return
    for each in answers:
        say(f"{safe(stage_title(each.stage, each.map_index))}: {safe(each.line)}")


@app.command("drop", epilog=example("muster cache drop flights/features@7"))
def drop(
    what: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="A version, or the job that made it: it is never kept again."),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Have a version never be kept again.

    So are all that its job made. The versions stay, and selectors find them.
    """
    store = open_store()
    job_id = store.record(what).job_id if "@" in what or "/" in what else check_job_id(what)
    known = store.forget(job_id)
    if as_json:
        emit({"job_id": job_id, "dropped": known})
    elif known:
        say(f"what job {safe(job_id)} made is not kept any more: the next run makes it again")
    else:
        say(f"nothing to drop: no run keeps what job {safe(job_id)} made")
