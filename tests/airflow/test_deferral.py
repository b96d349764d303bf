"""A task is deferred, ended, cleared or killed while its job runs: the job is followed, adopted or ended, never doubled.

So are those of the example of every way to write a task, and one that searches: its search goes on, and no trial is trained twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.airflow.deferred import DIES, Run, Waiting
from tests.airflow.searching import HILLS, STEPS as SEARCHED, Searching
from tests.waiting import until

from muster.core.cancelling import WITH_RUN
from muster.core.status import JobState
from muster.core.verdict import Cause
from muster.volumes.folder import FolderStore

AUTHORED = Path(__file__).parent / "authored"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    with Waiting(tmp_path_factory.mktemp("site")) as site:
        site.add("later", wait=0.5)
        site.add("inline", wait=600)
        site.add("hurried", wait=0.5, task="execution_timeout=timedelta(seconds=8), retries=0")
        site.add("hasty", wait=600, task="execution_timeout=timedelta(seconds=8), retries=0")
        site.add("short", wait=0.5, dag="dagrun_timeout=timedelta(seconds=12)")
        site.add("dies_before", wait=600, more=DIES.format(after=False))
        site.add("dies_after", wait=600, more=DIES.format(after=True))
        site.add("renamed", wait=0.5)
        site.set("scheduler", parsing_cleanup_interval=2)
        site.set("dag_processor", stale_dag_threshold=1)
        site.write("hills", HILLS, steps=SEARCHED)
        bare = shutil.ignore_patterns("__pycache__")
        shutil.copytree(AUTHORED, site.folder / "dags" / "authored", ignore=bare)
        site.set("muster", inline_wait=0)
        site.up()
        yield site


@pytest.fixture(autouse=True)
def nothing_goes_on(site: Waiting) -> Iterator[None]:
    """What a test leaves when it fails is ended before the next one begins, which counts processes and jobs."""
    yield
    site.end_runs()


@pytest.mark.nightly  # test_authoring.py runs it without a scheduler, test_lineage.py maps with one
def test_decorated_mapped_gathered_and_a_gang_of_two(site: Waiting) -> None:
    run_id = site.trigger("authored", {"epochs": 5, "note": "from the form"})
    assert site.wait("authored", run_id) == "success"
    assert "the triggerer waits for it" in site.task_log("authored", run_id, "train")
    store = FolderStore(site.home / "store")
    rows = json.loads((store.path("volume://authored/all@1") / "rows.json").read_text())
    assert rows == [f"2024-{month}-{row}" for month in ("01", "02", "03") for row in range(2)]
    model = store.path("volume://authored/model@1")
    for rank in range(2):
        given = json.loads((model / f"rank-{rank}.json").read_text())
        assert (given["epochs"], given["note"], given["rows"]) == (5, "from the form", 6)


@pytest.mark.nightly
def test_what_a_failing_test_leaves_is_ended(site: Waiting) -> None:
    runs = [site.begin("inline", "running"), site.begin("later", "deferred")]
    site.end_runs()
    assert [run.state(job_id) for run in runs for job_id in run.jobs()] == [JobState.CANCELLED] * 2


def test_a_deferred_task_is_followed_without_a_process(site: Waiting) -> None:
    run = site.begin("later", "deferred")
    (job_id,) = run.jobs()
    assert until(lambda: not site.tasks()), "only the triggerer waits"
    assert until(lambda: "line 3" in site.trigger_log(run))
    ledger = FolderStore(site.home / "store").ledger
    assert run.ends_well() == [job_id]
    assert until(lambda: run.run_id not in {note.run.run_id for note in ledger.run_notes()})
    said = [line for line in site.task_log("later", run.run_id, "slow").splitlines() if "[rank 0]" in line]
    assert len(said) == len(set(said)) > 3, "each line once, no matter which process waited when it came"
    assert site.xcom("later", run.run_id, "slow")["job_id"] == job_id


def test_a_triggerer_that_is_killed_takes_its_jobs_up_again(site: Waiting) -> None:
    run = site.begin("later", "deferred")
    os.kill(site.component("triggerer") or 0, signal.SIGKILL)
    assert len(run.ends_well()) == 1


@pytest.mark.nightly  # unit/airflow/attempts/test_reconciling.py
def test_a_job_whose_dag_is_renamed_goes_on_and_is_taken_once_the_dag_is_back(site: Waiting) -> None:
    run = site.begin("renamed", "deferred")
    (job_id,) = run.jobs()
    file = site.folder / "dags" / "renamed" / "dag.py"
    text = file.read_text()
    file.write_text(text.replace("def renamed", "def other").replace("    renamed()", "    other()"))
    ledger = FolderStore(site.home / "store").ledger
    assert until(lambda: b"this Airflow has no Dag renamed any more" in ledger.read(job_id)[0], seconds=120)
    assert run.state(job_id) is JobState.RUNNING
    file.write_text(text)
    assert run.ends_well() == [job_id]


@pytest.mark.nightly
def test_a_trigger_that_timed_out_loses_nothing(site: Waiting) -> None:
    run = site.begin("later", "deferred")
    with site.database() as database:
        database.execute(
            "UPDATE task_instance SET trigger_timeout = '2020-01-01 00:00:00+00' WHERE run_id = %s",
            (run.run_id,),
        )
    site.wait_task("later", run.run_id, "slow", ("running",))
    assert len(run.ends_well()) == 1
    # Airflow itself counts another try where its scheduler hears of the deferral's end too late, and logs that.
    said = (site.home / "up" / "logs" / "scheduler.log").read_text().splitlines()
    miscounted = [line for line in said if run.run_id in line and "reported that the task instance" in line]
    assert site.task("later", run.run_id, "slow")["try_number"] == 1 + len(miscounted)


@pytest.mark.parametrize(
    ("dag_id", "stands", "state"), [("later", "deferred", "failed"), ("inline", "running", "success")]
)  # each state of both kinds: test_jobs.py
def test_a_task_that_is_marked_ends_its_job(site: Waiting, dag_id: str, stands: str, state: str) -> None:
    run = site.begin(dag_id, stands)
    site.mark(dag_id, run.run_id, "slow", state)
    (job_id,) = run.jobs()
    run.is_cancelled(job_id)
    site.wait(dag_id, run.run_id)
    assert site.task(dag_id, run.run_id, "slow")["state"] == state
    assert run.jobs() == [job_id]


@pytest.mark.parametrize(
    ("dag_id", "stands"),
    [("later", "deferred"), pytest.param("inline", "running", marks=pytest.mark.nightly)],
)
def test_a_task_that_is_cleared_runs_again(site: Waiting, dag_id: str, stands: str) -> None:
    run = site.begin(dag_id, stands)
    (first,) = run.jobs()
    site.clear(dag_id, run.run_id, "slow")
    run.is_cancelled(first)
    assert until(lambda: len(run.jobs()) == 2 and run.begun())
    jobs = run.ends_well()
    assert jobs[0] == first
    assert [run.state(job_id) for job_id in jobs] == [JobState.CANCELLED, JobState.SUCCEEDED]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_leaves_its_job_to_the_next(
    site: Waiting, number: signal.Signals
) -> None:
    run = site.begin("inline", "running")
    (process,) = site.tasks()
    os.kill(process, number)
    assert until(lambda: site.task("inline", run.run_id, "slow")["try_number"] == 2)
    assert len(run.ends_well()) == 1


@pytest.mark.parametrize("dag_id", [pytest.param("dies_before", marks=pytest.mark.nightly), "dies_after"])
def test_killed_around_the_submit_there_is_one_job(site: Waiting, dag_id: str) -> None:
    run = site.begin(dag_id, "running")
    assert until(lambda: site.task(dag_id, run.run_id, "slow")["try_number"] == 2)
    assert len(run.ends_well()) == 1


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["marked", pytest.param("cleared", marks=pytest.mark.nightly)])
def test_a_task_that_is_ended_at_the_hand_over_to_the_triggerer_ends_its_job(
    site: Waiting, how: str, rounds: int
) -> None:
    """By then no process waits and no trigger does: no hook of ours is called, and nothing else waits."""
    for _ in range(rounds):
        run = site.hand_over("later")
        (first,) = run.jobs()
        if how == "marked":
            site.mark("later", run.run_id, "slow", "failed")
            run.is_cancelled(first)
            assert run.jobs() == [first]
        else:
            site.clear("later", run.run_id, "slow")
            run.is_cancelled(first)
            assert run.ends_well()[0] == first
        verdict = run.store.ledger.status(first).verdict
        assert verdict is not None
        assert (
            f"its task was {'marked failed' if how == 'marked' else 'cleared'} in Airflow" in verdict.message
        )


def test_what_is_committed_after_its_task_was_marked_failed_is_retired(site: Waiting) -> None:
    run = site.hand_over("later")
    (job_id,) = run.jobs()
    before = {version.address for version in run.versions() if version.retired is None}
    site.mark("later", run.run_id, "slow", "failed")
    run.open()
    assert until(lambda: run.state(job_id).ended)
    made = [version for version in run.versions() if run.store.record(version.address).job_id == job_id]
    for each in made:  # none, where the job was ended before it had written anything
        assert until(lambda a=each.address: run.store.resolve(a)[0].retired)
        assert "marked failed" in str(run.store.resolve(each.address)[0].retired)
    assert {version.address for version in run.versions() if version.retired is None} == before


@pytest.mark.nightly
def test_a_task_that_is_cleared_while_its_scheduler_is_dead_runs_again(site: Waiting) -> None:
    run = site.begin("inline", "running")
    (first,) = run.jobs()
    os.kill(site.component("scheduler") or 0, signal.SIGKILL)
    site.clear("inline", run.run_id, "slow")
    run.is_cancelled(first)
    assert until(lambda: len(run.jobs()) == 2 and run.begun())
    assert [run.state(job_id) for job_id in run.ends_well()] == [JobState.CANCELLED, JobState.SUCCEEDED]


def test_a_job_that_takes_longer_than_its_task_or_its_run_may_is_ended_and_all_say_so(site: Waiting) -> None:
    short = site.begin("short", "deferred")
    for run in [site.begin("hurried", "deferred"), site.begin("hasty", "running")]:
        (job_id,) = run.jobs()
        assert site.wait(run.dag_id, run.run_id) == "failed"
        status = run.store.ledger.status(job_id)
        assert status.verdict is not None
        assert (status.state, status.verdict.cause) == (JobState.FAILED, Cause.TIMEOUT)
        assert (status.ended or 0.0) - (status.started or 0.0) >= 8, "counted from the job's start"
        told = _verdict(site, run)
        assert status.verdict.message in told
        assert status.verdict.advice in told
        assert "AirflowTaskTimeout" not in told
    (job_id,) = short.jobs()
    assert site.wait("short", short.run_id) == "failed"
    assert until(lambda: short.state(job_id) is JobState.FAILED), short.state(job_id)
    assert until(lambda: not short.processes(job_id))
    assert site.task("short", short.run_id, "slow")["state"] == "skipped"
    assert short.store.ledger.status(job_id).verdict == WITH_RUN


def test_a_run_that_is_deleted_ends_its_jobs(site: Waiting) -> None:
    run = site.begin("later", "deferred")
    site.mark_run("later", run.run_id, "failed")  # Airflow deletes none that runs
    site.ask_api("DELETE", f"dags/later/dagRuns/{run.run_id}")
    run.is_cancelled(*run.jobs())


def _verdict(site: Waiting, run: Run) -> str:
    path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/slow/logs/1"
    return str(site.ask_api("GET", path, params={"full_content": True})["content"])


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            0, marks=pytest.mark.nightly
        ),  # contract/test_search.py kills a driver after every event
        *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 10)),
    ],
)
def test_a_triggerer_that_is_killed_loses_nothing_of_a_search(site: Waiting, number: int) -> None:
    run = Searching(site, 0.3)
    assert until(lambda: len(run.state.trials) > number % 5)  # each time at another moment
    os.kill(site.component("triggerer") or 0, signal.SIGKILL)
    run.ends_well()


def test_a_search_that_is_marked_failed_stops_its_trials_and_goes_on_when_it_is_cleared(
    site: Waiting,
) -> None:
    run = Searching(site, 0.5)
    link = site.xcom("hills", run.run_id, "search", "muster_search")  # while it goes on
    assert link == f"/plugin/muster/muster/#/searches/{run.search_id}"
    assert until(lambda: any(trial.values for trial in run.state.trials))
    for said in ("the triggerer drives it", "trial 0 begins, to 1"):
        assert until(lambda said=said: said in site.task_log("hills", run.run_id, "search"))
    site.mark("hills", run.run_id, "search", "failed")
    assert site.wait("hills", run.run_id) == "failed"
    assert until(lambda: not run.processes())
    before, searches = len(run.state.trials), run.store.logs("searches")
    site.clear("hills", run.run_id, "search", "gate")
    run.ends_well()
    assert run.store.logs("searches") == searches, "none begins anew"
    assert before >= 2
    first = run.state.trials[0]
    begun = [run.store.ledger.read(job)[0].decode().partition("from ")[2][:1] for job in first.jobs]
    assert begun[0] == "0"
    assert "0" not in begun[1:], "it goes on from its checkpoint"
    store = run.store
    (version,) = store.resolve("hills/model@latest")
    assert store.record(version.address).metrics["height"] > 0.5
    left = [held for held in store.held() if held.job_id.startswith("hills-")]
    assert not left, "what stopped trials left is deleted"
    assert not list((site.home / "store" / "leases").glob("hills-*")), "its inputs are given back"
    listed = json.loads(site.muster("runs", "show", f"hills/{run.run_id}", "--json").stdout)
    (stage,) = [each for each in listed["stages"] if each["task_id"] == "search"]
    assert stage["versions"]["model"] == [version.address]
    assert "by trial" in stage["line"]
    assert stage["jobs"] == []


@pytest.mark.nightly  # contract/test_search.py closes one
def test_a_search_that_is_cancelled_fails_its_task(site: Waiting, tmp_path: Path) -> None:
    run = Searching(site, 0.5)
    said = site.muster("search", "cancel", run.search_id)
    assert "cancelled" in said.stdout
    assert site.wait("hills", run.run_id) == "failed"
    assert until(lambda: not run.processes())
    shown = site.muster("runs", "show", f"hills/{run.run_id}").stdout
    assert "cancelled it with `muster search cancel`" in shown
