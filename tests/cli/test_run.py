"""``muster run``: a Dag of two stages, run, broken, mended, resumed, watched and interrupted."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS, eventually

from muster.core.status import JobState
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

Muster = Callable[..., subprocess.CompletedProcess[str]]


def test_a_home_that_a_run_makes_is_its_owners_alone_though_there_is_no_such_dag(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "dags" / "hello").mkdir(parents=True)
    (tmp_path / "dags" / "hello" / "dag.py").write_text(
        "from airflow.sdk import dag\nimport nothing_of_this_name\n"
    )
    home = tmp_path / ".muster"
    done = subprocess.run(
        ["muster", "run", "hello"],
        cwd=tmp_path,
        env=environment | {"MUSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    _, first, second, *_ = done.stderr.splitlines()
    assert first.startswith("muster: no Dag 'hello' in ")
    assert first.endswith("these files cannot be imported")
    assert second == "  hello/dag.py:2: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert "Traceback" not in done.stderr
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_misspelt_dag_is_told_the_name_that_is_there(muster: Muster) -> None:
    done = muster("run", "helo")
    assert done.returncode == 1
    assert "did you mean hello?" in done.stderr


def test_json_is_one_object_with_every_stage(muster: Muster) -> None:
    done = muster("run", "hello", "--json")
    document = json.loads(done.stdout)
    assert document["state"] == "success"
    for stage in document["stages"]:
        assert stage["state"] == "success"
        assert stage["seconds"] > stage["overhead_seconds"] > 0
        assert stage["job_id"]
        assert all(address.startswith("volume://hello/") for (address,) in stage["versions"].values())


def table(run: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The stages of a run of ``hello`` and their states, as its table has them."""
    return [line.split()[:2] for line in run.stdout.splitlines()[1:3]]


def test_broken_then_mended_goes_on_from_the_broken_stage(muster: Muster, folder: Path) -> None:
    work = folder / "dags" / "hello" / "work.py"
    whole = work.read_text()
    try:
        work.write_text(
            whole.replace("numbers = [", 'raise ValueError("no [rank 3] today")\n    numbers = [')
        )
        failed = muster("run", "hello", "--param", "count=5")
    finally:
        work.write_text(whole)
    assert failed.returncode == 1
    assert table(failed) == [["rows", "success"], ["sums", "failed"]]
    assert "rows | [rank 0] [rank 3] [bold]is no markup" in failed.stderr
    *_, cause, message, advice, log = failed.stderr.splitlines()
    assert cause.startswith("muster: sums: user error, rank ")
    assert message == "  ValueError: no [rank 3] today"
    assert "hello/work.py" in advice
    assert failed.stderr.count("full log: ") == 1
    assert failed.stderr.count("user error, rank ") == 1
    assert "`muster run hello --resume`" in advice
    job = log.removeprefix("  full log: muster jobs logs ")
    assert "ValueError: no [rank 3] today" in muster("jobs", "logs", job).stdout
    assert "Traceback" in muster("jobs", "logs", job).stdout

    resumed = muster("run", "hello", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert table(resumed) == [["rows", "kept"], ["sums", "success"]]
    assert "sums  total 10, baseline 1" in resumed.stdout
    assert "hello/work.py changed" in resumed.stderr


PRINTING = """
import subprocess
from airflow.sdk import dag, task

@dag(schedule=None)
def {name}():
    @task
    def say():
        print("a task's own word")
        subprocess.run(["echo", "from a program"], check=True)
    say()

{name}()
"""


def test_two_runs_at_once_of_dags_that_are_new_both_end_well_and_print_one_document_each(
    folder: Path, warm: dict[str, str]
) -> None:
    for name in ("newx", "newy"):
        (folder / "dags" / name).mkdir()
        (folder / "dags" / name / "dag.py").write_text(PRINTING.format(name=name))
    both = [
        subprocess.Popen(
            ["muster", "run", name, "--json"],
            cwd=folder,
            env=warm,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("newx", "newy")
    ]
    for run in both:
        out, said = run.communicate(timeout=200)
        assert run.returncode == 0, said
        assert json.loads(out)["state"] == "success"
        assert "a task's own word" in said
        assert "from a program" in said


TWICE = """
from airflow.sdk import Param, dag
from muster.airflow import JobOperator

@dag(schedule=None, params={"gate": Param("", type="string")})
def twice():
    JobOperator(
        task_id="slow", image="bare", entrypoint="twice.work:slow", cache=True,
        params={"gate": "{{ params.gate }}"}, outputs={"out": "twice/out"},
    )

twice()
"""
SLOW = """
import os
import time

def slow(out, gate):
    (out / "x").write_text(gate)
    while not os.path.exists(gate):
        time.sleep(0.05)
"""


@pytest.fixture
def start_twice(folder: Path, warm: dict[str, str]) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start runs of a Dag whose stage ends once a file is there; what still runs is killed at the end."""
    home = folder / "dags" / "twice"
    (home / "images" / "bare").mkdir(parents=True, exist_ok=True)
    (home / "images" / "bare" / "requirements.txt").write_text("")
    (home / "dag.py").write_text(TWICE)
    (home / "work.py").write_text(SLOW)
    started = []

    def start(gate: Path) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                ["muster", "run", "twice", "--param", f"gate={gate}"],
                cwd=folder,
                env=warm,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        )
        return started[-1]

    yield start
    for run in started:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()


def read_until(run: subprocess.Popen[str], words: str) -> None:
    """Read what a run prints, up to a line that has these words."""
    assert run.stdout is not None
    seen = []
    for line in run.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError("".join(seen))


def jobs_of(folder: Path, gate: Path) -> list[str]:
    """Return the states of the jobs that were given this file, newest first."""
    ledger = FolderStore(folder / ".muster" / "store").ledger
    theirs = [job for job in ledger.jobs() if ledger.spec(job).params.get("gate") == str(gate)]
    found = sorted(ledger.statuses(theirs), key=lambda status: status.submitted, reverse=True)
    return [status.state.value for status in found]


def running(folder: Path) -> list[str]:
    """Return the jobs that run."""
    ledger = FolderStore(folder / ".muster" / "store").ledger
    return [each.job_id for each in ledger.statuses(ledger.jobs()) if each.state is JobState.RUNNING]


def one_that_waits_for_the_other(
    start: Callable[[Path], subprocess.Popen[str]], folder: Path, gate: Path
) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Start two runs that want the same, and return when the second says that it waits."""
    first = start(gate)
    eventually(lambda: jobs_of(folder, gate) == ["running"])
    second = start(gate)
    read_until(second, "waits for muster__")
    return first, second


def test_of_two_runs_that_want_the_same_the_second_takes_what_the_first_made(
    start_twice: Callable[[Path], subprocess.Popen[str]], muster: Muster, folder: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first, second = one_that_waits_for_the_other(start_twice, folder, gate)
    gate.touch()
    said, _ = first.communicate(timeout=GUARD_SECONDS)
    assert (first.returncode, "slow" in said) == (0, True), said
    said, _ = second.communicate(timeout=GUARD_SECONDS)
    assert (second.returncode, "kept twice/out@1 of " in said) == (0, True), said
    assert jobs_of(folder, gate) == ["succeeded"]
    runs = json.loads(muster("runs", "ls", "--dag", "twice", "--json").stdout)
    kept, made = (run["stages"][0] for run in runs)
    assert kept["kept_of"] == made["jobs"][0]["job_id"]
    assert kept["versions"] == made["versions"] == {"out": ["volume://twice/out@1"]}


@pytest.mark.nightly
def test_of_two_runs_that_want_the_same_the_second_makes_it_where_the_first_is_cancelled(
    start_twice: Callable[[Path], subprocess.Popen[str]], folder: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first, second = one_that_waits_for_the_other(start_twice, folder, gate)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=GUARD_SECONDS)
    assert first.returncode == 130, said
    eventually(lambda: jobs_of(folder, gate) == ["running", "cancelled"])
    gate.touch()
    said, _ = second.communicate(timeout=GUARD_SECONDS)
    assert second.returncode == 0, said
    assert jobs_of(folder, gate) == ["succeeded", "cancelled"]


def test_following_is_left_by_ctrl_c_and_the_run_is_ended_by_it(
    muster: Muster, folder: Path, warm: dict[str, str]
) -> None:
    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["muster", *words],
            cwd=folder,
            env=warm,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    run = start("run", "endless")
    try:
        (job,) = eventually(lambda: running(folder))
        follow = start("jobs", "logs", job, "-f")
        assert follow.stdout is not None
        assert eventually(follow.stdout.readline) == "[rank 0] waiting\n"
        follow.send_signal(signal.SIGINT)
        _, said = follow.communicate(timeout=GUARD_SECONDS)
        assert follow.returncode == 130
        assert f"{job} goes on" in said
        assert "Traceback" not in said
        assert json.loads(muster("jobs", "show", job, "--json").stdout)["status"]["state"] == "running"

        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=GUARD_SECONDS)
        assert run.returncode == 130
        assert "Traceback" not in said
        assert json.loads(muster("jobs", "show", job, "--json").stdout)["status"]["state"] == "cancelled"
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_cancel_ends_the_job_and_with_it_the_run(muster: Muster, folder: Path, warm: dict[str, str]) -> None:
    run = subprocess.Popen(
        ["muster", "run", "endless", "--json"], cwd=folder, env=warm, stdout=subprocess.PIPE, text=True
    )
    (job,) = eventually(lambda: running(folder))
    cancelled = muster("jobs", "cancel", job)
    assert cancelled.stdout == f"{job}: cancelled\n"
    out, _ = run.communicate(timeout=GUARD_SECONDS)
    assert json.loads(out)["state"] == "failed"
    assert run.returncode == 1


def test_a_stage_beyond_the_dags_budget_waits_in_its_run_until_that_is_raised(
    start_twice: Callable[[Path], subprocess.Popen[str]], muster: Muster, folder: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    assert muster("budget", "dag:twice", "--cpu-hours", "0").returncode == 0
    try:
        run = start_twice(gate)
        read_until(run, "queued: waits for its budget: dag twice has used ")
        (job,) = json.loads(muster("jobs", "ls", "--json").stdout)[:1]
        assert "of 0 CPU-hours of this month; the next one begins on " in job["reason"]
        planned = muster("plan", "twice", "--no-cache")
        assert "jobs beyond the budget wait: dag twice has " in planned.stderr
    finally:
        assert muster("budget", "dag:twice", "--none").returncode == 0
    said, _ = run.communicate(timeout=GUARD_SECONDS)
    assert (run.returncode, jobs_of(folder, gate)) == (0, ["succeeded"]), said
