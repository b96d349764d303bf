"""What clients ask that know searches as calls of the store service, as those before event logs do."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from tests import searched
from tests.unit.volumes.service.process import Service

from muster.core import wire
from muster.ext.search.spec import EventKind
from muster.ext.search.stored import stored_search
from muster.volumes.service.tokens import operator_token


@pytest.mark.slow  # a process of its own
def test_earlier_clients_are_answered_as_they_were(tmp_path: Path) -> None:
    search = json.loads(wire.dumps(searched.search_of()))
    body = {key: value for key, value in search.items() if key not in ("kind", "schema")}
    event = {"what": "asked", "at": 1.0, "trial": 0, "params": {"rate": 0.1}}
    with Service(tmp_path) as service:
        token = operator_token(service.keys, lifetime_seconds=60)
        with httpx.Client(
            base_url=f"{service.url}/v1",
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
        ) as client:
            new = {"kind": "NewSearch", "schema": 1, "search": body}
            assert client.put("/searches/s-1", json=new).json() == {
                "kind": "Answer",
                "schema": 1,
                "yes": True,
            }
            assert client.put("/searches/s-1", json=new).json()["yes"] is False
            assert client.get("/searches/s-1").json() == search
            assert client.get("/searches").json() == {"kind": "Names", "schema": 1, "names": ["s-1"]}
            news = {"kind": "News", "schema": 1, "events": [event], "after": 0}
            told = client.post("/searches/s-1/events", json=news)
            assert told.json() == {"kind": "Count", "schema": 1, "count": told.json()["count"]}
            assert client.post("/searches/s-1/events", json=news).status_code == 409
            page = client.get("/searches/s-1/events", params={"after": 0}).json()
            assert page == {"kind": "EventPage", "schema": 1, "events": [event], "end": told.json()["count"]}
            assert client.get("/searches/s-2").status_code == 404
        (known,) = searched.events(service.client(), "s-1")
        assert (known.what, known.params) == (EventKind.ASKED, {"rate": 0.1})
        assert stored_search(service.client(), "s-1") == searched.search_of()
