"""The page's routes of deployments, of what there is to run on, and of upkeep: figures, promote and roll back, queue, GPUs, the store's room."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from muster.airflow.operators.releasing import curl_line, example_of
from muster.airflow.page.access import UserRights, Who, assets, same_site
from muster.airflow.page.route import Here, Json, Site
from muster.airflow.site import open_place
from muster.airflow.upstream.internals import DagAccessEntity, conf
from muster.backends.capacity import WaitingJob
from muster.backends.releases.book import Book
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import (
    promote as give_everything,
    repair as bring_back,
    roll_back,
    to_be_rolled_back,
)
from muster.core.deployment import DeploymentStatus
from muster.core.errors import MusterError, NotFound
from muster.core.names import check_label
from muster.core.settings import Settings
from muster.core.text import one_line
from muster.core.wire import plain
from muster.ext.page.answering import Answering, Served
from muster.ext.page.board import Board, Jobs
from muster.ext.page.described import drift_report
from muster.ext.page.listed import runs_waiting
from muster.volumes.base import UpkeepKind
from muster.volumes.protocols import Store

api = APIRouter(default_response_class=Json)

Revision = Annotated[str, Query(max_length=60)]
Reason = Annotated[str, Query(max_length=400)]


@api.get("/deployments", dependencies=[assets])
def deployments(jobs: Jobs, served: Served, who: Who) -> Json:
    """Return every deployment, with its revisions, their figures and its newest drift report."""
    reports = drift_reports(jobs, who)
    found, shown = served.all(), {each.name for each in served.statuses() if who.may_deployment(each)}
    mine = [{**each, "report": reports.get(each["name"])} for each in found if each["name"] in shown]
    return Json({"deployments": mine})


@api.get("/deployments/{name}", dependencies=[assets])
def deployment(here: Here, jobs: Jobs, served: Served, who: Who, name: str) -> Json:
    """Return one deployment: its revisions with their figures, a request to try, and what the user may do."""
    _seen(served, who, name)
    known = here.backend.deployments.names()
    if check_label("deployment", name) not in known:
        raise NotFound(f"no deployment {name!r}; there is {', '.join(sorted(known)) or 'none yet'}")
    found = served.one(name)
    status = next(each for each in served.statuses() if each.name == name)
    changing = _may(here, who, status)
    return Json(
        {
            **found,
            "report": drift_reports(jobs, who).get(name),
            "curl": _curl(here, status),
            "may": {"change": changing},
            "back": _back(status),
            "warnings": {
                each.name: warning
                for each in status.revisions
                if not each.state.over and (warning := here.backend.deployments.warning(each.model.address))
            },
        }
    )


@api.get("/deployments/{name}/history", dependencies=[assets])
def history(served: Served, who: Who, name: str) -> Json:
    """Return what a deployment answered over time, as long as this api-server has looked."""
    _seen(served, who, name)
    return Json({"intervals": served.past.of(check_label("deployment", name))})


@api.post("/deployments/{name}/promote", dependencies=[assets, Depends(same_site)])
def promote(here: Here, who: Who, name: str, revision: Revision) -> Json:
    """Give a revision all traffic at once; Airflow's audit log says who asked."""
    deployments = _to_be_changed(here, who, name, "muster_promote", revision=revision)
    give_everything(deployments, name, revision, by=_by(who))
    return Json({"serves": revision})


@api.post("/deployments/{name}/rollback", dependencies=[assets, Depends(same_site)])
def rollback(here: Here, who: Who, name: str, revision: Revision, reason: Reason = "") -> Json:
    """Take a revision back, in force with one write; Airflow's audit log says who asked.

    :param revision: what the user saw to be taken back; if it has gone since, nothing happens.
    """
    deployments = _to_be_changed(here, who, name, "muster_roll_back", revision=revision)
    serves = roll_back(deployments, name, by=_by(who), reason=one_line(reason), revision=revision)
    return Json({"serves": serves})


@api.post("/deployments/{name}/repair", dependencies=[assets, Depends(same_site)])
def repair(here: Here, who: Who, name: str) -> Json:
    """Bring a deployment back to how muster left it; return what was done, when all that have traffic answer.

    That takes three minutes at most.
    """
    deployments = _to_be_changed(here, who, name, "muster_repair")
    return Json({"done": list(bring_back(deployments, name))})


@api.post("/deployments/{name}/retire", dependencies=[assets, Depends(same_site)])
def retire(here: Here, who: Who, name: str) -> Json:
    """End a deployment; its model versions stay."""
    deployments = _to_be_changed(here, who, name, "muster_retire_deployment")
    deployments.retire(name)
    return Json({"retired": name})


@api.get("/queue")
def queue(here: Here, jobs: Jobs, who: Who) -> Json:
    """Return every queue, what waits in it and why, and the GPUs by class, node and team."""
    queues = here.capacity.queues()
    jobs.look()
    dags = {line.job_id: line.dag_id for line in jobs.open()}
    waits = (*queues.waiting, *here.backend.kept([*dags]))
    waiting = [_waiting(each, who, dags) for each in waits if who.may_queue(each.queue)]
    gpus = here.capacity.gpus()
    cards = {
        name: [_cards(each) for each in getattr(gpus, name) if name != "by_team" or who.may_queue(each.name)]
        for name in ("by_class", "by_node", "by_team")
    }
    shares = [each for each in gpus.shares if who.may_queue(each.team)]
    return Json(
        {
            "queues": plain([each for each in queues.lines if who.may_queue(each.name)]),
            "waiting": waiting,
            "gpus": {**cards, "shares": plain(shares), "unseen": gpus.unseen},
            "airflow": runs_waiting(jobs.dags(), permitted=who.may),
            "warning": jobs.warning(),
        }
    )


def _cards(cards: Any) -> dict[str, Any]:
    return {**plain(cards), "free": cards.free}


def _waiting(each: WaitingJob, who: UserRights, dags: dict[str, str]) -> dict[str, Any]:
    """Return what waits; of another Dag's job only its place and its needs."""
    shown: dict[str, Any] = plain(each)
    if each.job_id is not None and each.job_id in dags and not who.may(dags[each.job_id]):
        shown |= {"job_id": None, "name": "", "title": "a Dag that Airflow does not let you see"}
    return shown


def _by(who: UserRights) -> str:
    return f"{who.name} on muster's page in Airflow"


def _dags(here: Site, status: DeploymentStatus) -> set[str]:
    """Return the Dags that made what the deployment serves or keeps; empty text where no Dag made it."""
    dags = set()
    for each in status.revisions:
        if not each.state.over:
            try:
                dags.add(here.backend.store.record(each.model.address).origin.dag_id)
            except MusterError:  # another store's, or damaged: as what no Dag made
                dags.add("")
    return dags or {""}


def _seen(served: Answering, who: UserRights, name: str) -> None:
    """Refuse who may not see a deployment."""
    who.need_deployment(name, next((each for each in served.statuses() if each.name == name), None))


def _may(here: Site, who: UserRights, status: DeploymentStatus) -> bool:
    may = who.may_deployment(status, method="PUT")
    return may and all(who.may(dag_id, method="PUT") for dag_id in _dags(here, status))


def _to_be_changed(here: Site, who: UserRights, name: str, event: str, **what: str) -> Deployments:
    """Return the deployments, once the audit log has it; refuse who may not mark tasks of each Dag whose model serves."""
    deployments = here.backend.deployments
    try:
        status = deployments.deployment(check_label("deployment", name))
    except NotFound:
        who.need_deployment(name, None, method="PUT")
        raise
    who.need_deployment(name, status, method="PUT")
    for dag_id in sorted(_dags(here, status)):
        who.need(dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    who.note(event, deployment=name, **what)
    return deployments


def _back(status: DeploymentStatus) -> dict[str, str] | None:
    """Return what a rollback would take back now and what serves then, or why there is nothing to be taken back."""
    try:
        back = to_be_rolled_back(status)
        return {"revision": back.revision, "serves": back.champion or "", "why": ""}
    except NotFound as error:
        return {"revision": "", "serves": "", "why": str(error)}


def _curl(here: Site, status: DeploymentStatus) -> str:
    """Return a line that asks the deployment for a prediction, with its first smoke request or its model's example."""
    if not status.url:
        return ""
    book = here.backend.deployments.platform.load([status.name]).get(status.name)
    champion = status.champion
    entry = book.entry(champion.name) if isinstance(book, Book) and champion else None
    smoke, token = (entry.spec.smoke, entry.spec.tokens) if entry else ((), False)
    example = example_of(here.backend.store, champion.model.address) if champion and not smoke else ""
    return curl_line(status, smoke, token=token, example=example)


def drift_reports(board: Board, who: UserRights) -> dict[str, dict[str, Any]]:
    """Return the newest drift report of each deployment, by its name."""
    board.look()
    lines = board.reports(board.dags(who.may))
    made = {name: drift_report(job) for name, line in lines.items() for job in board.jobs([line])}
    return {name: report for name, report in made.items() if report}


@api.get("/images", dependencies=[assets])
def images() -> Json:
    """Return every image that a Dag here may name, as ``muster images ls`` does.

    ``here`` is whether jobs run on this machine; else they run in containers, and what is built here says nothing.
    """
    from muster.images.folders import images_of  # not needed for the first answer

    settings = Settings.load()
    project = Path(conf.get("core", "dags_folder")).parent
    here = open_place(settings).here
    return Json({"here": here, "images": plain(list(images_of(settings, project)))})


@api.get("/upkeep", dependencies=[assets])
def kept(here: Here, jobs: Jobs, who: Who) -> Json:
    """Return the room of the store, its last check, and the files that ended jobs keep; of jobs that the user may not see a sum."""
    jobs.look()
    store, mine = here.backend.store, {line.job_id for line in jobs.lines(jobs.dags(who.may))}
    held = store.held()
    shown = [each for each in held if each.job_id in mine]
    others = sum(each.outputs_bytes + each.checkpoints_bytes for each in held if each not in shown)
    return Json(
        {
            "room": _room(store),
            "checked": _checked(store),
            "held": plain(shown),
            "held_by_others_bytes": others,
        }
    )


def _checked(store: Store) -> dict[str, Any] | None:
    """Return what the last check found; None where there was none."""
    notes = [note for note in store.upkept() if note.checked is not None]
    if not notes:
        return None
    last = max(notes, key=lambda note: note.at)
    return {**plain(last.checked), "at": last.at, "deep": last.work is UpkeepKind.FSCK_DEEP}


def _room(store: Store) -> dict[str, Any]:
    try:
        room = store.room()
    except MusterError as error:  # such as a service of an older release
        return {"text": f"how much room the store has is not known: {error}", "comfortable": True}
    return {"text": str(room), "comfortable": room.comfortable}
