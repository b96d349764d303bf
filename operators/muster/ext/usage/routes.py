"""The page's routes of usage: who held how much, and what one version or job cost, of the Dags that the user may see."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query

from muster.airflow.page.access import UserRights, Who, assets
from muster.airflow.page.route import Here, Json, Text
from muster.airflow.upstream.internals import DagAccessEntity
from muster.core.address import SCHEME, Address
from muster.core.names import check_job_id
from muster.ext.usage.log import line_of
from muster.ext.usage.service import ask, deployed
from muster.ext.usage.table import NONE, UsageQuestion, UsageRow, document, usage, without

api = APIRouter(default_response_class=Json)
By = Annotated[str, Query(pattern="^(dag|team|user|class|model)$")]


@api.get("/usage")
def table(here: Here, who: Who, by: By = "dag", days: Annotated[int, Query(ge=1, le=400)] = 30) -> Json:
    """Return what was held, used and wasted in some days by each Dag, team, user, class of card or served model."""
    found = here.backend.deployments.look_at(counts=False) if by == "model" else ()
    models = deployed(filter(who.may_deployment, (each.status for each in found)))
    question = UsageQuestion(by=("dag", by), since=time.time() - days * 86_400.0, models=models)
    return _answer(who, ask(here.backend.store, question).rows, by)


@api.get("/usage/version", dependencies=[assets])
def version(here: Here, who: Who, address: Text) -> Json:
    """Return what one version, by its number, cost with its lineage."""
    exact = f"{SCHEME}{address.removeprefix(SCHEME)}"
    who.need_volume(Address.parse(exact).volume)
    question = UsageQuestion(by=("dag", "model"), since=0.0, models={exact: exact})
    return _answer(who, ask(here.backend.store, question).rows, "model")


@api.get("/usage/jobs/{job_id}")
def job(here: Here, who: Who, job_id: str) -> Json:
    """Return what one job cost, until now where it goes on."""
    ledger, now = here.backend.store.ledger, time.time()
    spec = ledger.spec(check_job_id(job_id))
    who.need(spec.origin.dag_id, DagAccessEntity.TASK_INSTANCE)
    line = line_of(spec, ledger.status(job_id), ledger.tally(job_id), ledger.series(job_id), now=now)
    return _answer(who, usage([line], UsageQuestion(by=("dag", "state"), since=0.0), now=now), "state")


def _answer(who: UserRights, rows: Iterable[UsageRow], column: str) -> Json:
    """Add up the rows of those Dags, which are the first column, that the user may see."""
    seen = [row for row in rows if who.may("" if row.keys[0] == NONE else row.keys[0])]
    return Json({"rows": [document((column,), row) for row in without(seen, 1)]})
