"""What keeps deployments on a cluster: what others edit or delete is as it was two looks later, and a release is left alone."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE
from tests.unit.backends.kubernetes.serving.fake_serving import World, world
from tests.unit.backends.kubernetes.serving.test_deployments import edited, serve

from muster.backends.kubernetes.api.kinds import CONFIG_MAP, EVENT, HTTP_ROUTE, SERVICE
from muster.backends.kubernetes.serving import names, platform
from muster.backends.kubernetes.serving.revisions import ClusterRevisions
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases.book import BookEntry
from muster.backends.releases.keeping import LONGEST_WAIT_SECONDS, ROUND_SECONDS, Keeping
from muster.core.deployment import RevisionState

KEEPING = "muster.backends.releases.keeping"


@pytest.fixture(params=list(PlatformOwner), ids=lambda platform: platform.value)
def there(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path, request.param) as made:
        yield made


def keeping(there: World, looks: int = 1, **changes: Any) -> Keeping:
    """What keeps them, which has looked before anything was edited."""
    kept = Keeping(there.deployments(**changes))
    for _ in range(looks):
        kept.look()
    return kept


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the keeper warned of; what it put back it tells at the level INFO, which another test may have turned on."""
    own = (each for each in caplog.records if each.name == KEEPING and each.levelno >= logging.WARNING)
    return [each.getMessage() for each in own]


def objects(there: World) -> dict[tuple[str, str], Any]:
    """What a person could edit, without what an API server counts."""
    kinds = (there.platform.kind, HTTP_ROUTE, CONFIG_MAP, SERVICE)
    found = copy.deepcopy([each for kind in kinds for each in there.cluster.all(kind)])
    for each in found:
        each.pop("status", None)
        annotations = each["metadata"].get("annotations") or {}
        annotations.pop("muster.dev/release", None)  # it counts the writes
        each["metadata"] = {
            key: value for key, value in each["metadata"].items() if key in ("name", "labels", "annotations")
        }
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def other_image(there: World) -> None:
    found = there.cluster.objects[there.platform.kind.plural, "lines-r2"]
    spec = copy.deepcopy(found["spec"])
    if "predictor" in spec:
        containers = spec["predictor"]["containers"]
    else:
        containers = spec["predictors"][0]["componentSpecs"][0]["spec"]["containers"]
    containers[0]["image"] = "registry.example/other:1"
    there.cluster.edit(there.platform.kind, "lines-r2", **spec)


def delete(there: World, kind: Any, name: str) -> None:
    there.client.delete(kind, name, namespace=NAMESPACE)


EDITS: dict[str, Callable[[World], None]] = {
    "the object of a revision": lambda there: delete(there, there.platform.kind, "lines-r2"),
    "its image": other_image,
    "the shares of the route": lambda there: edited(there, r1=50, r2=50),
    "the route": lambda there: delete(there, HTTP_ROUTE, "lines"),
    "the code of a revision": lambda there: delete(there, CONFIG_MAP, "lines-r2"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_others_edit_is_put_back_at_the_second_look_and_told(
    there: World, edit: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in (1, 2):
        serve(there, number)
    kept, before = keeping(there), objects(there)
    EDITS[edit](there)
    assert objects(there) != before
    for _ in range(2):
        kept.look()
    assert objects(there) == before
    status = there.deployments().deployment("lines")
    assert (status.ready, status.drift, status.shares) == (True, "", {"r2": 100})
    (event,) = there.cluster.all(EVENT)
    assert (event["reason"], event["type"]) == ("DeploymentMended", "Normal")
    assert [each.getMessage() for each in caplog.records] == [f"lines: {event['message']}"]
    kept.look()
    assert len(there.cluster.all(EVENT)) == 1


def test_without_a_gateway_a_service_that_is_the_route_is_put_back(tmp_path: Path) -> None:
    with world(tmp_path) as there:
        whole: dict[str, Any] = {"gateway": "", "serving_url": ""}
        deployments = there.deployments(**whole)
        deployments.prepare(there.spec(), by="ti-1")
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r1": 100}, token=status.token, release=None)
        kept, before = keeping(there, **whole), objects(there)
        delete(there, SERVICE, "lines")
        kept.look()
        assert objects(there) == before
        there.cluster.edit(SERVICE, "lines", selector={"app": "another"})
        for _ in range(2):
            kept.look()
        assert objects(there) == before


def test_a_service_of_grpc_is_put_back(tmp_path: Path) -> None:
    with world(tmp_path) as there:
        by_host = {"serving_url": "http://{name}.models.example"}
        deployments = there.deployments(**by_host)
        deployments.prepare(there.spec(grpc=True), by="ti-1")
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r1": 100}, token=status.token, release=None)
        kept, before = keeping(there, **by_host), objects(there)
        delete(there, SERVICE, "lines-r1-grpc")
        for _ in range(2):
            kept.look()
        assert objects(there) == before


def test_tokens_of_clients_come_back_with_the_route_and_ended_ones_do_not(tmp_path: Path) -> None:
    with world(tmp_path) as there:
        serve(there, tokens=True)
        deployments = there.deployments()
        for client in ("shop", "bank"):
            deployments.make_token("lines", client)
        kept = keeping(there)
        deployments.end_token("lines", "bank")
        kept.look()
        delete(there, HTTP_ROUTE, "lines")
        kept.look()
        found = deployments.tokens("lines")
        assert list(found.live) == ["shop"]
        delete(there, CONFIG_MAP, "lines-tokens")
        kept.look()
        assert list(deployments.tokens("lines").live) == ["shop"]
        assert deployments.tokens("lines").writes > found.writes
        deployments.end_token("lines", "shop")
        for _ in range(2):
            kept.look()
        assert deployments.tokens("lines").live == {}


@pytest.mark.parametrize("edit", ["the object of a revision", "its image", "the shares of the route"])
def test_an_edit_during_a_canary_is_left_to_the_release(there: World, edit: str) -> None:
    serve(there)
    deployments = there.deployments()
    deployments.prepare(there.spec(2), by="ti-2")
    status = deployments.deployment("lines")
    deployments.shift("lines", {"r1": 90, "r2": 10}, token=status.token, release=status.release)
    kept = keeping(there)
    EDITS[edit](there)
    before = objects(there)
    for _ in range(3):
        kept.look()
    assert objects(there) == before
    assert there.cluster.all(EVENT) == []


def test_what_is_paused_is_left_and_kept_again_afterwards(there: World) -> None:
    serve(there)
    serve(there, 2)
    deployments, kept, before = there.deployments(), keeping(there), objects(there)
    token = deployments.deployment("lines").token
    deployments.pause("lines", "ann tries another image")
    assert deployments.deployment("lines").token == token  # a release that is about to begin is not disturbed
    other_image(there)
    for _ in range(3):
        kept.look()
    assert "registry.example/other:1" in deployments.deployment("lines").drift
    deployments.pause("lines", "")
    for _ in range(2):
        kept.look()
    assert objects(there) == before


def test_a_route_that_a_person_edits_and_deletes_in_a_pause_stays_away(there: World) -> None:
    serve(there)
    serve(there, 2)
    kept = keeping(there)
    there.deployments().pause("lines", "ann moves its users")
    edited(there, r1=50, r2=50)
    kept.look()
    delete(there, HTTP_ROUTE, "lines")
    for _ in range(2):
        kept.look()
    assert there.cluster.all(HTTP_ROUTE) == []


def test_what_is_retired_or_taken_away_whole_stays_away(there: World) -> None:
    for name in ("lines", "other"):
        serve(there, name=name)
    kept = keeping(there)
    there.deployments().retire("lines")
    delete(there, HTTP_ROUTE, "other")
    delete(there, there.platform.kind, "other-r1")
    for _ in range(3):
        kept.look()
    assert objects(there) == {}


def test_two_of_it_do_what_one_does(there: World) -> None:
    serve(there)
    serve(there, 2)
    both, before = [keeping(there), keeping(there)], objects(there)
    for edit in EDITS.values():
        edit(there)
        for _ in range(3):
            for kept in both:
                kept.look()
        assert objects(there) == before


def test_what_another_one_has_just_made_is_told_once(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(there)
    one, other = keeping(there), keeping(there)
    delete(there, there.platform.kind, "lines-r1")
    for kept in (one, other):
        kept.look()
    make = ClusterRevisions.make

    def late(revisions: ClusterRevisions, live: BookEntry) -> bool:
        monkeypatch.undo()
        other.look()
        return make(revisions, live)

    monkeypatch.setattr(ClusterRevisions, "make", late)
    one.look()
    assert len(there.cluster.all(EVENT)) == 1


def test_what_was_ended_while_it_was_made_again_is_taken_away(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To withdraw a revision the route is written first: an older look calls its object lost."""
    serve(there)
    serve(there, 2)
    kept, others = keeping(there), there.deployments()
    delete(there, there.platform.kind, "lines-r1")
    kept.look()
    make = ClusterRevisions.make

    def late(revisions: ClusterRevisions, live: BookEntry) -> bool:
        monkeypatch.undo()
        status = others.deployment("lines")
        others.shift("lines", {"r2": 100}, token=status.token, release=None)
        others.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="it is over")
        return make(revisions, live)

    monkeypatch.setattr(ClusterRevisions, "make", late)
    kept.look()
    left = [each["metadata"]["name"] for each in there.cluster.all(there.platform.kind)]
    assert left == ["lines-r2"]


def test_a_route_that_cannot_be_made_again_is_remembered_and_stops_no_other(
    there: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "QUICK_SECONDS", 0.0)
    for name in ("able", "lines", "other"):
        serve(there, name=name)
    kept, before = keeping(there), objects(there)
    there.cluster.busy.add(("create", "lines"))
    for name in ("able", "lines", "other"):
        delete(there, HTTP_ROUTE, name)
    delete(there, CONFIG_MAP, "able-r1")
    for _ in range(3):
        kept.look()
    assert before.keys() - objects(there).keys() == {("HTTPRoute", "lines")}
    (said,) = warned(caplog)
    assert said.startswith("lines: ")
    there.cluster.busy.clear()
    kept.look()
    assert objects(there) == before


def test_tokens_that_cannot_be_read_stop_no_other_deployment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with world(tmp_path) as there:
        for name in ("lines", "other"):
            serve(there, name=name, tokens=True)
            there.deployments().make_token(name, "shop")
        kept, before = keeping(there), objects(there)
        good = there.cluster.objects[CONFIG_MAP.plural, "lines-tokens"]["data"]
        there.cluster.objects[CONFIG_MAP.plural, "lines-tokens"]["data"] = {"tokens.json": "spoiled"}
        delete(there, CONFIG_MAP, "other-tokens")
        delete(there, there.platform.kind, "other-r1")
        for _ in range(2):
            kept.look()
        there.cluster.objects[CONFIG_MAP.plural, "lines-tokens"]["data"] = good
        assert list(there.deployments().tokens("other").live) == ["shop"]
        assert objects(there).keys() == before.keys()
        (said,) = warned(caplog)
        assert "delete the ConfigMap lines-tokens" in said


def test_a_route_is_put_back_whose_notes_were_spoiled_before(there: World) -> None:
    serve(there)
    kept, before = keeping(there), objects(there)
    annotations = there.cluster.objects[HTTP_ROUTE.plural, "lines"]["metadata"]["annotations"]
    annotations[names.NOTES] = "spoiled"
    kept.look()
    delete(there, HTTP_ROUTE, "lines")
    kept.look()
    assert objects(there) == before


def test_a_token_that_was_ended_in_a_pause_does_not_come_back(tmp_path: Path) -> None:
    with world(tmp_path) as there:
        serve(there, tokens=True)
        deployments = there.deployments()
        deployments.make_token("lines", "shop")
        kept = keeping(there)
        deployments.pause("lines", "ann moves the clients")
        kept.look()
        deployments.end_token("lines", "shop")
        delete(there, CONFIG_MAP, "lines-tokens")
        deployments.pause("lines", "")
        kept.look()
        assert deployments.tokens("lines").live == {}


def test_what_another_program_writes_again_waits_longer_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, repaired = [0.0], list[float]()
    with world(tmp_path) as there:
        for number in (1, 2):
            serve(there, number)
        kept, before = Keeping(there.deployments(), now=lambda: clock[0]), objects(there)

        def look() -> None:
            kept.look()
            clock[0] += ROUND_SECONDS

        while clock[0] < 1300:
            if objects(there) == before:
                repaired.append(clock[0])
                other_image(there)
            look()
        waits = [later - earlier for earlier, later in itertools.pairwise(repaired)]
        assert waits == [
            2 * ROUND_SECONDS,
            *(ROUND_SECONDS * 2**times for times in range(7)),
            LONGEST_WAIT_SECONDS,
        ]
        (said,) = warned(caplog)
        assert said == (
            "lines: put back 3 times and edited again; another program writes it: "
            "`muster deployments keep --pause lines` leaves it"
        )
        edited(there, r1=50, r2=50)  # another edit waits for nothing
        for _ in range(2):
            look()
        assert objects(there) == before
        clock[0] += 3 * LONGEST_WAIT_SECONDS  # no fight any more
        other_image(there)
        for _ in range(2):
            look()
        assert objects(there) == before


def test_what_goes_wrong_is_said_once_and_tried_again(there: World, caplog: pytest.LogCaptureFixture) -> None:
    serve(there)
    kept, before = keeping(there), objects(there)
    there.cluster.forbidden.add(("create", there.platform.kind.plural))
    delete(there, there.platform.kind, "lines-r1")
    for _ in range(4):
        kept.look()
    (said,) = warned(caplog)
    assert f"may not create {there.platform.kind.plural}" in said
    there.cluster.forbidden.clear()
    for _ in range(2):
        kept.look()
    assert objects(there) == before


def test_a_round_that_hangs_is_told(there: World) -> None:
    clock = [0.0]
    kept = Keeping(there.deployments(), now=lambda: clock[0])

    def asked() -> tuple[int, Any]:
        with kept.answer(port=0) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            try:
                with urlopen(f"http://127.0.0.1:{server.server_port}/healthz") as answer:
                    return answer.status, json.load(answer)
            except HTTPError as error:
                return error.code, json.load(error)

    assert asked() == (200, {"looked": 0.0, "failing": 0})
    kept.look()
    status, said = asked()
    assert (status, said["looked"] > 0, said["failing"]) == (200, True, 0)
    clock[0] = 301.0
    assert asked()[0] == 503
    kept.look()
    assert asked()[0] == 200
