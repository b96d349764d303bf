"""Each account may do what its work needs, and is refused everything else: both were tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster import furniture, kubectl, reaper, store
from tests.cluster.accounts import JOB, NAMESPACE
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.rights import ACCOUNTS, DEEDS, MAY, table, tried
from tests.cluster.scripted import WAIT, Jobs, job, jobs

pytestmark = pytest.mark.cluster

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
