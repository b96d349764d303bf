"""The rights that doctor asks for are those that the chart gives to the account."""

from __future__ import annotations

from collections.abc import Iterable

from tests.cluster.furniture import objects

from muster.backends.kubernetes.api.kinds import INFERENCE_SERVICE, JOB, POD, SELDON_DEPLOYMENT, Kind
from muster.backends.kubernetes.cluster.rights import Right, helpful, needed, rules, serving_rights


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
