"""gRPC on a cluster: which Services there are, what the route says of it, and where it is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.backends.kubernetes.serving.fake_serving import World, world
from tests.unit.backends.kubernetes.serving.golden import OVER_GRPC, SITE, spec
from tests.unit.backends.kubernetes.serving.test_deployments import serve

from muster.backends.kubernetes.api.kinds import SERVICE
from muster.backends.kubernetes.serving.route import Route, drift, read_route, write_route
from muster.backends.releases.book import BookEntry
from muster.backends.releases.manual import repair
from muster.core.errors import BackendError, SpecError


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.site = replace(made.site, serving_url="http://{name}.models.example.com")
        yield made


def weights(route: Route) -> list[dict[str, int]]:
    """The shares that each rule of a route gives the Services."""
    rules = write_route(route, SITE)["spec"]["rules"]
    return [{each["name"]: each["weight"] for each in rule["backendRefs"]} for rule in rules]


def test_one_object_says_the_shares_of_both() -> None:
    assert weights(OVER_GRPC) == [
        {"flights-r1-predictor": 80, "flights-r2-predictor": 20},
        {"flights-r1-grpc": 80, "flights-r2-grpc": 20},
    ]
    found = read_route(write_route(OVER_GRPC, SITE), name="flights", site=SITE)
    assert (found.shares, found.foreign, found.drifted) == ({"r1": 80, "r2": 20}, (), False)


def test_a_revision_without_grpc_has_no_part_in_it() -> None:
    r2, r1 = OVER_GRPC.live
    candidate = replace(OVER_GRPC, live=(BookEntry(name="r2", spec=spec(8), since=r2.since), r1))
    assert weights(candidate)[1] == {"flights-r1-grpc": 80}


def test_the_revision_that_leads_says_whether_there_is_grpc() -> None:
    r2, r1 = OVER_GRPC.live
    leads = replace(OVER_GRPC, live=(r2, BookEntry(name="r1", spec=spec(), since=r1.since)))
    assert len(weights(leads)) == 1


def test_a_rule_of_grpc_that_was_taken_out_is_told() -> None:
    document = copy.deepcopy(write_route(OVER_GRPC, SITE))
    document["spec"]["rules"].pop()
    found = read_route(document, name="flights", site=SITE)
    assert "in its route spec.rules lacks" in drift(found, ())


def test_a_revision_has_a_service_for_it_and_one_without_grpc_has_none(there: World) -> None:
    serve(there)
    serve(there, 2, grpc=True)
    services = [name for kind, name in there.cluster.objects if kind == "services" and name.endswith("-grpc")]
    assert services == ["lines-r2-grpc"]
    made = there.cluster.objects["services", "lines-r2-grpc"]
    assert made["metadata"]["ownerReferences"][0]["name"] == "lines-r2"
    assert there.deployments().deployment("lines").grpc == "lines.models.example.com:80"


def test_a_service_of_others_is_not_taken_for_a_revision_s(there: World) -> None:
    theirs = {"metadata": {"name": "lines-r1-grpc", "uid": "theirs"}, "spec": {"selector": {"app": "shop"}}}
    there.cluster.objects[SERVICE.plural, "lines-r1-grpc"] = theirs
    with pytest.raises(BackendError, match=r"Service lines-r1-grpc in namespace .* is in the way"):
        serve(there, grpc=True)
    assert there.cluster.objects[SERVICE.plural, "lines-r1-grpc"] is theirs


def test_a_service_that_was_deleted_is_made_again(there: World) -> None:
    serve(there, grpc=True)
    there.cluster.objects.pop((SERVICE.plural, "lines-r1-grpc"))
    deployments = there.deployments()
    assert list(repair(deployments, "lines")) == ["r1: its Service for gRPC is made again"]
    assert (SERVICE.plural, "lines-r1-grpc") in there.cluster.objects
    assert list(repair(deployments, "lines")) == []


@pytest.mark.parametrize("url", ["http://10.1.2.3:8000", "http://models.example.com"])
def test_where_deployments_share_a_host_it_is_refused_and_nothing_is_made(there: World, url: str) -> None:
    there.site = replace(there.site, serving_url=url)
    with pytest.raises(SpecError, match=r"grpc: .* all deployments one host: give each a host of its own"):
        serve(there, grpc=True)
    assert not there.deployments().names()


def test_the_server_of_seldon_has_none(there: World) -> None:
    with pytest.raises(SpecError, match="grpc: that needs server 'serve' or 'kserve', found 'seldon'"):
        serve(there, grpc=True, server="seldon")
