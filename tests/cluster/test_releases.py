"""Releases of every shape on a real cluster while users ask without a pause: what they lost, and what is left."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster import author, deploying, kubectl, metrics
from tests.cluster.accounts import NAMESPACE
from tests.cluster.driving import BY, Task, driven
from tests.cluster.lines import CANARY, QUIET, Line
from tests.contract.test_deployments import finish
from tests.e2e.author import Author
from tests.serving import onnx_graph
from tests.serving.load import Load, lost
from tests.waiting import eventually

from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.manual import promote, roll_back
from muster.backends.releases.plan import Plan
from muster.core.deployment import DeploymentSpec, RevisionState
from muster.core.resources import Resources

pytestmark = pytest.mark.cluster

SERIES = "a series of releases under load: requests that were lost, what was done meanwhile"
CASES = "releases one by one: requests that were lost, seconds, how the new revision's share was answered"
COMMAND = "the command: seconds, its own start among them (the bars: ls 1, a rollback 2)"
SCALED = "replicas that follow the load: requests that were lost, seconds until the second one answers"
KILLED = "a release whose driver is killed at ten points: requests that were lost, seconds"
SHORT = Plan(steps=(20, 60, 100), hold_seconds=(1.0, 1.0, 0.0), rules=QUIET)
ROWS = 1000  # of a request: it is the server that has to work, not who asks
Show = Callable[[str, object], None]


def wrong(line: Line) -> DeploymentSpec:
    """A version that smoke requests refuse."""
    return line.spec(onnx_graph.write_line(line.folder / "wrong", slope=3.0))


@pytest.mark.nightly
@pytest.mark.parametrize("requests", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_no_request_is_lost_over_releases_promotions_rollbacks_and_refusals(
    line: Line, record_property: Show, requests: int
) -> None:
    done = Counter[str]()
    with line.users() as load:
        while not done or load.sent < requests:
            before = line.champion
            assert line.release(line.spec(), SHORT).ending is Ending.DONE
            after = line.champion
            promote(line.deployments, line.name, before, by="ann")
            promote(line.deployments, line.name, after, by="ann")
            assert line.release(wrong(line)).ending is Ending.ROLLED_BACK
            assert roll_back(line.deployments, line.name, by="ann") == before
            done.update(releases=1, promotions=2, refusals=1, rollbacks=1)
        restarts = sum(each.restarts for each in line.deployments.deployment(line.name).revisions)
    told = ", ".join(f"{number} {what}" for what, number in done.items())
    record_property(SERIES, f"{lost(load):24} {told}, {restarts} restarts of a replica")
    assert load.failed == {}
    assert restarts == 0


def whole(line: Line) -> Outcome:
    """(a) as a rolling update: the next version has everything as soon as it answers."""
    return line.release(line.spec(replicas=2), Plan(rules=QUIET))


def replaced(line: Line) -> Outcome:
    """(a) the replicas of what serves are replaced one after the other, as when nodes are drained."""
    name, champion = line.name, line.champion
    for pod in deploying.pods(line.served.of, name, champion):
        words = ("pod", pod["metadata"]["name"], f"--namespace={NAMESPACE}")
        kubectl.run(line.served.of, "delete", *words)
        eventually(lambda: line.deployments.deployment(name).champion.ready == 2)  # type: ignore[union-attr]
    return Outcome(ending=Ending.DONE, revision=champion)


def promoted(line: Line) -> Outcome:
    """(b) 20 %, then everything."""
    return line.release(line.spec(replicas=2), CANARY)


def there_and_back(line: Line) -> Outcome:
    """(c) 20 %, back by hand, 20 %, everything, and the one before is taken away in that moment."""
    before = line.champion
    driver = line.begin(line.spec(), replace(CANARY, hold_seconds=(60.0, 0.0)))
    line.has(driver, 20)
    assert roll_back(line.deployments, line.name, by="ann") == before
    outcome = line.release(line.spec(replicas=2), CANARY)
    status = line.deployments.deployment(line.name)
    line.deployments.shift(line.name, status.shares, token=status.token, release=None)
    line.deployments.withdraw(line.name, before, state=RevisionState.RETIRED, reason="by hand")
    return outcome


@pytest.mark.parametrize(
    "case",
    [
        promoted,
        *(pytest.param(case, marks=pytest.mark.nightly) for case in (whole, replaced, there_and_back)),
    ],
)
def test_a_release_loses_nothing(line: Line, record_property: Show, case: Callable[[Line], Outcome]) -> None:
    if case is replaced:
        assert whole(line).ending is Ending.DONE
    with line.users() as load:
        began = time.monotonic()
        outcome = case(line)
        seconds = time.monotonic() - began
    shares = ", ".join(
        f"{what.partition(' ')[2]} {n / load.sent:.0%}" for what, n in sorted(load.answers.items())
    )
    record_property(CASES, f"{case.__name__:15} {lost(load):20} {seconds:5.1f} s  {shares}")
    assert outcome.ending is Ending.DONE
    assert load.failed == {}


@pytest.mark.nightly
def test_of_two_releases_at_once_the_last_one_wins_and_nothing_is_lost(
    line: Line, record_property: Show
) -> None:
    ends: dict[str, Outcome] = {}
    with line.users() as load:
        drivers = {by: line.begin(line.spec(), SHORT, by=by) for by in ("one", "other")}
        threads = [
            threading.Thread(target=lambda by=by, driver=driver: ends.update({by: finish(driver)}))
            for by, driver in drivers.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record_property(SERIES, f"{lost(load):24} two at once: {ends['one'].reason}")
    assert (ends["one"].ending, ends["other"].ending) == (Ending.SUPERSEDED, Ending.DONE)
    assert line.champion == drivers["other"].revision
    assert load.failed == {}


@pytest.mark.soak
def test_a_release_goes_on_whoever_drives_it_is_killed_at_ten_points(
    line: Line, tmp_path: Path, record_property: Show
) -> None:
    """Each time another process begins what was asked for, and finds in the route how far it is."""
    before = line.champion
    task = Task(store=line.served.site.folder, spec=line.spec())
    log = tmp_path / "driving.log"
    with line.users() as load:
        began = time.monotonic()
        for reached in points(line, load):
            with driven(task, tmp_path) as process:
                eventually(lambda process=process, reached=reached: reached() or process.poll() is not None)
                assert process.poll() is None, log.read_text()
        with driven(task, tmp_path) as process:
            eventually(lambda: process.poll() is not None)
        seconds = time.monotonic() - began
    said = log.read_text().splitlines()
    record_property(KILLED, f"{lost(load):24} {seconds:5.1f} s; {said[-1]}")
    assert said[-1].startswith(Ending.DONE.value), said[-20:]
    assert load.failed == {}
    status = line.deployments.deployment(line.name)
    there = [one for one in status.revisions if not one.state.over]
    assert [(one.model, one.kept, one.restarts) for one in there] == [
        (task.spec.model, False, 0),
        (status.called(before).model, True, 0),  # type: ignore[union-attr]
    ]


def points(line: Line, load: Load) -> list[Callable[[], bool]]:
    """Ten points of a release by :data:`~tests.cluster.lines.STEPS`, each reached by one driver."""

    def share(percent: int) -> Callable[[], bool]:
        return lambda: line.deployments.deployment(line.name).shares.get(mine(), 0) >= percent

    def mine() -> str:
        release = line.deployments.deployment(line.name).release
        return release.revision if release and release.by == BY else ""

    def pods() -> int:
        return len(deploying.pods(line.served.of, line.name, mine())) if mine() else 0

    def ready() -> bool:
        found = line.deployments.deployment(line.name).called(mine())
        return found is not None and found.state in (RevisionState.READY, RevisionState.SERVING)

    def held(percent: int) -> Callable[[], bool]:
        """In the midst of a step."""
        sent: list[int] = []

        def reached() -> bool:
            if share(percent)():
                sent.append(load.sent)
            return bool(sent) and load.sent > sent[0] + 200

        return reached

    return [
        lambda: bool(mine()),
        lambda: pods() > 0,
        ready,
        *(each(percent) for percent in (5, 25, 60) for each in (share, held)),
        share(100),
    ]


@pytest.mark.nightly
def test_the_command_tells_what_serves_and_takes_it_back(
    line: Line, tmp_path: Path, record_property: Show
) -> None:
    before = line.champion
    assert line.release(line.spec()).ending is Ending.DONE
    after = line.champion
    file = author.write_file(line.served.of, tmp_path, **line.served.written())
    with Author(tmp_path, MUSTER_CLUSTER=str(file)) as person, line.users() as load:
        began = time.monotonic()
        (listed,) = person.ask("deployments", "ls")
        looked = time.monotonic()
        process = person.start("deployments", "rollback", line.name, "--reason=slow")
        eventually(lambda: line.answers() == (before, 4.0))
        taken = time.monotonic()
        assert process.wait(60) == 0, person.log.read_text()
    record_property(
        COMMAND,
        f"ls {looked - began:.2f} s, rollback in force after {taken - looked:.2f} s, {lost(load)} requests lost",
    )
    assert (listed["name"], listed["ready"]) == (line.name, True)
    there = [one for one in listed["revisions"] if one["state"] in ("serving", "ready")]
    assert [(one["name"], one["percent"]) for one in there] == [(after, 100), (before, 0)]
    assert listed["figures"]
    assert load.failed == {}
    refused = line.deployments.deployment(line.name).called(after)
    assert refused is not None
    assert (refused.state, refused.reason.endswith("at the command line: slow")) == (
        RevisionState.REFUSED,
        True,
    )


@pytest.mark.nightly
def test_replicas_that_follow_the_load_have_their_autoscaler(line: Line) -> None:
    """There are as many as wanted though no metrics server runs here; the autoscaler decides how far it scales."""
    outcome = line.release(line.spec(replicas=2, most_replicas=3), Plan(rules=QUIET))
    assert outcome.ending is Ending.DONE
    status = line.deployments.deployment(line.name)
    assert status.champion is not None
    assert (status.champion.ready, status.champion.wanted) == (2, 2)
    words = ("hpa", f"{line.name}-{status.champion.name}-predictor", f"--namespace={NAMESPACE}")
    found = kubectl.get(line.served.of, *words)["spec"]
    assert (found["minReplicas"], found["maxReplicas"]) == (2, 3)
    assert [each["resource"]["name"] for each in found["metrics"]] == ["cpu"]


@pytest.mark.nightly
def test_replicas_follow_the_load_and_a_release_leaves_those_that_serve(
    line: Line, record_property: Show
) -> None:
    """A new revision begins with one, which its own autoscaler makes more; it takes none of the champion's."""
    spec = {"most_replicas": 3, "resources": Resources(cpus=0.2, memory_gib=0.5)}
    with metrics.served(line.served.of):
        assert line.release(line.spec(**spec), Plan(rules=QUIET)).ending is Ending.DONE
        champion = line.champion
        with line.users(rows=ROWS) as load:
            alone = scaled(line, champion)
            before = staying(line, champion)
            outcome = line.release(line.spec(**spec))
            after = staying(line, champion)
            beside = scaled(line, line.champion)
    record_property(
        SCALED, f"{lost(load):20} one revision {alone:.1f} s, the next one {beside:.1f} s after its release"
    )
    assert outcome.ending is Ending.DONE
    assert len(before) > 1
    assert before <= after
    assert load.failed == {}


def scaled(line: Line, revision: str) -> float:
    """Return after how many seconds more than one replica of a revision answers."""
    began = time.monotonic()

    def ready() -> bool:
        found = line.deployments.deployment(line.name).called(revision)
        return found is not None and found.ready > 1

    eventually(ready)
    return time.monotonic() - began


def staying(line: Line, revision: str) -> set[str]:
    """The replicas of a revision that are not on their way out."""
    found = (pod["metadata"] for pod in deploying.pods(line.served.of, line.name, revision))
    return {about["name"] for about in found if "deletionTimestamp" not in about}
