"""The page's routes of tokens: a person's own, made with at most the rights that Airflow gives the person now."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response

from muster.airflow.page.access import Who, assets, same_site
from muster.airflow.page.route import Here, Json, Site, Text
from muster.core.errors import SpecError
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.persons import DAY_SECONDS, MOST_DAYS, PersonToken

api = APIRouter(default_response_class=Json, dependencies=[assets])
changing = [Depends(same_site)]


@api.get("/tokens")
def tokens(here: Here, who: Who, everyone: bool = False) -> Json:
    """Return the user's tokens, newest first, or everyone's, and what a new one may do; no tokens where no service serves the store."""
    if everyone and not who.administers:
        raise HTTPException(403, "Airflow does not let you see others' tokens")
    rights, now, store = who.token_rights, time.time(), here.backend.store
    found = store.tokens("" if everyone else who.name) if isinstance(store, ServiceStore) else None
    return Json(
        {
            "tokens": None if found is None else [_document(each, now) for each in reversed(found)],
            "rights": {"teams": rights.teams, "reads": bool(rights.reads), "changes": bool(rights.changes)},
            "most_days": MOST_DAYS,
            "may": {"everyone": who.administers},
        }
    )


@api.post("/tokens", dependencies=changing)
def make(
    here: Here,
    who: Who,
    name: Text = "",
    days: Annotated[int, Query(ge=1, le=MOST_DAYS)] = 30,
    changes: bool = False,
) -> Response:
    """Make a token, and return it this once. :raises SpecError: the user may not have such a one."""
    rights, store = who.token_rights, _store(here)
    if not rights.reads or (changes and not rights.changes):
        raise SpecError(
            f"Airflow lets you {'change' if rights.reads else 'see'} no team's Dags as a whole, and a token cannot tell Dags apart: ask an "
            "administrator for the right to all Dags of your team, with their logs and XComs"
        )
    made = store.make_token(
        who.name,
        token_name=name,
        lifetime_seconds=days * DAY_SECONDS,
        rights=rights if changes else replace(rights, changes=()),
    )
    who.note("muster_token_make", token=made.token_id, name=name, days=str(days), changes=str(changes))
    said = {"token": made.token, "id": made.token_id, "url": store.url}
    return Response(json.dumps(said), media_type="application/json", headers={"cache-control": "no-store"})


@api.post("/tokens/{token_id}/end", dependencies=changing)
def end(here: Here, who: Who, token_id: str) -> Json:
    """End a token: the next request with it is refused."""
    store = _store(here)
    if not (token_id in {each.token_id for each in store.tokens(who.name)} or who.administers):
        raise HTTPException(404, f"you have no token {token_id!r:.40}")
    ended = store.end_token(token_id, by=who.name)
    who.note("muster_token_end", token=token_id, user=ended.user, name=ended.name)
    return Json(_document(ended, time.time()))


def _store(here: Site) -> ServiceStore:
    store = here.backend.store
    if not isinstance(store, ServiceStore):
        raise SpecError("the store is a folder of this machine, which asks for no token")
    return store


def _document(each: PersonToken, now: float) -> dict[str, Any]:
    return {
        "id": each.token_id,
        "user": each.user,
        "name": each.name,
        "made": each.made,
        "expires": each.expires,
        "used": each.used,
        "ended": each.ended,
        "ended_by": each.ended_by,
        "counts": each.counts(now=now),
        "teams": each.rights.teams,
        "changes": bool(each.rights.changes),
    }
