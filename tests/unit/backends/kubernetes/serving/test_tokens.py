"""The tokens of a deployment's clients on a cluster: where they are kept, who is told, and what carries muster's key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.serving.fake_serving import World, world
from tests.unit.backends.kubernetes.serving.test_deployments import serve

from muster.backends.kubernetes.api.kinds import CONFIG_MAP, HTTP_ROUTE
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases.tokens import Tokens, digest_of, made
from muster.core.deployment import RequestLimits, SmokeRequest, Workers
from muster.core.errors import Conflict, NotFound, SpecError
from muster.core.wire import dumps


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def kept(there: World) -> dict[str, Any]:
    document: dict[str, Any] = there.cluster.objects[CONFIG_MAP.plural, "lines-tokens"]
    return document


def told(there: World) -> list[tuple[str, list[str]]]:
    """Which pods were sent tokens, and of which clients."""
    return [
        (pod, [each["client"] for each in body["tokens"]])
        for pod, path, body in there.cluster.asked
        if path == "/muster/tokens"
    ]


def test_digests_are_kept_with_the_route_and_every_replica_is_told_at_once(there: World) -> None:
    serve(there, tokens=True, replicas=2)
    deployments = there.deployments()
    shop = deployments.make_token("lines", "shop")
    assert kept(there)["metadata"]["ownerReferences"][0]["uid"] == there.route()["metadata"]["uid"]
    text = kept(there)["data"]["tokens.json"]
    assert shop not in text
    assert digest_of(shop) in text
    deployments.make_token("lines", "bank")
    deployments.end_token("lines", "shop")
    found = deployments.tokens("lines")
    assert ([*found.live], found.key) == (["bank"], "")
    assert found.writes > 2, "each change counts up"
    pods = ["lines-r1-0", "lines-r1-1"]
    assert sorted(told(there)) == sorted(
        (pod, clients) for pod in pods for clients in (["shop"], ["shop", "bank"], ["shop", "bank"])
    )


def test_muster_s_own_requests_carry_the_key_of_their_revision(there: World) -> None:
    serve(there, tokens=True)
    serve(there, 2, tokens=True)
    keys = {
        variable["value"]
        for (kind, _), each in there.cluster.objects.items()
        if kind == "inferenceservices"
        for variable in each["spec"]["predictor"]["containers"][0]["env"]
        if variable["name"] == "MUSTER_KEY"
    }
    assert len(keys) == 2
    assert min(map(len, keys)) >= 43
    request = SmokeRequest(name="one", inputs={"x": (1.0,)})
    (answer,) = there.deployments().ask("lines", "r2", request)  # the pods answer 401 to any other key
    assert answer.outputs == {"y": (2.0,)}
    assert there.deployments().counts("lines").keys() == {"r1", "r2"}


def test_the_server_is_told_where_tokens_are_and_how_much_a_client_may_ask(there: World) -> None:
    serve(there, tokens=True, limits=RequestLimits(rate=2, body_mib=0.5))
    pod = there.cluster.objects["inferenceservices", "lines-r1"]["spec"]["predictor"]
    (container,) = pod["containers"]
    assert "--tokens=/mnt/muster/tokens" in container["command"]
    (limits,) = (word for word in container["command"] if word.startswith("--limits="))
    assert json.loads(limits.partition("=")[2]) == {"rate": 2.0, "burst": 2, "body_bytes": 1 << 19}
    (volume,) = (each for each in pod["volumes"] if each["name"] == "muster-tokens")
    assert volume["configMap"] == {"name": "lines-tokens", "optional": True}
    assert {"name": "muster-tokens", "mountPath": "/mnt/muster/tokens", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_limits_do_not_hold_for_muster_itself(there: World) -> None:
    serve(there, limits=RequestLimits(rate=2))
    pod = there.cluster.objects["inferenceservices", "lines-r1"]["spec"]["predictor"]
    (container,) = pod["containers"]
    assert not [word for word in container["command"] if word.startswith("--tokens")]
    assert [len(each["value"]) for each in container["env"] if each["name"] == "MUSTER_KEY"] == [43]
    (answer,) = there.deployments().ask("lines", "r1", SmokeRequest(name="one", inputs={"x": (1.0,)}))
    assert answer.outputs == {"y": (1.0,)}


def test_two_writers_lose_nothing(there: World) -> None:
    serve(there, tokens=True)
    tokens = there.deployments().platform
    both: list[int] = []

    def change(now: Tokens) -> Tokens:
        if not both:
            both.append(1)
            there.deployments().make_token("lines", "bank")  # meanwhile
        return made(now, "shop", "word", now=1.0)

    tokens.change_tokens("lines", change)
    assert sorted(there.deployments().tokens("lines").live) == ["bank", "shop"]


def test_those_of_a_deployment_that_was_retired_are_nobody_s(there: World) -> None:
    serve(there, tokens=True)
    there.deployments().make_token("lines", "shop")
    old = kept(there)
    there.deployments().retire("lines")
    with pytest.raises(NotFound, match="no deployment"):
        there.deployments().tokens("lines")
    serve(there, 2, tokens=True)
    there.cluster.put({**old, "data": {"tokens.json": dumps(Tokens())}})  # the collector is late
    assert there.deployments().tokens("lines").tokens == ()
    with pytest.raises(Conflict, match="written by others all the time"):
        there.deployments().make_token("lines", "shop")
    del there.cluster.objects[CONFIG_MAP.plural, "lines-tokens"]
    there.deployments().make_token("lines", "shop")
    assert [*there.deployments().tokens("lines").live] == ["shop"]
    assert there.cluster.objects[HTTP_ROUTE.plural, "lines"]


def test_another_server_is_refused_before_anything_is_made(there: World) -> None:
    there.site = replace(there.site, serving=PlatformOwner.SELDON)
    folder = there.folder / "streams"
    folder.mkdir()
    (folder / "predict.py").touch()
    model = there.store.add("lines/model", folder).pinned
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tokens or limits", {"tokens": True}),
        ("tokens or limits", {"limits": RequestLimits(rate=1)}),
        ("stream", {"workers": Workers(image="serve", image_digest=there.image, stream=True)}),
    ]
    for what, more in asked:
        with pytest.raises(SpecError, match=f"{what}: that needs server 'serve' or 'kserve', found 'seldon'"):
            there.deployments().prepare(there.spec(model=model, server="seldon", **more), by="test")
    assert not there.cluster.asked
