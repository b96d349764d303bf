"""An earlier release and this one on one store, one ledger and one machine, each in processes of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from tests.e2e.releases.machine import ROOT, Machine
from tests.e2e.releases.table import EARLIER, PAIRS, tried
from tests.serving import onnx_graph
from tests.waiting import GUARD_SECONDS, eventually

from muster.core.shipped import shipped

Serve = Callable[[str], tuple[str, str]]

pytestmark = [pytest.mark.slow, pytest.mark.releases]


def test_these_are_two_releases(machine: Machine) -> None:
    where = "import muster, sys; print(muster.__file__, file=sys.stdout)"
    found = {name: machine.run(name, ["-c", where]).stdout for name in ("earlier", "this")}
    assert any(f"/{commit}" in found["earlier"] for commit in EARLIER)
    assert found["this"].startswith(str(ROOT))


@tried("commits a version", "reads it, commits the next; `fsck --deep` of both finds nothing")
@pytest.mark.parametrize(("writes", "reads"), PAIRS)
def test_what_one_commits_the_other_reads_and_checks(machine: Machine, writes: str, reads: str) -> None:
    address = machine.put(writes, "first")
    assert machine.act(reads, "read", address)["files"] == {"rows.csv": "first"}
    second = machine.put(reads, "second")
    assert machine.act(writes, "versions", "two/rows") == [address, second]
    for release in (reads, writes):
        machine.command(release, "volumes", "fsck", "--deep")


@tried("starts a gang on one machine", "follows it to its end; reads its log, its verdict and its version")
@pytest.mark.parametrize(("begins", "goes_on"), PAIRS)
def test_a_gang_that_one_started_is_followed_to_its_end_by_the_other(
    machine: Machine, begins: str, goes_on: str
) -> None:
    """An upgrade in the middle of a running gang, and a rollback."""
    rows = machine.put(begins, "rows")
    machine.act(begins, "submit", "gang-1", rows)
    eventually(lambda: machine.act(goes_on, "look", "gang-1") == "running")
    found = machine.act(goes_on, "end", "gang-1")
    assert (found["state"], found["made"]) == ("succeeded", ["volume://two/made@1"])
    assert any("up 0" in line for line in found["lines"])
    assert any("up 1" in line for line in found["lines"])
    made = machine.act(goes_on, "read", "two/made@1")
    assert made == {"files": {"0": "rank 0", "1": "rank 1"}, "job": "gang-1"}
    assert machine.act(begins, "look", "gang-1") == "succeeded"


@tried("starts a gang on one machine", "cancels it")
@pytest.mark.parametrize(("begins", "ends"), PAIRS)
def test_a_gang_that_one_started_is_cancelled_by_the_other(machine: Machine, begins: str, ends: str) -> None:
    machine.act(begins, "submit", "gang-2", machine.put(begins, "rows"))
    assert machine.act(ends, "cancel", "gang-2") == "cancelled"
    assert machine.act(begins, "look", "gang-2") == "cancelled"
    assert machine.act(begins, "versions", "two/rows") == ["volume://two/rows@1"]


@tried(
    "keeps triggers of jobs and releases in Airflow's database",
    "makes them again, and reads the specs and plans that they hold",
)
@pytest.mark.parametrize(("writes", "reads"), PAIRS)
def test_a_trigger_that_one_kept_is_made_by_the_other(machine: Machine, writes: str, reads: str) -> None:
    """The triggerer may be upgraded, or rolled back, while tasks wait."""
    kept = machine.act(writes, "keep", of="triggers.py")
    assert machine.act(reads, "make", json.dumps(kept), of="triggers.py") == kept


@tried(
    "begins a release, to 20 %",
    "goes on with it to 100 %; the first one rolls it back; the other one takes it away",
)
@pytest.mark.parametrize(("begins", "goes_on"), PAIRS)
def test_a_release_that_one_began_is_finished_and_rolled_back_by_the_other(
    machine: Machine, begins: str, goes_on: str
) -> None:
    """An upgrade in the middle of a release, and a rollback. The keeper is of the release that came first.

    The server's lock is the same: with another one the same model is another revision.
    """
    (machine.folder / "kserve").mkdir()
    shutil.copy(shipped("images") / "kserve" / "requirements.txt", machine.folder / "kserve")
    for slope in (2.0, 3.0):
        line = onnx_graph.write_line(machine.folder / f"line-{slope:g}", slope=slope)
        machine.command(begins, "volumes", "put", str(line), "two/line")
    try:
        assert machine.act(begins, "drive", "two/line@1", "2", "100", of="release.py") == "done"
        first = machine.act(goes_on, "state", of="release.py")
        assert (first["ready"], first["revisions"]) == (True, {"r1": "serving 100"})
        assert machine.act(begins, "drive", "two/line@2", "3", "20", of="release.py") == "held"
        canary = machine.act(goes_on, "state", of="release.py")
        assert canary == {**first, "revisions": {"r1": "serving 80", "r2": "serving 20"}}
        assert machine.act(goes_on, "drive", "two/line@2", "3", "20,100", of="release.py") == "done"
        assert machine.act(begins, "state", of="release.py")["revisions"] == {
            "r1": "ready 0",
            "r2": "serving 100",
        }
        assert machine.act(begins, "back", of="release.py")["revisions"]["r1"] == "serving 100"
        assert machine.act(goes_on, "state", of="release.py")["revisions"]["r1"] == "serving 100"
    finally:
        left = machine.act(goes_on, "retire", of="release.py")
    assert left == []


@tried(
    "runs the store service",
    "asks it for versions, pins, records, ledger, log, attempts, gc; then takes the service over",
)
@pytest.mark.parametrize(("serves", "asks"), PAIRS)
def test_a_service_of_one_is_asked_by_the_other(
    machine: Machine, serve: Serve, serves: str, asks: str
) -> None:
    """The chart may be upgraded before Airflow, and Airflow before the chart; then the service changes."""
    whole = {
        "rows": "rows",
        "pins": ["in the paper"],
        "partition": "2013-01",
        "note": "by hand",
        "spec": True,
        "state": "running",
        "owner": "try-1",
        "log": "a line\n",
        "attempt": 1,
        "kept": ["volume://two/rows@1"],
        "sound": True,
    }
    where = serve(serves)
    assert machine.ask(asks, *where, "write") == "volume://two/rows@1"
    assert machine.ask(asks, *where, "read") == whole
    assert machine.ask(serves, *where, "read") == whole
    assert machine.ask(serves, *serve(asks), "read") == whole
    cluster = machine.folder / "cluster.toml"
    (machine.folder / "token").write_text(where[1])
    cluster.write_text(f'namespace = "n"\nclaim = "c"\nstore_url = "{where[0]}"\ntoken_file = "token"\n')
    told = machine.command(asks, "volumes", "log", "two/rows", "--json", MUSTER_CLUSTER=str(cluster))
    assert [each["record"]["note"] for each in json.loads(told)] == ["by hand"]


@tried("runs the pods of a gang", "runs the store service: lines, seal and commit")
@pytest.mark.parametrize(("serves", "runs"), PAIRS)
def test_pods_of_one_run_against_a_service_of_the_other(
    machine: Machine, serve: Serve, serves: str, runs: str
) -> None:
    """The chart is upgraded, or rolled back, before Airflow: the next gang has pods of another release."""
    where = serve(serves)
    pods = started(machine, runs, machine.ask(runs, *where, "enter", of="pod.py"))
    (machine.folder / "go").touch()
    ended(machine, pods)
    assert_made(machine, runs, where)
    assert_made(machine, serves, where)


@tried(
    "runs the pods of a gang, and the store service",
    "takes the store service over while the gang runs, and hands it back",
)
@pytest.mark.parametrize(("begins", "goes_on"), PAIRS)
def test_the_service_is_replaced_while_a_gang_runs(
    machine: Machine, serve: Serve, begins: str, goes_on: str
) -> None:
    """An upgrade of the chart in the middle of a running gang, and its rollback."""
    where = serve(begins)
    pods = started(machine, begins, machine.ask(begins, *where, "enter", of="pod.py"))
    both_up = lambda: len(said(machine, begins, where)) == 2  # noqa: E731
    use = begins == "this"  # an earlier service writes what our workers tell of use into the log (ADR 32)
    eventually(both_up)
    serve(goes_on)
    assert len(said(machine, goes_on, where, use=use)) == 2
    (machine.folder / "go").touch()
    ended(machine, pods)
    assert_made(machine, goes_on, where, use=use)
    serve(begins)
    assert_made(machine, begins, where, use=use)


def started(
    machine: Machine, release: str, pods: list[tuple[list[str], list[str], dict[str, str]]]
) -> list[subprocess.Popen[bytes]]:
    """Run the init container's program of each pod, then start its worker."""
    for first, _, variables in pods:
        done = machine.run(release, first, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    return [machine.start(release, worker, **variables) for _, worker, variables in pods]


def ended(machine: Machine, pods: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the end of each pod; all have sealed."""
    assert [each.wait(timeout=GUARD_SECONDS) for each in pods] == [0, 0], (
        machine.folder / "service.log"
    ).read_text()


def said(machine: Machine, release: str, where: tuple[str, str], *, use: bool = False) -> list[str]:
    """The job's log. :param use: it may hold lines on the use of its replicas, which are left out."""
    lines: list[str] = machine.ask(release, *where, "log", of="pod.py")
    return [line for line in lines if not (use and line.startswith("[use main-"))]


def assert_made(machine: Machine, release: str, where: tuple[str, str], *, use: bool = False) -> None:
    """The gang has succeeded, as a release reads it: its version, its metrics and each line once."""
    made = {
        "state": "succeeded",
        "made": "volume://two/made@1",
        "files": ["0", "1"],
        "metrics": {"loss": 0.5},
    }
    assert eventually(lambda: machine.ask(release, *where, "result", of="pod.py") == made)
    assert said(machine, release, where, use=use) == sorted(
        f"[rank {rank}] {word} {rank}" for rank in (0, 1) for word in ("up", "done")
    )


@tried("enters a job that needs what is new", "refuses it by its name, and loses nothing")
@pytest.mark.parametrize(("writes", "reads"), PAIRS[1:])
def test_what_is_new_is_refused_by_name_and_lost_by_none(machine: Machine, writes: str, reads: str) -> None:
    assert machine.act(writes, "enter", of="new.py") is True
    refused = machine.act(reads, "read", of="new.py")["error"]
    assert "unknown field 'metric_pattern'" in refused
    assert machine.act(reads, "jobs", of="new.py") == ["new-1"]
    assert machine.act(writes, "read", of="new.py") == r"loss (?P<loss>\S+)"
    assert machine.act(writes, "orders", of="new.py") == "written"
    assert "unknown field 'metric_pattern'" in machine.act(reads, "ordered", of="new.py")["error"]
    assert machine.act(writes, "ordered", of="new.py") == "a"
