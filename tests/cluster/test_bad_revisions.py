"""Bad revisions and a platform that fails, on a real cluster: users lose nothing, and the state is told truly.

For each it is shown what users lost, how long it took, and the last lines of the log of a task that released it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import daemons, deploying, kubectl, serving
from tests.cluster.accounts import NAMESPACE
from tests.cluster.clearing import MADE
from tests.cluster.lines import CANARY, SMALL, Line, last_change
from tests.contract.test_deployments import finish
from tests.serving.bad_lines import answers_500, answers_wrongly, crashes, eats_memory, other_shape, slow
from tests.serving.load import Load, lost
from tests.waiting import eventually

from muster.airflow.operators.releasing import refusal_text
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.kinds import CONTAINER
from muster.backends.kubernetes.serving.platform import ClusterPlatform
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import promote, roll_back, tidy
from muster.backends.releases.plan import Plan, Rules
from muster.core.deployment import DeploymentSpec, RevisionState
from muster.core.errors import BackendError, Conflict, Corrupt, NotFound, Unreachable

pytestmark = pytest.mark.cluster

BAD = "bad revisions: users' requests that were lost, seconds to the end, the last lines of the task's log"
PLATFORM = "a platform that fails, and a rollback by hand"
PATIENT = replace(CANARY, hold_seconds=(60.0, 0.0))
Show = Callable[[str, object], None]


def refused(line: Line, spec: DeploymentSpec, plan: Plan, show: Show, what: str) -> tuple[Outcome, Load]:
    """Release a bad version while users ask, and show how that went."""
    before = line.champion
    with line.users() as load:
        began = time.monotonic()
        outcome = line.release(spec, plan)
        seconds = time.monotonic() - began
    status = line.deployments.deployment(line.name)
    text = refusal_text(status, outcome, name=line.name, model=spec.model.address)
    head = f"{what:12} {lost(load):32} {seconds:5.1f} s"
    show(BAD, "\n".join([head, *(f"    {each}" for each in text.splitlines())]))
    assert outcome.ending is Ending.ROLLED_BACK
    assert (status.shares, status.release, status.ready) == ({before: 100}, None, True)
    found = status.called(outcome.revision)
    assert found is not None
    assert (found.state, found.reason) == (RevisionState.REFUSED, outcome.reason)
    assert line.answers() == (before, 4.0)
    eventually(lambda: deploying.pods(line.served.of, line.name, outcome.revision) == [])
    return outcome, load


ANYWHERE = {"500", "wrong", "shape", "slow to load", "too small"}
"""What the smoke requests find, as on one machine: ``tests/contract/test_deployments.py``, ``tests/airflow/test_release_faults.py``; and what others show."""
REFUSED: dict[str, tuple[Callable[[Path], Path] | None, dict[str, Any], tuple[str, ...]]] = {
    "crashes": (crashes, {}, ("before it had any traffic",)),
    "500": (answers_500, {}, ("smoke request 'two': HTTP 500",)),
    "wrong": (answers_wrongly, {}, ("output 'y' is 6.0, expected min 4 and max 4",)),
    "shape": (other_shape, {}, ("input 'x' is unknown; this model takes",)),
    "slow to load": (None, {"load_timeout_seconds": 1.0}, ("are ready after 1 s",)),
    "too small": (
        None,
        {"resources": replace(SMALL, memory_gib=0.06)},
        ("it needed more memory than it is given", "exit code 137"),
    ),
    "eats memory": (  # it dies of that; where the machine itself would not have it, it is refused that
        eats_memory,
        {},
        ("it needed more memory than it is given", "exit code 137", "Failed to allocate memory"),
    ),
    "no node": (
        None,
        {"resources": replace(SMALL, cpus=1000), "load_timeout_seconds": 5.0},
        ("no node for it",),
    ),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.nightly] if what in ANYWHERE else []) for what in REFUSED]
)
def test_one_that_will_not_do_is_refused_and_users_see_nothing_of_it(
    line: Line, record_property: Show, what: str
) -> None:
    make, changes, words = REFUSED[what]
    before = line.champion
    spec = line.spec(make and make(line.folder), **changes)
    outcome, load = refused(line, spec, CANARY, record_property, what)
    assert any(each in outcome.reason for each in words), outcome.reason
    assert load.failed == {}
    assert set(load.answers) == {f"revision {before}"}


@pytest.mark.nightly  # rules of a release, as on one machine: unit/backends/releases/test_driver.py
def test_one_that_is_slow_is_taken_back(line: Line, record_property: Show) -> None:
    plan = replace(PATIENT, rules=Rules(fewest_requests=20))
    spec = line.spec(slow(line.folder), smoke=(), resources=replace(SMALL, memory_gib=1))
    outcome, load = refused(line, spec, plan, record_property, "slow")
    assert "95 % of its requests took up to" in outcome.reason
    assert load.failed == {}


@pytest.mark.nightly  # the same
def test_one_that_was_let_through_harms_within_its_share_alone(line: Line, record_property: Show) -> None:
    before = line.champion
    driver = line.begin(line.spec(answers_500(line.folder), smoke=()), PATIENT)
    with line.users() as load:
        broken = list[float]()

        def taken_back() -> bool:
            ended = driver.step() is not None
            if load.failed and not broken:
                broken.append(time.monotonic())  # the first one is more than fifty requests may have
            return ended or any("taken back" in each for each in line.said)

        eventually(taken_back)
        done = time.monotonic()
        seconds = last_change(lambda: sum(load.failed.values()))
        outcome, bad = finish(driver), sum(load.failed.values())
    share = sum(load.failed.values()) / load.sent
    record_property(
        BAD,
        f"{'500, let in':12} {lost(load):32} the last {done - broken[0] + seconds:.2f} s after the first, "
        f"{seconds:.2f} s after it was taken back, {share:.1%} of all",
    )
    assert outcome.ending is Ending.ROLLED_BACK
    assert "requests failed" in outcome.reason
    assert {what[:8] for what in load.failed} == {"HTTP 500"}
    assert sum(load.failed.values()) == bad  # it gets no more requests
    assert line.answers() == (before, 4.0)


def test_one_that_dies_with_traffic_is_taken_back(line: Line, record_property: Show) -> None:
    before = line.champion
    driver = line.begin(line.spec(), replace(CANARY, hold_seconds=(120.0, 0.0)))
    line.has(driver, 20)
    (pod,) = deploying.pods(line.served.of, line.name, driver.revision)
    words = (pod["metadata"]["name"], f"--namespace={NAMESPACE}", f"--container={CONTAINER}")
    with line.users() as load:
        kubectl.ask(line.served.of, "exec", *words, "--", "python3", "-c", "import os; os.kill(1, 15)")
        began = time.monotonic()
        seen = 0

        def taken_back() -> bool:
            nonlocal seen
            seen = told_by_the_gateway(load)
            with suppress(BackendError):  # no replica says how it is; what the Gateway counts is kept
                line.deployments.counts(line.name)
            assert driver.step() is None
            return any("taken back" in each for each in line.said)

        eventually(taken_back)
        counted = line.deployments.counts(line.name)[driver.revision].failed
        outcome = finish(driver)
        seconds = time.monotonic() - began
    record_property(
        BAD,
        f"{'dies':12} {lost(load):32} {seconds:5.1f} s  {outcome.reason}; {counted} counted, of {seen} so far",
    )
    assert seen <= counted <= told_by_the_gateway(load)
    assert outcome.ending is Ending.ROLLED_BACK
    assert any(told in outcome.reason for told in ("died", "none of its", "does not answer"))
    assert line.answers() == (before, 4.0)


def told_by_the_gateway(load: Load) -> int:
    """How many users it told that no server answered."""
    answers = dict(load.answers)  # at once: it goes on
    return sum(number for what, number in answers.items() if what.startswith(("HTTP 502", "HTTP 504")))


@pytest.mark.nightly  # a revision that does not load is refused above
def test_a_version_that_is_gone(line: Line, record_property: Show) -> None:
    spec = line.spec(load_timeout_seconds=15.0)
    gone = replace(spec, model=replace(spec.model, address=f"volume://lines/{line.name}@99"))
    with pytest.raises(NotFound, match="99"):
        line.deployments.prepare(gone, by="test")
    (found,) = line.served.store.resolve(spec.model.address)
    driver = line.begin(spec)  # it goes before a replica has it
    folder = line.served.of.claim / line.served.site.folder / f"v/{found.volume}/{found.number}"
    for file in (folder / "data").iterdir():  # its folder stays: a kubelet would make another, and own it
        file.unlink()
    try:
        with line.users() as load:
            began = time.monotonic()
            outcome = finish(driver)
            seconds = time.monotonic() - began
    finally:
        shutil.rmtree(folder)
    record_property(BAD, f"{'gone':12} {lost(load):32} {seconds:5.1f} s  {outcome.reason}")
    assert outcome.ending is Ending.ROLLED_BACK
    assert load.failed == {}


def test_a_quota_that_holds_no_second_revision(line: Line, record_property: Show) -> None:
    eventually(lambda: not any("deletionTimestamp" in pod["metadata"] for pod in all_pods(line)))
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tests", "namespace": NAMESPACE, "labels": {MADE: "true"}},
        "spec": {"hard": {"pods": str(len(all_pods(line)))}},
    }
    kubectl.apply(line.served.of, [quota])
    try:
        words = ("resourcequota", "tests", f"--namespace={NAMESPACE}")
        eventually(lambda: "used" in kubectl.get(line.served.of, *words).get("status", {}))
        outcome, load = refused(
            line, line.spec(load_timeout_seconds=8.0), CANARY, record_property, "no quota"
        )
    finally:
        kubectl.delete(line.served.of, [quota])
    assert "its pods cannot be made" in outcome.reason
    assert "exceeded quota" in outcome.reason
    assert load.failed == {}


def all_pods(line: Line) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.get(line.served.of, "pods", f"--namespace={NAMESPACE}")["items"]
    return found


@pytest.mark.nightly  # test_deployments.py edits one
def test_a_route_that_somebody_else_has_edited(line: Line) -> None:
    before = line.champion
    status = line.deployments.deployment(line.name)
    place = [each["name"] for each in backends(line)].index(f"{line.name}-{before}-predictor")
    weights = [{"op": "replace", "path": f"/spec/rules/0/backendRefs/{place}/weight", "value": 50}]
    words = ("patch", "httproute", line.name, f"--namespace={NAMESPACE}", "--type=json")
    kubectl.run(line.served.of, *words, f"--patch={json.dumps(weights)}")
    with pytest.raises(Conflict):
        line.deployments.shift(line.name, {before: 100}, token=status.token, release=None)
    assert line.deployments.deployment(line.name).shares == {before: 100}  # half of half is all
    assert line.release(line.spec()).ending is Ending.DONE
    after = line.champion
    eventually(lambda: line.answers() == (after, 4.0))
    edit(line, {"spec": {"hostnames": ["old.example"]}})
    eventually(lambda: line.answers() is None)
    status = line.deployments.deployment(line.name)
    assert (status.ready, status.shares) == (False, {after: 100})
    assert 'users may not reach it: in its route spec.hostnames is ["old.example"], not []' in status.reason
    promote(line.deployments, line.name, after, by="test")
    eventually(lambda: line.answers() == (after, 4.0))
    status = line.deployments.deployment(line.name)
    assert (status.ready, status.reason) == (True, "")
    (rule,) = route(line)["spec"]["rules"]
    header = {"set": [{"name": "x-edited", "value": "yes"}]}  # users are served with it, too
    filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": header}]
    edit(line, {"spec": {"rules": [{**rule, "filters": filters}]}})
    told = "its route is not as muster writes it here in spec.rules[0].filters"
    eventually(lambda: line.deployments.deployment(line.name).reason.startswith(told))
    assert line.deployments.deployment(line.name).ready
    kept = route(line)["metadata"]["annotations"][names.NOTES]
    write_notes(line, "{}")
    try:
        with pytest.raises(Corrupt, match="users are served as before"):
            line.deployments.deployment(line.name)
        assert line.answers() == (after, 4.0)
    finally:
        write_notes(line, kept)
    promote(line.deployments, line.name, after, by="test")
    assert route(line)["spec"]["rules"] == [rule]
    assert line.answers() == (after, 4.0)


def route(line: Line) -> dict[str, Any]:
    return kubectl.get(line.served.of, "httproute", line.name, f"--namespace={NAMESPACE}")


def backends(line: Line) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = route(line)["spec"]["rules"][0]["backendRefs"]
    return found


def write_notes(line: Line, text: str) -> None:
    edit(line, {"metadata": {"annotations": {names.NOTES: text}}})


def edit(line: Line, change: dict[str, Any]) -> None:
    words = ("patch", "httproute", line.name, f"--namespace={NAMESPACE}", "--type=merge")
    kubectl.run(line.served.of, *words, f"--patch={json.dumps(change)}")


def test_without_kserves_controller_what_serves_serves_and_rolls_back(
    line: Line, record_property: Show
) -> None:
    before = line.champion
    assert line.release(line.spec()).ending is Ending.DONE
    after = line.champion
    daemons.stop(line.served.of, "kserve")
    try:
        with line.users() as load:
            platform = ClusterPlatform(
                line.served.client.patient(1.0),
                site=line.served.site,
                store=lambda: line.served.store,
                open_spool=lambda _deployment: None,
            )
            quick = Deployments(platform, lambda: line.served.store)
            with pytest.raises(Unreachable, match="webhook"):
                quick.prepare(line.spec(answers_wrongly(line.folder)), by="other")
            seconds = by_hand(line, {before: 100, after: 0}, before)
        said = f"a rollback without KServe: in force after {seconds:.2f} s, {lost(load)} lost"
        record_property(PLATFORM, said)
        assert load.failed == {}
    finally:
        serving.start(line.served.of, "kserve")


def by_hand(line: Line, shares: dict[str, int], expected: str) -> float:
    """Write the shares, and return after how many seconds they are in force."""
    began = time.monotonic()
    status = line.deployments.deployment(line.name)
    line.deployments.shift(line.name, shares, token=status.token, release=None)
    eventually(lambda: line.answers() == (expected, 4.0), seconds=2)
    return time.monotonic() - began


def test_a_gateway_that_is_down_is_told_and_the_next_one_goes_on(line: Line, record_property: Show) -> None:
    before = line.champion
    driver = line.begin(line.spec())
    new = driver.revision
    eventually(lambda: line.deployments.deployment(line.name).called(new).state is RevisionState.READY)  # type: ignore[union-attr]
    daemons.stop(line.served.of, "traefik")
    shares = {before: 80, new: 20}
    try:
        status = line.deployments.deployment(line.name)
        with pytest.raises(Unreachable, match="is its controller running"):
            line.deployments.shift(line.name, shares, token=status.token, release=status.release)
        status = line.deployments.deployment(line.name)
        assert (status.ready, status.shares) == (False, shares)
        assert "is its controller running" in status.reason
    finally:
        began = time.monotonic()
        serving.start(line.served.of, "traefik")
    eventually(lambda: line.answers() is not None)
    seconds = time.monotonic() - began
    record_property(PLATFORM, f"a Gateway that was started again: users are answered after {seconds:.2f} s")
    eventually(lambda: line.deployments.deployment(line.name).ready)
    assert finish(driver).ending is Ending.DONE
    eventually(lambda: line.answers() == (new, 4.0))


@pytest.mark.nightly  # without KServe's controller, above
def test_a_rollback_by_hand_is_in_force_within_two_seconds(line: Line, record_property: Show) -> None:
    before = line.champion
    assert line.release(line.spec()).ending is Ending.DONE
    after = line.champion
    with line.users() as load:
        seconds = by_hand(line, {before: 100, after: 0}, before)
    record_property(PLATFORM, f"a rollback by hand: in force after {seconds:.2f} s, {lost(load)} lost")
    assert load.failed == {}
    assert tidy(line.deployments, line.name) == ()
    assert roll_back(line.deployments, line.name, by="test") == after
