from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import Answer, ApiServer, Asked, api_server, status
from tests.waiting import GUARD_SECONDS

from muster.backends.kubernetes.api import watching
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD
from muster.backends.kubernetes.api.watching import Change, ChangeWatch


def pod(name: str, version: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "managedFields": [{"manager": "kubelet"}],
        },
    }


def seen(name: str, version: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "resourceVersion": str(version)}}


def listed(*pods: dict[str, Any], version: int) -> Answer:
    return Answer(body={"metadata": {"resourceVersion": str(version)}, "items": list(pods)})


def event(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": document}


def bookmark(version: int) -> dict[str, Any]:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def take(server: ApiServer, count: int) -> list[Change]:
    """Return the first changes that a watch tells."""
    watch = ChangeWatch(Client(server.api()), POD, namespace="ml", labels="muster.dev/job")
    changes = []
    for change in watch.changes():
        changes.append(change)
        if len(changes) == count:
            watch.close()
    return changes


def test_a_list_then_what_changes() -> None:
    lines = (event("ADDED", pod("b", 8)), event("MODIFIED", pod("a", 9)), event("DELETED", pod("b", 10)))
    with api_server(listed(pod("a", 5), version=7), Answer(lines=lines)) as server:
        changes = take(server, 4)
    assert changes == [
        Change(version="7", put=(seen("a", 5),), whole=True),
        Change(version="8", put=(seen("b", 8),)),
        Change(version="9", put=(seen("a", 9),)),
        Change(version="10", gone=(seen("b", 10),)),
    ]
    asked = server.asked[1].query
    assert asked["resourceVersion"] == "7"
    assert asked["labelSelector"] == "muster.dev/job"
    assert asked["allowWatchBookmarks"] == "true"
    assert "fieldSelector" not in asked


def test_a_broken_connection_goes_on_where_it_was() -> None:
    first = Answer(lines=(event("ADDED", pod("b", 8)), bookmark(20)), cut=True)
    second = Answer(lines=(event("ADDED", pod("c", 21)),))
    with api_server(listed(version=7), first, second) as server:
        changes = take(server, 3)
    assert [change.version for change in changes] == ["7", "8", "21"]
    assert [asked.query.get("resourceVersion") for asked in server.asked] == [None, "7", "20"]


def test_a_watch_that_the_server_ends_goes_on_where_it_was() -> None:
    with api_server(
        listed(version=7),
        Answer(lines=(event("ADDED", pod("b", 8)),)),
        Answer(lines=(event("ADDED", pod("c", 9)),)),
    ) as server:
        changes = take(server, 3)
    assert [change.version for change in changes] == ["7", "8", "9"]
    assert server.asked[2].query["resourceVersion"] == "8"


@pytest.mark.parametrize(
    "expired",
    [
        status(410, "Expired", "too old resource version: 7 (900)"),
        Answer(
            lines=(
                event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
            )
        ),
    ],
    ids=["at once", "in the stream"],
)
def test_a_version_that_is_too_old_is_listed_again(expired: Answer) -> None:
    with api_server(
        listed(pod("a", 5), version=7),
        expired,
        listed(pod("z", 900), version=901),
        Answer(lines=(bookmark(902),)),
    ) as server:
        changes = take(server, 2)
    assert changes[1] == Change(version="901", put=(seen("z", 900),), whole=True)
    assert server.asked[2].query.get("watch") is None


def test_an_api_server_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with api_server(
        listed(version=7),
        Answer(0),
        status(503, "ServiceUnavailable", "later"),
        Answer(lines=(event("ADDED", pod("b", 8)),)),
    ) as server:
        changes = take(server, 2)
    assert [change.version for change in changes] == ["7", "8"]
    assert [asked.query.get("resourceVersion") for asked in server.asked] == [None, "7", "7", "7"]
    assert "later; what the cluster does is seen late" in caplog.text


def test_what_keeps_it_is_said_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    later = status(503, "ServiceUnavailable", "later")
    with api_server(
        listed(version=7),
        *(later, later),
        Answer(lines=(event("ADDED", pod("b", 8)),)),
        later,
        Answer(lines=(event("ADDED", pod("c", 9)),)),
    ) as server:
        take(server, 3)
    assert caplog.text.count("later; what the cluster does is seen late") == 2


def test_missing_rights_are_said(caplog: pytest.LogCaptureFixture) -> None:
    said = 'User "jo" cannot watch resource "pods" in API group "" in the namespace "ml"'
    with api_server(
        listed(version=7), status(403, "Forbidden", said), Answer(lines=(event("ADDED", pod("b", 8)),))
    ) as server:
        take(server, 2)
    assert 'jo may not watch pods in namespace ml: give it a Role with apiGroups: [""]' in caplog.text


def test_it_is_closed_while_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    hold = threading.Event()
    with api_server(listed(version=7), Answer(lines=(event("ADDED", pod("b", 8)),), hold=hold)) as server:
        watch = ChangeWatch(Client(server.api()), POD, namespace="ml")
        came, changes = threading.Event(), []

        def follow() -> None:
            for change in watch.changes():
                changes.append(change)
                if len(changes) == 2:
                    came.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert came.wait(GUARD_SECONDS)
        assert watch.silent_seconds < 60
        watch.close()
        watch.close()
        thread.join(GUARD_SECONDS)
        hold.set()
    assert not thread.is_alive()
    assert not caplog.text


def test_a_kind_of_which_nothing_happens_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of some kinds there are no bookmarks."""
    monkeypatch.setattr(watching, "SILENT_SECONDS", 0.5)  # a busy machine answers later than in 0.05 s
    hold = threading.Event()
    ages: list[float] = []

    def silent(_: Asked) -> Answer:
        ages.append(watch.silent_seconds)
        watch.heard -= 1000.0
        return Answer(hold=hold)

    lines = (event("ADDED", pod("b", 8)),)
    with api_server(listed(version=7), silent, silent, silent, Answer(lines=lines)) as server:
        watch = ChangeWatch(Client(server.api()), POD, namespace="ml")
        changes = []
        for change in watch.changes():
            changes.append(change.version)
            if len(changes) == 2:
                watch.close()
                hold.set()
    assert changes == ["7", "8"]
    assert max(ages) < 900, "a watch that is taken is a sign of life"
    assert {asked.query.get("resourceVersion") for asked in server.asked[1:]} == {"7"}
    assert not caplog.text


def test_a_watch_that_has_long_told_nothing_may_be_mute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(watching, "MUTE_SECONDS", 0.01)
    hold = threading.Event()
    with api_server(listed(version=7), Answer(hold=hold), listed(pod("b", 8), version=9)) as server:
        try:
            changes = take(server, 2)
        finally:
            hold.set()
    assert changes[1] == Change(version="9", put=(seen("b", 8),), whole=True)
    assert not caplog.text


def test_a_watch_may_be_mute_also_where_others_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a balancer does with what is idle, before we call it silent."""
    monkeypatch.setattr(watching, "MUTE_SECONDS", 0.0)
    with api_server(listed(version=7), Answer(), listed(pod("b", 8), version=9)) as server:
        changes = take(server, 2)
    assert changes[1] == Change(version="9", put=(seen("b", 8),), whole=True)
    assert not caplog.text


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (status(404, "NotFound", "the server could not find the requested resource"), "serves no Pod"),
        (status(400, "BadRequest", "invalid resource version"), "invalid resource version"),
        (Answer(body=b"<html>sign in</html>\n"), "is there a proxy in between"),
        (Answer(lines=("nothing",)), "is there a proxy in between"),
        (Answer(lines=({"type": "ADDED", "object": {}},)), "is there a proxy in between"),
    ],
    ids=["no such kind", "bad request", "no JSON", "no event", "no object"],
)
def test_whatever_is_answered_it_goes_on(answer: Answer, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """A thread that ended would leave what it knew to stand for ever."""

    def later(asked: Asked) -> Answer:
        if asked.query.get("watch"):
            return Answer(lines=(event("ADDED", pod("b", 8)),))
        return listed(version=7)

    with api_server(listed(version=7), answer, later) as server:
        changes = take(server, 2 + ("serves" in said or "version" in said))
    assert changes[-1].version == "8"
    assert said in caplog.text


def test_a_defect_is_told_with_where_it_is_and_all_is_listed_again(caplog: pytest.LogCaptureFixture) -> None:
    def read(found: dict[str, Any]) -> dict[str, Any]:
        if found.get("name") == "strange":
            raise AttributeError("a defect of ours")
        return found

    def later(asked: Asked) -> Answer:
        if asked.query.get("watch"):
            return Answer(lines=(event("ADDED", pod("b", 12)),))
        return listed(version=11)

    strange = Answer(lines=(event("ADDED", pod("strange", 8)),))
    with api_server(listed(version=7), strange, strange, later) as server:
        watch = ChangeWatch(Client(server.api()), POD, namespace="ml", read=read)
        changes = []
        for change in watch.changes():
            changes.append(change.version)
            if len(changes) == 3:
                watch.close()
    assert changes == ["7", "11", "12"]
    (said,) = [each for each in caplog.records if each.exc_info]
    assert "pods" in said.getMessage()
    assert "a defect of ours" in caplog.text


def test_a_list_that_is_none_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    with api_server(Answer(body={"items": []}), listed(pod("a", 5), version=7)) as server:
        assert take(server, 1)[0].version == "7"
    assert "is no list" in caplog.text
