"""The page's routes of upkeep: images, what ended jobs keep, and what the store's last check found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.configuration import conf
from fastapi import APIRouter

from muster.airflow.page.access import Who, assets
from muster.airflow.page.route import Here, Json
from muster.airflow.site import open_place
from muster.core.errors import MusterError
from muster.core.settings import Settings
from muster.core.wire import plain
from muster.ext.page.parts import Jobs
from muster.volumes.base import UpkeepKind
from muster.volumes.protocols import Store

api = APIRouter(default_response_class=Json, dependencies=[assets])


@api.get("/images")
def images() -> Json:
    """Return every image that a Dag here may name, as ``muster images ls`` does.

    ``here`` is whether jobs run on this machine; else they run in containers, and what is built here says nothing.
    """
    from muster.images.folders import images_of  # not needed for the first answer

    settings = Settings.load()
    project = Path(conf.get("core", "dags_folder")).parent
    here = open_place(settings).here
    return Json({"here": here, "images": plain(list(images_of(settings, project)))})


@api.get("/upkeep")
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
