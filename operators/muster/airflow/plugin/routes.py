"""The page's routes: JSON under ``/muster/api``, and users' files under ``/muster/files``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, JSONResponse

from muster.airflow.plugin import audit, board, versions
from muster.airflow.plugin.access import Who, assets, same_site
from muster.airflow.plugin.answering import Answering
from muster.backends.base import Backend
from muster.core.cancelling import on_page
from muster.core.deployment import DeploymentStatus
from muster.core.errors import NotFound
from muster.core.job import Origin
from muster.core.names import check_job_id, check_label, check_volume
from muster.volumes.documents import parse, show

if TYPE_CHECKING:
    from muster.airflow.plugin.opening import Opening

MOST_ROWS = 200

Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Text = Annotated[str, Query(max_length=200)]
State = Annotated[str, Query(pattern=f"^({'|'.join(board.STATES)})?$")]
Number = Annotated[int | None, Query(ge=0, le=10**15)]


class Json(JSONResponse):
    """JSON in ASCII: a file's name may hold bytes that are not UTF-8, which must not fail a response."""

    def render(self, content: Any) -> bytes:
        """Write `content`, without spaces."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Site:
    """The page's sources: a backend with its store, the known jobs, and the deployments."""

    backend: Backend
    board: board.Board
    answering: Answering


def site(request: Request) -> Iterator[Site]:
    """Yield the process's site for the time of a request."""
    opening: Opening = request.app.state.opening
    with opening.lent() as lent:
        request.state.site = lent
        yield lent


Here = Annotated[Site, Depends(site)]

api = APIRouter(prefix="/api", default_response_class=Json)
documents = APIRouter(prefix="/files")


@api.get("/jobs")
def jobs(
    here: Here,
    who: Who,
    state: State = "",
    text: Text = "",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Json:
    """Return the jobs that the user may see, newest first."""
    return Json(here.board.listed(permitted=who.may, state=state, text=text, offset=offset, limit=limit))


@api.get("/jobs/{job_id}")
def job(here: Here, who: Who, job_id: str) -> Json:
    """Return one job, and the user's rights on it."""
    found = _job(here, who, job_id, DagAccessEntity.TASK_INSTANCE)
    may = {
        "log": who.may(found.dag_id, DagAccessEntity.TASK_LOGS),
        "cancel": not found.ended and who.may(found.dag_id, method="PUT"),
    }
    return Json({**board.detail(found), "may": may})


@api.get("/jobs/{job_id}/log")
def log(here: Here, who: Who, job_id: str, after: Number = None) -> Json:
    """Return the end of a job's log, or the part after byte `after`."""
    found = _job(here, who, job_id, DagAccessEntity.TASK_LOGS)
    return Json({**board.log(here.backend.store.ledger, job_id, after=after), "ended": found.ended})


@api.post("/jobs/{job_id}/cancel", dependencies=[Depends(same_site)])
def cancel(here: Here, who: Who, job_id: str) -> Json:
    """Cancel a job: its ranks get time to save, and Airflow's audit log says who asked."""
    found = _job(here, who, job_id, DagAccessEntity.TASK_INSTANCE)
    who.need(found.dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    if not found.ended:
        audit.note_cancel(who.name, job_id, found.spec.origin if found.spec else Origin())
        here.backend.cancel(job_id, wait=False, why=on_page(who.name))
    return Json(board.row(here.board.one(job_id)))


def _job(here: Site, who: Who, job_id: str, entity: DagAccessEntity) -> board.Job:
    found = here.board.one(check_job_id(job_id))
    who.need(found.dag_id, entity)
    return found


@api.get("/volumes", dependencies=[assets])
def volumes(here: Here) -> Json:
    """Return every volume with its newest version."""
    return Json({"volumes": versions.volumes(here.backend.store)})


@api.get("/volumes/{name:path}", dependencies=[assets])
def volume(here: Here, who: Who, name: str, before: Number = None, limit: Limit = 50) -> Json:
    """Return the newest versions of a volume, or of those before a number."""
    store = here.backend.store
    return Json(versions.versions(store, check_volume(name), permitted=who.may, before=before, limit=limit))


@api.get("/version", dependencies=[assets])
def version(here: Here, who: Who, address: Text) -> Json:
    """Return one version, by any address that names one, and the deployments that serve it."""
    found = versions.version(
        here.backend.store,
        address,
        permitted=who.may,
        readable=partial(who.may, entity=DagAccessEntity.XCOM),
    )
    served = [each.name for each in here.answering.statuses() if _serves(each, found["address"])]
    return Json({**found, "served_by": served})


@api.get("/lineage", dependencies=[assets])
def lineage(here: Here, who: Who, address: Text) -> Json:
    """Return a version's lineage, as a picture's nodes and edges."""
    return Json(versions.lineage(here.backend.store, address, permitted=who.may))


@api.get("/deployments", dependencies=[assets])
def deployments(here: Here) -> Json:
    """Return every deployment, with its revisions and their figures."""
    return Json({"deployments": here.answering.all()})


@api.get("/deployments/{name}", dependencies=[assets])
def deployment(here: Here, name: str) -> Json:
    """One deployment, with its revisions and what they answered."""
    if check_label("deployment", name) not in here.backend.deployments.names():
        raise NotFound(f"no deployment {name!r}: `muster deployments ls` lists what there is")
    return Json(here.answering.one(name))


def _serves(status: DeploymentStatus, address: str) -> bool:
    return any(each.model.address == address and each.percent for each in status.revisions)


@documents.get("/{where:path}", dependencies=[assets])
def file(here: Here, who: Who, where: str) -> FileResponse:
    """Return one file of a version, in a sandbox."""
    store, address = here.backend.store, parse(where)
    record = store.record(f"{address.volume}@{address.value}")
    who.need(record.origin.dag_id, DagAccessEntity.XCOM)
    return show(store, address)
