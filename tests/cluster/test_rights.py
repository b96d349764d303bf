"""Each account may do what its work needs, and is refused everything else: both were tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster import furniture, kubectl, reaper, store
from tests.cluster.accounts import JOB, NAMESPACE, OPERATOR, REAPER
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.rights import ACCOUNTS, DEEDS, MAY, table, tried
from tests.cluster.scripted import SITE, WAIT, Jobs, connection, job, jobs

from muster.backends.kubernetes import trial
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD, SERVICE
from muster.core.errors import SpecError

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

TOKEN = "kube-api-access-"  # the volume with an account's token, as the API server names it


@pytest.fixture(scope="module")
def here() -> Iterator[Jobs]:
    with jobs(layout()) as found:
        yield found
        found.clear()


@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_account_may_do_its_work_and_nothing_else(account: str) -> None:
    found = tried(layout(), account)
    print(table({account: found}))
    assert {str(deed) for deed, may in found.items() if may} == {str(deed) for deed in MAY[account]}


def test_everything_that_an_account_may_do_is_tried() -> None:
    assert set().union(*MAY.values()) <= set(DEEDS)


@pytest.mark.parametrize("account", ACCOUNTS)
def test_every_right_that_an_account_has_been_given_is_one_that_its_work_needs(account: str) -> None:
    needed = {(deed.verb, deed.kind.group, deed.resource) for deed in MAY[account]}
    assert given(account) == needed


def given(account: str) -> set[tuple[str, str, str]]:
    """What the chart's bindings give to an account: verbs, groups, resources."""
    found = furniture.standing()
    roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in found if "rules" in each}
    bound = [
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in found
        if account in [subject["name"] for subject in each.get("subjects", ())]
    ]
    return {
        (verb, group, resource)
        for role in bound
        for rule in roles[role]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


PLACE = trial.TrialPlace(site=replace(SITE, images={"trial": "trial"}), keys="muster-store", account=REAPER)
POD_OF_A_JOB = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "trial", "namespace": NAMESPACE, "labels": {"muster.dev/job": "trial"}},
    "spec": trial.pod_of(trial.job(PLACE, job_sets=False).owner),
}


@pytest.fixture(scope="module")
def wider() -> Iterator[None]:
    """Rights that the chart gives neither to the operator's account nor to that of jobs: making every one of these kinds."""
    kinds = {
        "": ["pods", "secrets", "services"],
        "batch": ["jobs"],
        "jobset.x-k8s.io": ["jobsets"],
    }
    metadata = {"name": "wider", "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [
                {"apiGroups": [group], "resources": plurals, "verbs": ["create", "patch", "delete"]}
                for group, plurals in kinds.items()
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "wider"},
            "subjects": [
                {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE} for name in (OPERATOR, JOB)
            ],
        },
    ]
    kubectl.apply(layout(), objects)
    yield
    kubectl.delete(layout(), objects)


def client(account: str) -> Client:
    return Client(connection(layout(), account), patience_seconds=10)


@pytest.mark.usefixtures("wider")
@pytest.mark.parametrize("account", [OPERATOR, JOB])
def test_no_account_reaches_the_store_or_another_account_through_what_it_makes(account: str) -> None:
    """Also one that may make pods: what is in an object is looked at, whichever kind it is."""
    asking = client(account)
    assert trial.refusal(asking, POD_OF_A_JOB) == ""
    tried = [*trial.attempts(PLACE), *trial.attempts_of(POD_OF_A_JOB, PLACE)]
    found = {what: trial.refusal(asking, document) for what, document in tried}
    print("\n".join(f"{what}: {said}" for what, said in found.items()))
    assert {what for what, said in found.items() if trial.POLICY not in said} == set()
    assert len(found) > 40


def test_a_job_that_would_read_the_keys_is_refused_when_it_is_made() -> None:
    """No dry run: with the operator's rights as they are, under the reaper's account, with the store's keys as a volume."""
    document = trial.job(PLACE, job_sets=False).owner
    pod = trial.pod_of(document)
    pod |= {"serviceAccountName": REAPER, "automountServiceAccountToken": True}
    pod["volumes"].append({"name": "keys", "secret": {"secretName": "muster-store"}})
    with pytest.raises(SpecError, match=f"its pods would run under service account {REAPER}, and here pods"):
        client(OPERATOR).create(document)


def test_what_an_account_asks_for_is_of_its_own_namespace_s_policy_alone() -> None:
    """Who administers the cluster is not held to it, nor is what Kubernetes itself makes of an object that was taken."""
    document = dict(trial.attempts(PLACE))[f"a Job under service account {REAPER}"]
    words = ("create", "--dry-run=server", "--filename=-", "--output=name")
    assert kubectl.run(layout(), *words, stdin=json.dumps(document)).strip() == "job.batch/trial"


@pytest.mark.usefixtures("wider")
def test_no_account_takes_over_the_store_s_service() -> None:
    """Where there is no Gateway the operator's account may write Services: those of deployments alone."""
    store.deploy(layout())
    asking = client(OPERATOR)
    with pytest.raises(SpecError, match="write the Services of deployments alone"):
        asking.patch(SERVICE, "muster-store", {"spec": {"selector": {"app": "mine"}}}, namespace=NAMESPACE)
    with pytest.raises(SpecError, match="write the Services of deployments alone"):
        asking.delete(SERVICE, "muster-store", namespace=NAMESPACE)


def test_the_operator_s_account_asks_no_pod_of_muster_s_own_through_the_api_server() -> None:
    of = layout()
    store.deploy(of)
    (pod,) = pods(of, "app=muster-store")
    with pytest.raises(SpecError, match="reach the pods of jobs and model servers through the API server"):
        client(OPERATOR).get(POD, f"{pod['metadata']['name']}", namespace=NAMESPACE, subresource="proxy")


def pods(of: Layout, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.get(
        of, "pods", f"--namespace={NAMESPACE}", f"--selector={selector}"
    )["items"]
    return found


def tokens(pod: dict[str, Any]) -> list[str]:
    return [volume["name"] for volume in pod["spec"]["volumes"] if volume["name"].startswith(TOKEN)]


def test_pods_of_jobs_have_no_token(here: Jobs) -> None:
    here.start("tokenless", job("tokenless"), WAIT)
    here.until("tokenless", "it has pods", lambda seen: len(seen.pods) == 2)
    for pod in pods(here.layout, "muster.dev/job=tokenless"):
        assert (pod["spec"]["serviceAccountName"], tokens(pod)) == (JOB, [])


def test_of_our_own_services_only_the_reaper_has_one() -> None:
    of = layout()
    store.deploy(of)
    reaper.deploy(of)
    assert [tokens(pod) for pod in pods(of, "app=muster-store")] == [[]]
    assert [len(tokens(pod)) for pod in pods(of, "app=muster-reaper")] == [1, 1]
