"""The page's routes of usage: who held how much, and what one version or job cost, of the Dags that the user may see."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from muster.airflow.page.access import UserRights, Who, assets
from muster.airflow.page.route import Here, Json, Text
from muster.airflow.upstream.internals import DagAccessEntity
from muster.core.address import Address, pinned
from muster.core.names import check_job_id
from muster.ext.usage.log import line_of
from muster.ext.usage.service import UsageTable, ask, deployed
from muster.ext.usage.table import NONE, UsageQuestion, cost, document, hours, usage, without

api = APIRouter(default_response_class=Json)

_DAY_SECONDS = 86_400.0

By = Annotated[str, Query(pattern="^(dag|team|user|class|model)$")]
Days = Annotated[int, Query(ge=1, le=400)]


@api.get("/usage")
def table(here: Here, who: Who, by: By = "dag", days: Days = 30) -> Json:
    """Return what was held, used and wasted in some days by each Dag, team, user, class of card or served model."""
    models = deployed(here.backend.deployments, who.may_deployment) if by == "model" else {}
    question = UsageQuestion(by=("dag", by), since=time.time() - days * _DAY_SECONDS, models=models)
    rows = without(_seen(who, ask(here.backend.store, question)).rows, 1) if models or by != "model" else []
    return Json({"rows": [document((by,), row) for row in rows]})


@api.get("/usage/version", dependencies=[assets])
def version(here: Here, who: Who, address: Text) -> Json:
    """Return what one version cost with its lineage."""
    store = here.backend.store
    who.need_volume(Address.parse(address).volume)
    record = store.record(address)
    exact = pinned(record.volume, record.number)
    question = UsageQuestion(by=("dag", "model"), since=0.0, models={exact: exact})
    return _said(_seen(who, ask(store, question)))


@api.get("/usage/jobs/{job_id}")
def job(here: Here, who: Who, job_id: str) -> Json:
    """Return what one job cost, until now where it goes on."""
    ledger, now = here.backend.store.ledger, time.time()
    spec = ledger.spec(check_job_id(job_id))
    who.need(spec.origin.dag_id, DagAccessEntity.TASK_INSTANCE)
    line = line_of(spec, ledger.status(job_id), ledger.tally(job_id), ledger.series(job_id), now=now)
    return _said(UsageTable(rows=tuple(usage([line], UsageQuestion(by=("dag",), since=0.0), now=now))))


def _seen(who: UserRights, found: UsageTable) -> UsageTable:
    """Leave out the Dags, which are the first column, that the user may not see."""
    return UsageTable(
        rows=tuple(row for row in found.rows if who.may("" if row.keys[0] == NONE else row.keys[0]))
    )


def _said(found: UsageTable) -> Json:
    for row in without(found.rows, len(found.rows[0].keys) if found.rows else 0):
        unmeasured = row.gpu[3] if row.gpu[0] else row.cpu[3]
        more = f", {hours(unmeasured)} not measured" if unmeasured else ""
        return Json({"cost": f"{cost(row)}{more}", "jobs": row.jobs})
    return Json({"cost": "", "jobs": 0})
