"""Bad revisions and a platform that fails, on a real cluster: users lose nothing, and the state is told truly."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import daemons, deploying, kubectl, serving
from tests.cluster.accounts import NAMESPACE
from tests.cluster.deploying import Served, infer
from tests.cluster.inside import layout
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.waiting import eventually

from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.deployments import ClusterDeployments
from muster.backends.local.environments import put_image
from muster.backends.releases.byhand import roll_back, tidy
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.driver import Driver, begin
from muster.backends.releases.plan import Plan, Rules
from muster.core.deployment import DeploymentSpec, RevisionState, SmokeRequest
from muster.core.errors import Conflict, NotFound, Unreachable
from muster.core.resources import Resources
from muster.core.shipped import shipped

pytestmark = pytest.mark.cluster

SMALL = Resources(cpus=0.2, memory_gib=0.5)
TWO = SmokeRequest(name="two", inputs={"x": (2.0,)}, expect={"y": {"min": 4.0, "max": 4.0}})
CANARY = Plan(steps=(20, 100), hold_seconds=(2.0, 0.0), rules=Rules(fewest_requests=20))


@dataclass
class Line:
    """One deployment with a champion, ``y = 2 x``, and users who ask it all the while."""

    served: Served
    deployments: ClusterDeployments
    name: str
    folder: Path
    image: str
    champion: str = ""

    def spec(self, folder: Path | None = None, **changes: Any) -> DeploymentSpec:
        """A spec of a new version. :param folder: what it holds; the good line if it is not given."""
        content = folder or onnx_graph.write_line(self.folder / "line", slope=2.0)
        (content / "note.txt").write_text(secrets.token_hex())  # no version is another one's copy
        fields: dict[str, Any] = {
            "name": self.name,
            "model": self.served.store.add(f"lines/{self.name}", content).pinned,
            "image": "serve",
            "image_digest": self.image,
            "smoke": (TWO,),
            "resources": SMALL,
        }
        return DeploymentSpec(**{**fields, **changes})

    def begin(self, spec: DeploymentSpec, plan: Plan = CANARY) -> Driver:
        return begin(self.deployments, spec, plan, by="test")

    def release(self, spec: DeploymentSpec, plan: Plan = CANARY) -> Outcome:
        return finish(self.begin(spec, plan))

    @contextmanager
    def users(self) -> Iterator[Load]:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
        with Load(serving.PORT, f"/v2/models/{self.name}/infer", body) as load:
            eventually(lambda: load.sent > 100)
            yield load
            sent = load.sent
            eventually(lambda: load.sent > sent + 100)


def finish(driver: Driver) -> Outcome:
    """Drive a release to its end."""
    found: list[Outcome] = []

    def ended() -> bool:
        if (outcome := driver.step()) is not None:
            found.append(outcome)
        return bool(found)

    eventually(ended)
    return found[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with deploying.served(layout(), tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def line(served: Served, tmp_path: Path) -> Iterator[Line]:
    made = Line(
        served=served,
        deployments=served.deployments(),
        name=f"line-{secrets.token_hex(3)}",
        folder=tmp_path,
        image=put_image(served.store, shipped("images") / "serve"),
    )
    assert made.release(made.spec(), Plan()).ending is Ending.DONE
    made.champion = "r1"
    eventually(lambda: answers(made.name) == ("r1", 4.0))
    yield made
    made.deployments.retire(made.name)
    assert deploying.left(served.of) == ""


def answers(name: str) -> tuple[str, float] | None:
    try:
        return infer(name, 2.0)
    except OSError:
        return None


def crashes(folder: Path) -> Path:
    """A version whose model is none."""
    (onnx_graph.write_line(folder / "crashes") / "model.onnx").write_bytes(b"no model")
    return folder / "crashes"


def answers_500(folder: Path) -> Path:
    """A version whose answers are not what its signature promises."""
    return onnx_graph.write_line(folder / "fails", slope=30_000.0)


def answers_wrongly(folder: Path) -> Path:
    """A version that answers well and wrong."""
    return onnx_graph.write_line(folder / "wrong", slope=3.0)


def other_shape(folder: Path) -> Path:
    """A version that takes and gives other columns."""
    return onnx_graph.write_mixed(folder / "mixed")


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (crashes, {}, "before it had any traffic"),
        (answers_500, {}, "smoke request 'two': HTTP 500"),
        (answers_wrongly, {}, "output 'y' is 6.0, expected min 4 and max 4"),
        (other_shape, {}, "input 'x' is unknown; this model takes"),
        (None, {"load_timeout_seconds": 1.0}, "are ready after 1 s"),
        (None, {"resources": replace(SMALL, memory_gib=0.06)}, "it needed more memory than it is given"),
        (None, {"resources": replace(SMALL, cpus=1000), "load_timeout_seconds": 5.0}, "no node for it"),
    ],
    ids=["crashes", "500", "wrong", "shape", "slow to load", "memory", "no node"],
)
def test_one_that_will_not_do_is_refused_and_users_see_nothing_of_it(
    line: Line, make: Callable[[Path], Path] | None, changes: dict[str, Any], words: str
) -> None:
    with line.users() as load:
        outcome = line.release(line.spec(make and make(line.folder), **changes))
    assert outcome.ending is Ending.ROLLED_BACK
    assert words in outcome.reason
    assert load.failed == {}
    assert set(load.answers) == {"revision r1"}
    status = line.deployments.deployment(line.name)
    assert (status.shares, status.release, status.ready) == ({"r1": 100}, None, True)
    assert status.revisions[0].state is RevisionState.REFUSED
    assert words in status.revisions[0].reason
    eventually(lambda: deploying.pods(line.served.of, line.name, "r2") == [])


def test_one_that_was_let_through_harms_within_its_share_alone(line: Line) -> None:
    plan = replace(CANARY, hold_seconds=(60.0, 0.0))
    with line.users() as load:
        outcome = line.release(line.spec(answers_500(line.folder), smoke=()), plan)
        eventually(lambda: load.sent > 100)
        bad = sum(load.failed.values())
        sent = load.sent
        eventually(lambda: load.sent > sent + 1000)
    assert outcome.ending is Ending.ROLLED_BACK
    assert "requests failed" in outcome.reason
    assert {what[:8] for what in load.failed} == {"HTTP 500"}
    assert sum(load.failed.values()) - bad <= 8  # what was on its way
    assert answers(line.name) == ("r1", 4.0)


def test_one_that_dies_with_traffic_is_taken_back(line: Line) -> None:
    plan = replace(CANARY, hold_seconds=(120.0, 0.0))
    driver = line.begin(line.spec(), plan)
    eventually(lambda: not driver.step() and line.deployments.deployment(line.name).shares.get("r2") == 20)
    (pod,) = deploying.pods(line.served.of, line.name, "r2")
    container = "kserve-container"
    words = (pod["metadata"]["name"], f"--namespace={NAMESPACE}", f"--container={container}")
    kubectl.ask(line.served.of, "exec", *words, "--", "python3", "-c", "import os; os.kill(1, 15)")
    outcome = finish(driver)
    assert outcome.ending is Ending.ROLLED_BACK
    assert "died" in outcome.reason or "none of its 1 replicas answers" in outcome.reason
    assert answers(line.name) == ("r1", 4.0)


def test_a_version_that_is_gone(line: Line) -> None:
    spec = line.spec()
    gone = replace(spec, model=replace(spec.model, address=f"volume://lines/{line.name}@99"))
    with pytest.raises(NotFound, match="99"):
        line.deployments.prepare(gone, by="test")
    driver = line.begin(replace(spec, load_timeout_seconds=15.0))
    found = line.served.store.resolve(spec.model.address)[0]
    shutil.rmtree(line.served.of.claim / line.served.site.folder / f"v/{found.volume}/{found.number}/data")
    assert finish(driver).ending is Ending.ROLLED_BACK
    assert answers(line.name) == ("r1", 4.0)


def test_a_quota_that_holds_no_second_revision(line: Line) -> None:
    running = len(kubectl.get(line.served.of, "pods", f"--namespace={NAMESPACE}")["items"])
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tests", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": str(running)}},
    }
    kubectl.apply(line.served.of, [quota])
    try:
        words = ("resourcequota", "tests", f"--namespace={NAMESPACE}")
        eventually(lambda: "hard" in kubectl.get(line.served.of, *words).get("status", {}))
        outcome = line.release(line.spec(load_timeout_seconds=8.0))
    finally:
        kubectl.delete(line.served.of, [quota])
    assert outcome.ending is Ending.ROLLED_BACK
    assert "its pods cannot be made" in outcome.reason
    assert "exceeded quota" in outcome.reason
    assert answers(line.name) == ("r1", 4.0)


def test_a_route_that_somebody_else_has_edited(line: Line) -> None:
    status = line.deployments.deployment(line.name)
    weights = [{"op": "replace", "path": "/spec/rules/0/backendRefs/0/weight", "value": 50}]
    words = ("patch", "httproute", line.name, f"--namespace={NAMESPACE}", "--type=json")
    kubectl.run(line.served.of, *words, f"--patch={json.dumps(weights)}")
    with pytest.raises(Conflict):
        line.deployments.shift(line.name, {"r1": 100}, token=status.token, release=None)
    assert line.deployments.deployment(line.name).shares == {"r1": 100}  # half of half is all
    assert line.release(line.spec()).ending is Ending.DONE
    assert answers(line.name) == ("r2", 4.0)
    notes = json.dumps({"metadata": {"annotations": {names.NOTES: "{}"}}})
    before = kubectl.get(line.served.of, "httproute", line.name, f"--namespace={NAMESPACE}")
    kept = before["metadata"]["annotations"][names.NOTES]
    merge = ("patch", "httproute", line.name, f"--namespace={NAMESPACE}", "--type=merge")
    kubectl.run(line.served.of, *merge, f"--patch={notes}")
    with pytest.raises(Exception, match="users are served as before"):
        line.deployments.deployment(line.name)
    assert answers(line.name) == ("r2", 4.0)
    back = json.dumps({"metadata": {"annotations": {names.NOTES: kept}}})
    kubectl.run(line.served.of, *merge, f"--patch={back}")


def test_without_kserves_controller_what_serves_serves_and_rolls_back(line: Line) -> None:
    assert line.release(line.spec()).ending is Ending.DONE
    daemons.stop(line.served.of, "kserve")
    try:
        with line.users() as load:
            quick = ClusterDeployments(
                line.served.client.patient(1.0), site=line.served.site, store=line.served.store
            )
            with pytest.raises(Unreachable, match="webhook"):
                quick.prepare(line.spec(onnx_graph.write_line(line.folder / "three", slope=3.0)), by="other")
            began = time.monotonic()
            status = line.deployments.deployment(line.name)
            assert status.shares == {"r2": 100}
            shares = {"r1": 100, "r2": 0}
            line.deployments.shift(line.name, shares, token=status.token, release=None)
            eventually(lambda: answers(line.name) == ("r1", 4.0), seconds=2)
            print(f"a rollback without KServe was in force after {time.monotonic() - began:.2f} s")
        assert load.failed == {}
    finally:
        serving.start(line.served.of, "kserve")


def test_a_gateway_that_is_down_is_told_and_the_next_one_goes_on(line: Line) -> None:
    driver = line.begin(line.spec())
    eventually(lambda: line.deployments.deployment(line.name).called("r2").state is RevisionState.READY)  # type: ignore[union-attr]
    daemons.stop(line.served.of, "traefik")
    try:
        status = line.deployments.deployment(line.name)
        with pytest.raises(Unreachable, match="is its controller running"):
            line.deployments.shift(
                line.name, {"r1": 80, "r2": 20}, token=status.token, release=status.release
            )
        status = line.deployments.deployment(line.name)
        assert (status.ready, status.shares) == (False, {"r1": 80, "r2": 20})
        assert "is its controller running" in status.reason
    finally:
        serving.start(line.served.of, "traefik")
    eventually(lambda: line.deployments.deployment(line.name).ready)
    assert finish(driver).ending is Ending.DONE
    eventually(lambda: answers(line.name) == ("r2", 4.0))


def test_a_rollback_by_hand_is_in_force_within_two_seconds(line: Line) -> None:
    assert line.release(line.spec()).ending is Ending.DONE
    with line.users() as load:
        began = time.monotonic()
        status = line.deployments.deployment(line.name)
        line.deployments.shift(line.name, {"r1": 100, "r2": 0}, token=status.token, release=None)
        eventually(lambda: answers(line.name) == ("r1", 4.0), seconds=2)
        print(f"a rollback by hand was in force after {time.monotonic() - began:.2f} s")
    assert load.failed == {}
    assert tidy(line.deployments, line.name) == ()
    assert roll_back(line.deployments, line.name, by="test") == "r2"


def test_whoever_is_killed_leaves_a_release_for_the_next(line: Line) -> None:
    """A driver stops after each of its steps; another one goes on from what the route says."""
    spec = line.spec()
    with line.users() as load:
        for _ in range(60):
            outcome = begin(line.served.deployments(), spec, CANARY, by="test").step()
            if outcome is not None or line.deployments.deployment(line.name).shares == {"r2": 20, "r1": 80}:
                break
        assert line.release(spec).ending is Ending.DONE
    assert load.failed == {}
    assert line.deployments.deployment(line.name).shares == {"r2": 100}
