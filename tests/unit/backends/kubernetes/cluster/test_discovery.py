from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from tests.cluster.furniture import objects
from tests.unit.backends.kubernetes.api_server import ApiServer, api_server
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE, FakeCluster

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    INFERENCE_SERVICE,
    JOB,
    JOB_SET,
    POD,
    SELDON_DEPLOYMENT,
    WORKLOAD,
    Kind,
)
from muster.backends.kubernetes.cluster.discovery import (
    QUICK_SECONDS,
    Right,
    Survey,
    helpful,
    needed,
    rules,
    serving_rights,
)
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


def granted(kind: str, name: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of every rule of a role."""
    (role,) = objects(kind, name=name)
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def named(rights: Iterable[Right]) -> set[tuple[str, str, str]]:
    return {(right.kind.group, right.resource, right.verb) for right in rights}


def test_what_jobs_and_deployments_need_is_what_the_role_grants() -> None:
    wanted = (*needed(kueue=True), *serving_rights(INFERENCE_SERVICE, gateway=True))
    assert named(wanted) == granted("Role", "muster-operator")


def test_pod_groups_are_made_where_no_kueue_starts_gangs_whole() -> None:
    differ = named(needed(kueue=False)) ^ named(needed(kueue=True))
    assert {resource for _, resource, _ in differ} == {"podgroups"}


def test_without_a_gateway_a_service_is_the_route() -> None:
    differ = _rights(INFERENCE_SERVICE, gateway=True) ^ _rights(INFERENCE_SERVICE, gateway=False)
    assert {resource for _, resource, _ in differ} == {"httproutes", "services"}


def test_with_seldon_its_objects_take_the_place_of_kserves() -> None:
    differ = _rights(INFERENCE_SERVICE, gateway=True) ^ _rights(SELDON_DEPLOYMENT, gateway=True)
    assert {resource for _, resource, _ in differ} == {"inferenceservices", "seldondeployments"}


def _rights(kind: Kind, *, gateway: bool) -> set[tuple[str, str, str]]:
    return named(serving_rights(kind, gateway=gateway))


def test_what_helps_is_granted_too() -> None:
    assert named(helpful(kueue=True)) <= granted("ClusterRole", "muster-reader")


def test_rules_of_one_resource_are_one() -> None:
    wanted = (Right("get", JOB), Right("list", JOB), Right("get", POD, "log"))
    assert rules(wanted) == (
        'apiGroups: ["batch"], resources: ["jobs"], verbs: [get, list]; '
        'apiGroups: [""], resources: ["pods/log"], verbs: [get]'
    )
