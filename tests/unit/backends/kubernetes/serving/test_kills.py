"""Every step cut off before and after each of its requests, and done by the next; and by another writer in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import Cut, at_request, die
from tests.unit.backends.kubernetes.serving.fake_serving import World, world

from muster.backends.kubernetes.api.kinds import CONFIG_MAP, HTTP_ROUTE, INFERENCE_SERVICE
from muster.backends.releases.decision import Ending
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.driver import begin
from muster.backends.releases.manual import tidy
from muster.backends.releases.plan import Plan
from muster.core.deployment import RevisionState
from muster.core.errors import Conflict

STEPS = Plan(steps=(20, 100))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def release(there: World, number: int, deployments: Deployments | None = None) -> Ending:
    """Release a version in the name of one task, from wherever that is."""
    driver = begin(deployments or there.deployments(), there.spec(number, smoke=()), STEPS, by="ti-1")
    while (outcome := driver.step()) is None:
        continue
    return outcome.ending


def requests(there: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[Deployments], object]) -> int:
    """How many requests an act sends, once the cluster is known."""
    deployments = there.surveyed()
    with at_request(monkeypatch, 0, die, after=False) as sent:
        act(deployments)
    return len(sent)


def check_users_are_served(there: World, *models: int) -> None:
    """All traffic goes to replicas that are there, of one of these versions."""
    weights = {name: weight for name, weight in there.weights().items() if weight}
    names = {f"{each['metadata']['name']}-predictor" for each in there.cluster.all(INFERENCE_SERVICE)}
    assert sum(weights.values()) == 100
    assert weights.keys() <= names
    status = there.deployments().deployment("lines")
    assert {one.model for one in status.revisions if one.percent} <= {there.version(n) for n in models}


@pytest.mark.slow  # a hundred releases
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_release_killed_at_any_request_is_finished_by_the_next(
    there: World, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """And at no moment is a user sent to what is not there."""
    release(there, 1)
    total = requests(there, monkeypatch, lambda deployments: release(there, 2, deployments))
    assert total > 20
    for step in range(1, total + 1):
        before = there.deployments().deployment("lines").champion
        assert before is not None
        number = len(there.versions) + 1
        there.version(number)
        deployments = there.surveyed()
        with at_request(monkeypatch, step, die, after=after), suppress(Cut):
            release(there, number, deployments)
        check_users_are_served(there, number - 1, number)
        assert release(there, number) is Ending.DONE
        tidy(there.deployments(), "lines")
        status = there.deployments().deployment("lines")
        assert status.champion is not None
        assert status.champion.model == there.version(number)
        live = [one.name for one in status.revisions if not one.state.over]
        assert {each["metadata"]["name"] for each in there.cluster.all(INFERENCE_SERVICE)} == {
            f"lines-{name}" for name in live
        }
        assert len(live) == 2  # and the one that is kept
        assert len(there.cluster.all(CONFIG_MAP)) == 2


@pytest.mark.slow  # a hundred releases
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_retirement_killed_at_any_request_is_done_by_the_next(
    there: World, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    release(there, 1)
    release(there, 2)
    total = requests(there, monkeypatch, lambda deployments: deployments.retire("lines"))
    for step in range(1, total + 1):
        release(there, 1)
        release(there, 2)
        with at_request(monkeypatch, step, die, after=after), suppress(Cut):
            there.deployments().retire("lines")
        if there.deployments().names():
            there.deployments().retire("lines")
        for kind in (HTTP_ROUTE, INFERENCE_SERVICE, CONFIG_MAP):
            assert there.cluster.all(kind) == []


def test_somebody_who_writes_between_any_two_requests_wins_or_waits(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shift is decided on one look: whatever came in between, it is not written over."""
    release(there, 1)
    release(there, 2)
    for step in range(1, 12):
        deployments, other = there.deployments(), there.deployments()
        status = deployments.deployment("lines")
        written: list[str] = []

        def write(other: Deployments = other, written: list[str] = written) -> None:
            look = other.deployment("lines")
            written.append(other.shift("lines", {"r1": 50, "r2": 50}, token=look.token, release=None))

        with at_request(monkeypatch, step, write, after=False) as sent, suppress(Conflict):
            deployments.shift("lines", {"r1": 0, "r2": 100}, token=status.token, release=None)
        if len(sent) < step:
            break
        assert there.deployments().deployment("lines").shares == {"r1": 50, "r2": 50}
        look = other.deployment("lines")
        other.shift("lines", {"r1": 0, "r2": 100}, token=look.token, release=None)
    else:
        pytest.fail("a shift sends more requests than were tried")
    assert step > 2


def test_a_withdrawal_cut_off_is_told_and_finished(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    release(there, 1)
    release(there, 2)
    deployments = there.deployments()
    status = deployments.deployment("lines")
    deployments.shift("lines", {"r2": 100}, token=status.token, release=None)

    def withdraw(of: Deployments) -> None:
        of.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="over")

    with at_request(monkeypatch, 3, die, after=True), pytest.raises(Cut):
        withdraw(there.deployments())
    found = there.deployments().deployment("lines").called("r1")
    assert found is not None
    assert found.state is RevisionState.RETIRED
    withdraw(there.deployments())
    assert len(there.cluster.all(INFERENCE_SERVICE)) == 1
