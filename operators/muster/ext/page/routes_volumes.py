"""The page's routes of volumes: lists, one version with its lineage, comparison, code, rows and files."""

from __future__ import annotations

from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, Response

from muster.airflow.page import audit
from muster.airflow.page.access import UserRights, Who, assets, same_site
from muster.airflow.page.route import Here, Json, Limit, Offset, Site, Text
from muster.airflow.site import mlflow_url
from muster.airflow.upstream.internals import DagAccessEntity
from muster.backends.releases.book import check_marks
from muster.backends.tracking import run_link, shown_run
from muster.core.address import pinned
from muster.core.deployment import DeploymentStatus
from muster.core.errors import Conflict, NotFound
from muster.core.names import check_digest, check_volume
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.text import one_line
from muster.ext.page import snapshots, versions
from muster.ext.page.board import Board
from muster.ext.page.graph import Permitted
from muster.ext.page.parts import Jobs, Served
from muster.ext.page.preview import markdown, preview
from muster.ext.page.uses import Uses, documents_of, used_by
from muster.volumes.base import Record
from muster.volumes.documents import HEADERS, parse, show

api = APIRouter(default_response_class=Json, dependencies=[assets])
documents = APIRouter(prefix="/files", dependencies=[assets])

_MARKS = ("pin", "unpin", "retire", "reinstate")
"""What a person may do to a version, by the call of the store."""

_OF_DEPLOYMENT = "deployment/"
"""What begins the pin of a version that a deployment keeps."""

Act = Annotated[str, PathParameter(pattern=f"^({'|'.join(_MARKS)})$")]
Reason = Annotated[str, Query(max_length=400)]
Path = Annotated[str, Query(max_length=1000)]
Columns = Annotated[str, Query(max_length=4000)]
Several = Annotated[list[str] | None, Query(max_length=8)]
Before = Annotated[int | None, Query(ge=0, le=10**15)]


@api.get("/volumes")
def volumes(here: Here) -> Json:
    """Return every volume with its newest version."""
    return Json({"volumes": versions.volumes(here.backend.store)})


@api.get("/volumes/{name:path}")
def volume(
    here: Here,
    who: Who,
    name: str,
    before: Before = None,
    limit: Limit = 50,
    by: Annotated[str, Query(pattern="^(number|partition)$")] = "number",
    columns: Columns = "",
) -> Json:
    """Return the newest versions of a volume, those before a number, or the newest of each partition."""
    look = versions.VersionsQuery(
        before=before,
        limit=limit,
        by_partition=by == "partition",
        columns=[each for each in columns.split(",") if each][: versions.MOST_CHOSEN],
    )
    return Json(versions.versions(here.backend.store, check_volume(name), look, permitted=who.may))


@api.get("/version")
def version(here: Here, jobs: Jobs, served: Served, who: Who, address: Text) -> Json:
    """Return one version, by any address that names one, the deployments that serve it, and what belongs to it."""
    store, readable = here.backend.store, _readable(who)
    found = versions.version(store, address, permitted=who.may, readable=readable)
    exact, uses = found["address"], _uses(jobs, who)
    record = store.record(exact)
    return Json(
        {
            **found,
            "lineage": versions.lineage(store, exact, uses, permitted=who.may),
            "documents": documents_of(store, uses, exact, record, readable=readable),
            "used_by": used_by(uses, exact),
            "served_by": [each.name for each in served.statuses() if _serves(each, exact)],
            **(_tracked(here, record.job_id) if who.may(record.origin.dag_id) else {}),
            "may": {"change": _may_change(who, record)},
        }
    )


@api.post("/version/{act}", dependencies=[Depends(same_site)])
def mark(here: Here, who: Who, act: Act, address: Text, reason: Reason = "") -> Json:
    """Keep a version from gc, hide it from selectors, or take that back; Airflow's audit log says who asked."""
    store = here.backend.store
    record = store.record(address)
    who.need(record.origin.dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    exact, why = pinned(record.volume, record.number), one_line(reason) or f"by {who.name}"
    if act == "unpin" and why.startswith(_OF_DEPLOYMENT):
        name = why.removeprefix(_OF_DEPLOYMENT)
        raise Conflict(f"deployment {name} keeps {exact} itself: retire that, or release another version")
    if act in ("retire", "unpin"):
        check_marks(store, exact, retires=act == "retire", unpins=why if act == "unpin" else None)
    audit.note(who.name, f"muster_{act}", Origin(dag_id=record.origin.dag_id), version=exact, reason=why)
    changed = store.reinstate(exact) if act == "reinstate" else getattr(store, act)(exact, reason=why)
    return Json({"pins": list(changed.pins), "retired": changed.retired})


@api.get("/lineage")
def lineage(here: Here, jobs: Jobs, who: Who, address: Text) -> Json:
    """Return a version's lineage, as a picture's nodes and edges."""
    return Json(versions.lineage(here.backend.store, address, _uses(jobs, who), permitted=who.may))


@api.get("/compare")
def compare(here: Here, who: Who, version: Several = None) -> Json:
    """Return versions side by side."""
    store = here.backend.store
    return Json(versions.side_by_side(store, version or [], permitted=who.may, readable=_readable(who)))


@api.get("/code")
def code(here: Here, who: Who, address: Text, file: Path = "") -> Json:
    """Return the files of the code that made a version, or the text of one of them."""
    store = here.backend.store
    record = store.record(address)
    who.need(record.origin.dag_id, DagAccessEntity.CODE)
    digest = _code(record)
    if file:
        return Json({"path": file, "text": snapshots.text(store, digest, file)})
    return Json(snapshots.listed(store, digest))


@api.get("/rows")
def rows(here: Here, who: Who, where: Path) -> Json:
    """Return the schema and the first rows of a table in a version."""
    store, address = here.backend.store, parse(where)
    _need(here, who, f"{address.volume}@{address.value}")
    if address.path not in store.manifest(f"{address.volume}@{address.value}"):
        raise NotFound(f"{address.volume}@{address.value} holds no {address.path!r:.120}")
    return Json(preview(store.path(str(address))))


@api.get("/version_files")
def version_files(
    here: Here, who: Who, address: Text, under: Path = "", text: Text = "", offset: Offset = 0
) -> Json:
    """Return a folder of a version: its folders and files, a page at a time; or all files whose path holds a text."""
    _need(here, who, address)
    return Json(versions.files(here.backend.store, address, under=under, text=text, offset=offset))


@documents.get("/{where:path}")
def file(here: Here, who: Who, where: str, rendered: bool = False) -> Response:
    """Return one file of a version, in a sandbox; Markdown as a document where `rendered` is asked for."""
    address = parse(where)
    _need(here, who, f"{address.volume}@{address.value}")
    found = show(here.backend.store, address)
    if rendered and address.path.lower().endswith(".md"):
        return HTMLResponse(markdown(FilePath(found.path)), headers=HEADERS)
    return found


def _serves(status: DeploymentStatus, address: str) -> bool:
    return any(each.model.address == address and each.percent for each in status.revisions)


def _need(here: Site, who: UserRights, address: str) -> None:
    """Refuse who may not read the files of a version."""
    who.need(here.backend.store.record(address).origin.dag_id, DagAccessEntity.XCOM)


def _may_change(who: UserRights, record: Record) -> bool:
    return who.may(record.origin.dag_id, method="PUT")


def _readable(who: UserRights) -> Permitted:
    return partial(who.may, entity=DagAccessEntity.XCOM)


def _uses(board: Board, who: UserRights) -> Uses:
    board.look()
    return Uses(board, board.dags(who.may))


def _code(record: Record) -> str:
    if record.code is None:
        made = record.note or "it is not known what made it"
        raise NotFound(f"{record.volume}@{record.number} was made by no code of a Dag: {made}")
    return check_digest("code snapshot", record.code)


def _tracked(here: Site, job_id: str) -> dict[str, Any]:
    """Where the run is shown that a version's job tracked in MLflow, empty where nothing shows it now, and whether there is one."""
    home = Settings.load().home
    run = shown_run(home, job_id)
    url = run_link(here.backend.store.ledger, job_id, home=home, shown_at=mlflow_url() if run else "")
    return {"mlflow": url, "tracked": bool(run)}
