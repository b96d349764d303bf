"""What is told of a route that was edited outside muster, and that nothing is told of one that was not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.serving.golden import ANYWHERE, OVER_GRPC, ROUTE, SITE

from muster.backends.kubernetes.serving.route import Route, read_route, write_route
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner

Spec = dict[str, Any]
ADDRESS = replace(SITE, serving_url="http://10.1.2.3:8000")
HOST = "flights.models.example.com"


def read(
    edit: Callable[[Spec], object] = lambda _: None,
    *,
    wrote: ClusterSite = SITE,
    reads: ClusterSite | None = None,
) -> Route:
    """A route that was written, edited, and is read, perhaps with other settings."""
    shares = {"r1": 80, "r2": 20} if wrote.gateway else {"r1": 100}
    document = copy.deepcopy(write_route(replace(ROUTE, shares=shares), wrote))
    edit(document["spec"])
    return read_route(document, name="flights", site=reads or wrote)


def rule(spec: Spec) -> Spec:
    found: Spec = spec["rules"][0]
    return found


def fill_in(spec: Spec) -> None:
    """What an API server may add by itself, one of these days; and what a gateway reports stands elsewhere."""
    spec |= {"useDefaultGateways": "None", "clusterIP": "10.0.0.7", "sessionAffinity": "None"}
    for each in spec.get("rules", []):
        each |= {"name": "", "filters": [], "timeouts": {}}
        for backend in each["backendRefs"]:
            backend |= {"filters": [], "appProtocol": "http"}
        for match in each["matches"]:
            match |= {"headers": [], "queryParams": [], "caseSensitive": True}


def any_order(spec: Spec) -> None:
    for each in (rule(spec)["matches"], rule(spec)["backendRefs"]):
        each.reverse()


@pytest.mark.parametrize("site", [SITE, ADDRESS, ANYWHERE, replace(SITE, serving=PlatformOwner.SELDON)])
@pytest.mark.parametrize("shares", [{}, {"r1": 100}])
@pytest.mark.parametrize("route", [ROUTE, OVER_GRPC], ids=["http", "grpc"])
def test_what_we_wrote_is_nobodys_edit_whatever_is_filled_in(
    site: ClusterSite, shares: dict[str, int], route: Route
) -> None:
    document = copy.deepcopy(write_route(replace(route, shares=shares), site))
    for _ in range(2):
        found = read_route(document, name="flights", site=site)
        assert (found.shares, found.lost, found.beside) == (shares, "", ())
        fill_in(document["spec"])


@pytest.mark.parametrize(
    "edit",
    [
        any_order,
        lambda spec: spec.pop("hostnames"),
        lambda spec: spec.update(hostnames=["*.models.example.com"]),
        lambda spec: spec["hostnames"].append("other.example.com"),
        lambda spec: spec["parentRefs"].insert(0, {**spec["parentRefs"][0], "name": "inner"}),
        lambda spec: rule(spec)["backendRefs"][0].update(weight=1),
        lambda spec: rule(spec)["backendRefs"].append({"name": "mine", "port": 81, "weight": 5}),
    ],
)
def test_what_keeps_nobody_away_does_not_say_so(edit: Callable[[Spec], object]) -> None:
    assert read(edit).lost == ""


def test_a_host_that_is_written_by_an_older_muster_without_any_is_as_ours() -> None:
    assert read(lambda spec: spec.pop("hostnames"), wrote=ADDRESS).beside == ()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda spec: spec.update(hostnames=["old.example"]),
            f'spec.hostnames is ["old.example"], not ["{HOST}"]',
        ),
        (
            lambda spec: spec.update(hostnames=["*.example.com.evil", "*.s.example.com"]),
            f'spec.hostnames is ["*.example.com.evil", "*.s.example.com"], not ["{HOST}"]',
        ),
        (
            lambda spec: spec["parentRefs"][0].update(name="inner"),
            'spec.parentRefs[0].name is "inner", not "public"',
        ),
        (
            lambda spec: spec["parentRefs"][0].update(sectionName="https"),
            'spec.parentRefs[0].sectionName is "https", and should not be there',
        ),
        (
            lambda spec: rule(spec)["matches"].pop(0),
            'spec.rules[0].matches lacks {"path": {"type": "PathPrefix", "value": "/v2/models/flights"}}',
        ),
        (
            lambda spec: rule(spec)["matches"][2].update(method="GET"),
            'spec.rules[0].matches lacks {"path": {"type": "Exact", "value": "/v1/models/flights:predict"}}',
        ),
        (
            lambda spec: rule(spec).update(matches=[{"path": {"type": "PathPrefix", "value": "/"}}]),
            'spec.rules[0].matches lacks {"path": {"type": "PathPrefix", "value": "/v2/models/flights"}}',
        ),
        (
            lambda spec: spec["rules"][0].pop("matches"),
            'spec.rules[0].matches lacks {"path": {"type": "PathPrefix", "value": "/v2/models/flights"}}',
        ),
        (
            lambda spec: spec.update(rules=[]),
            'spec.rules lacks {"backendRefs": [], "matches": [{"path": {"type":',
        ),
        (
            lambda spec: rule(spec)["backendRefs"][0].update(port=81),
            'spec.rules[0].backendRefs lacks {"group": "", "kind": "Service", "name": "flights-r1-predictor"',
        ),
        (
            lambda spec: rule(spec).update(filters=[{"type": "URLRewrite", "urlRewrite": {}}]),
            "spec.rules[0].filters has URLRewrite, and should not be there",
        ),
    ],
)
def test_what_may_keep_users_away_is_told_with_what_it_should_be(
    edit: Callable[[Spec], object], said: str
) -> None:
    assert read(edit).lost.startswith(said)


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (
            lambda spec: rule(spec).update(filters=[{"type": "ResponseHeaderModifier"}]),
            "spec.rules[0].filters",
        ),
        (lambda spec: rule(spec).update(timeouts={"request": "1s"}), "spec.rules[0].timeouts"),
        (
            lambda spec: rule(spec)["backendRefs"][1].update(filters=[{"type": "RequestMirror"}]),
            "spec.rules[0].backendRefs[1].filters",
        ),
        (lambda spec: spec["rules"].append({"backendRefs": []}), "spec.rules"),
        (lambda spec: rule(spec)["matches"].append({"path": {"value": "/"}}), "spec.rules[0].matches"),
        (lambda spec: spec["parentRefs"].append({"name": "inner"}), "spec.parentRefs"),
        (lambda spec: spec["hostnames"].append("other.example.com"), "spec.hostnames"),
        (lambda spec: spec.pop("hostnames"), "spec.hostnames"),
    ],
)
def test_what_stands_beside_is_named(edit: Callable[[Spec], object], where: str) -> None:
    found = read(edit)
    assert (found.lost, found.beside) == ("", (where,))


@pytest.mark.parametrize(
    ("wrote", "reads", "said"),
    [
        (SITE, replace(SITE, serving_url="https://{name}.other.example"), '["flights.other.example"]'),
        (SITE, ADDRESS, f'spec.hostnames is ["{HOST}"], not []'),
        (ADDRESS, SITE, ""),  # it is for any host
        (SITE, replace(SITE, gateway="gateways/inner"), 'spec.parentRefs[0].name is "public", not "inner"'),
        (SITE, replace(SITE, serving=PlatformOwner.SELDON), "spec.rules[0].backendRefs lacks"),
    ],
)
def test_who_reads_with_other_settings_is_told_what_differs(
    wrote: ClusterSite, reads: ClusterSite, said: str
) -> None:
    found = read(wrote=wrote, reads=reads)
    assert said in found.lost
    assert bool(found.lost) == bool(said)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda spec: spec["selector"].update(app="mine"), "spec.selector is "),
        (lambda spec: spec["ports"][0].update(targetPort=81), "spec.ports[0].targetPort is 81, not 8080"),
        (
            lambda spec: spec.update(externalName="example.com"),
            'spec.externalName is "example.com", and should',
        ),
        (lambda spec: spec["ports"].append({"name": "more", "port": 81}), ""),
    ],
)
def test_a_service_that_somebody_edited(edit: Callable[[Spec], object], said: str) -> None:
    found = read(edit, wrote=ANYWHERE)
    assert found.lost.startswith(said)
    assert bool(found.lost) == bool(said)
    assert found.beside == ()
