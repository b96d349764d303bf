from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.backends.kubernetes.api_server import ApiServer, api_server
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE, FakeCluster

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import JOB_SET, POD, Kind
from muster.backends.kubernetes.api.watching import ChangeWatch
from muster.backends.kubernetes.cluster.discovery import Survey
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.sight import Sight
from muster.core.errors import Forbidden, Unreachable

SITE = ClusterSite(namespace=NAMESPACE, claim="muster-store", store_url="http://store")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.closing.set()


@pytest.fixture
def server(cluster: FakeCluster) -> Iterator[ApiServer]:
    with api_server(cluster) as server:
        yield server
        cluster.closing.set()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[Kind, float]:
    """For how long which kind was not heard of."""
    found: dict[Kind, float] = {}
    monkeypatch.setattr(
        ChangeWatch, "silent_seconds", property(lambda watch: found.setdefault(watch.kind, 1.0))
    )
    return found


@pytest.fixture
def sight(server: ApiServer, silent: dict[Kind, float]) -> Iterator[Sight]:
    client = Client(server.api(), patience_seconds=0.0)
    sight = Sight(
        client, site=SITE, survey=Survey(client, SITE), clock=iter(range(100, 10_000, 100)).__next__
    )
    yield sight
    sight.close()


def test_a_mirror_of_which_a_part_is_silent_is_begun_anew(
    sight: Sight, silent: dict[Kind, float], cluster: FakeCluster
) -> None:
    first = sight.follow()
    assert sight.follow() is first
    silent[POD] = 200.0
    cluster.forbidden.add(("watch", "pods"))
    with pytest.raises(Unreachable, match=r"forbids what it allowed before: .* may not follow jobs"):
        sight.follow()
    assert sight.follow() is first, (
        "what there is, is kept where a new one cannot be begun, and not asked at once"
    )
    cluster.forbidden.clear()
    again = sight.follow()
    assert again is not first
    assert again.seen("unknown").root is None


def test_a_cluster_that_is_away_leaves_it_as_it_is(sight: Sight, silent: dict[Kind, float]) -> None:
    first = sight.follow()
    assert sight.follow() is first
    silent |= dict.fromkeys(silent, 200.0)
    assert sight.follow() is first


def test_missing_rights_are_told_as_rules(sight: Sight, cluster: FakeCluster) -> None:
    cluster.forbidden |= {("list", JOB_SET.plural), ("watch", JOB_SET.plural), ("watch", POD.plural)}
    with pytest.raises(Forbidden) as raised:
        sight.follow()
    assert str(raised.value) == (
        f"this account may not follow jobs in namespace {NAMESPACE}: give it a Role with "
        'apiGroups: [""], resources: ["pods"], verbs: [watch]; '
        'apiGroups: ["jobset.x-k8s.io"], resources: ["jobsets"], verbs: [list, watch]'
    )
