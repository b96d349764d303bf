"""``muster cache``: what a stage would keep, and what is never to be kept again."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.command import DAGS, Dags, Json, example, group, open_store
from muster.cli.screen import emit, safe, say
from muster.core.names import check_job_id

app = group("Kept stages: what was made before, and is not made again.")


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
        label = each.stage if each.map_index < 0 else f"{each.stage}[{each.map_index}]"
        say(f"{safe(label)}: {safe(each.line)}")


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
