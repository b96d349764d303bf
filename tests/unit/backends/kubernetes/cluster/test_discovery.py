from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.backends.kubernetes.api_server import ApiServer, api_server
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE, FakeCluster

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, WORKLOAD
from muster.backends.kubernetes.cluster.discovery import QUICK_SECONDS, Survey
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Forbidden, Unreachable

SITE = ClusterSite(namespace=NAMESPACE, claim="muster-store", store_url="http://store")


class Clock:
    """Advances where a caller sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def server(cluster: FakeCluster) -> Iterator[ApiServer]:
    with api_server(cluster) as server:
        yield server


@pytest.fixture
def survey(server: ApiServer, clock: Clock) -> Survey:
    return Survey(Client(server.api(), clock=clock, sleep=clock.sleep), SITE, clock=clock)


def test_it_looks_again_where_what_it_knows_is_old(survey: Survey, server: ApiServer, clock: Clock) -> None:
    first = survey.cluster()
    assert survey.cluster() is first
    clock.now += 61
    assert survey.cluster() is not first


def test_where_nodes_come_and_go_those_that_are_there_decide_nothing(server: ApiServer) -> None:
    assert Survey(Client(server.api()), SITE).cluster().nodes
    assert Survey(Client(server.api()), replace(SITE, elastic=True)).cluster().nodes is None


def test_kinds_are_those_of_the_last_look_however_old(
    survey: Survey, server: ApiServer, cluster: FakeCluster, clock: Clock
) -> None:
    """A look at jobs does not wait for an API server that is away."""
    kinds = survey.kinds()
    assert {JOB, JOB_SET, WORKLOAD} <= {*kinds}
    cluster.away, asked = True, len(server.asked)
    clock.now += 3600
    assert survey.kinds() == kinds
    assert len(server.asked) == asked


def test_what_an_api_server_forbids_that_has_just_started_is_known_from_before(
    survey: Survey, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.starts = True
    with pytest.raises(Forbidden, match="muster may not get /apis"):
        survey.last()
    cluster.starts = False
    found = survey.last()
    assert found is not None
    cluster.starts = True
    clock.now += 61
    assert survey.last() is found


def test_a_first_look_at_a_cluster_that_is_away_ends_soon(
    survey: Survey, cluster: FakeCluster, clock: Clock
) -> None:
    cluster.away = True
    with pytest.raises(Unreachable):
        survey.kinds()
    assert clock.now <= 2 * QUICK_SECONDS
    assert survey.last() is None
