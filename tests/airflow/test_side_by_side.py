"""Tasks that do not wait for each other run side by side under ``muster run``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import GUARD_SECONDS, eventually

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.backends.base import Backend
from muster.core.status import JobState

Write = Callable[..., None]
Run = Callable[..., RunResult]

# Seconds: what is compared are differences of different times.
ROUNDING = 1e-6

# Each waits for the others: one after the other they would wait for ever.
MEET = """
import time
from pathlib import Path

FOLDER = Path("{folder}")

def meet(name: str, count: int) -> None:
    (FOLDER / name).touch()
    while len(list(FOLDER.iterdir())) < count:
        time.sleep(0.02)
    print("met", flush=True)
"""


def write_meeting(write_dag: Write, body: str, dag_folder: Path, folder: Path) -> None:
    folder.mkdir()
    imported = f"from {dag_folder.name}.meeting import meet\n"
    write_dag(imported + body, meeting=MEET.format(folder=folder))


def states(result: RunResult) -> dict[str, str]:
    return {stage.task_id: stage.state for stage in result.stages}


def test_jobs_plain_tasks_and_instances_run_side_by_side_and_are_told_apart(
    write_dag: Write, dag_folder: Path, run: Run, seen: Any, tmp_path: Path
) -> None:
    name = dag_folder.name
    write_meeting(
        write_dag,
        f"""
        JobOperator(
            task_id="job", image="python", entrypoint="{name}.meeting:meet", resources=SMALL,
            params={{"name": "job", "count": 4}},
        )
        @task
        def plain(name: str) -> str:
            meet(name, 4)
            return name
        plain.override(task_id="one")("one")
        plain.override(task_id="each").expand(name=["two", "three"])
        """.replace("\n        ", "\n").strip(),
        dag_folder,
        tmp_path / "here",
    )
    result = run()
    assert states(result) == dict.fromkeys(("job", "one", "each"), "success")
    assert {"job: [rank 0] met", "one: met", "each[0] name=two: met", "each[1] name=three: met"} <= set(
        seen.text
    )
    by_name = {stage.task_id: stage for stage in result.stages}
    each = by_name["each"]
    assert [instance.arguments for instance in each.instances] == [{"name": "two"}, {"name": "three"}]
    assert each.seconds is not None
    assert (
        max(instance.seconds or 0 for instance in each.instances)
        <= each.seconds + ROUNDING
        <= result.seconds + 2 * ROUNDING
    )
    assert sum(stage.seconds or 0 for stage in result.stages) > result.seconds, (
        "they took their time together"
    )


ALONE = """
from airflow.sdk.execution_time import task_runner
from pathlib import Path
import os, time

@task
def alone(name: str) -> None:
    at_work = Path("{folder}") / "at-work"
    at_work.mkdir()  # fails where another is at work
    time.sleep(0.05)
    at_work.rmdir()
    print(os.ttyname(0) if os.isatty(0) else "no terminal")

alone{override}.expand(name=["a", "b", "c"])
"""


def test_a_limit_of_the_task_and_serial_run_one_after_the_other(
    write_dag: Write, run: Run, seen: Any, tmp_path: Path, capfd: Any
) -> None:
    write_dag(ALONE.format(folder=tmp_path, override=".override(max_active_tis_per_dagrun=1)"))
    assert run().succeeded
    assert len([line for line in seen.text if line.endswith("no terminal")]) == 3
    write_dag(ALONE.format(folder=tmp_path, override=""))
    assert run(serial=True).succeeded
    assert capfd.readouterr().out.count("no terminal") == 3, "what it prints goes where the run prints"


def test_a_branch_a_failure_and_a_trigger_rule_decide_as_ever(write_dag: Write, run: Run) -> None:
    write_dag(
        """
        @task.branch
        def branch() -> str:
            return "taken"

        @task
        def do(fault: bool = False) -> None:
            assert not fault, "on purpose"

        taken, left = do.override(task_id="taken")(), do.override(task_id="left")()
        branch() >> [taken, left]
        bad = do.override(task_id="bad")(fault=True)
        bad >> do.override(task_id="after")()
        [bad, taken] >> do.override(task_id="always", trigger_rule="all_done")()
        """
    )
    result = run()
    assert states(result) == {
        "branch": "success",
        "taken": "success",
        "left": "skipped",
        "bad": "failed",
        "after": "upstream_failed",
        "always": "success",
    }
    assert {stage.task_id: stage.message for stage in result.stages}["bad"] == "on purpose"


def test_a_task_whose_process_is_lost_is_retried_and_then_fails(
    write_dag: Write, run: Run, seen: Any
) -> None:
    write_dag(
        """
        import os
        @task(retries=1, retry_delay=timedelta(seconds=0.1))
        def lost() -> None:
            os._exit(3)
        lost()
        """
    )
    result = run()
    assert seen.started == [("lost", 1), ("lost", 2)]
    assert states(result) == {"lost": "failed"}
    assert result.stages[0].message == "its process ended with exit code 3"


RUNNER = """
import sys
from pathlib import Path
from muster.airflow.embedded.runner import run_dag
from muster.core.settings import Settings

home, cache, dags, dag_id = sys.argv[1:]
result = run_dag(dag_id, settings=Settings(home=Path(home), cache=Path(cache)), dags=Path(dags))
print(result.state)
"""


def test_a_stop_ends_all_jobs_and_a_kill_leaves_no_task_and_the_jobs_to_a_resume(
    write_dag: Write,
    dag_folder: Path,
    home: EmbeddedHome,
    backend: Backend,
    run: Run,
    tmp_path: Path,
) -> None:
    name, gate = dag_folder.name, tmp_path / "gate"
    write_dag(
        f"""
        for place in ("left", "right"):
            JobOperator(
                task_id=place, image="python", resources=SMALL,
                command=["sh", "-c", "echo waiting; while [ ! -e {gate} ]; do sleep 0.05; done"],
            )
        """
    )
    arguments = [str(home.settings.home), str(home.settings.cache), str(home.dags), name]

    def begun() -> tuple[subprocess.Popen[str], list[str]]:
        ledger, before = backend.store.ledger, set(backend.store.ledger.jobs())
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, *arguments], stdout=subprocess.PIPE, text=True
        )

        def waiting() -> list[str]:
            new = [job for job in ledger.jobs() if job not in before]
            found = [job for job in new if b"waiting" in ledger.read(job)[0]]
            return found if len(found) == 2 else []

        return process, eventually(waiting)

    process, jobs = begun()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=GUARD_SECONDS)[0].split() == ["interrupted"]
    assert {backend.status(job).state for job in jobs} == {JobState.CANCELLED}

    process, jobs = begun()
    started = children(process.pid)
    forks = [pid for pid in started if words(pid) == words(process.pid)]
    assert len(forks) == 2  # beside the nursery of their jobs
    process.kill()
    process.communicate()
    eventually(lambda: not any(alive(pid) for pid in started))
    assert {backend.status(job).state for job in jobs} == {JobState.RUNNING}
    gate.touch()
    result = run(resume="keep")
    assert {stage.job_id for stage in result.stages} == set(jobs)


def words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


FORKS = """
import json, os, sys, threading
from pathlib import Path
from muster.airflow.embedded import task_process
from muster.airflow.embedded.runner import run_dag
from muster.core.settings import Settings

home, cache, dags, dag_id = sys.argv[1:]
fork = os.fork

def looked_at():
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    threads = len(os.listdir("/proc/self/task"))
    print(json.dumps({"threads": threads, "databases": [path for path in opened if ".db" in path]}), flush=True)
    return fork()

os.fork = looked_at
print(run_dag(dag_id, settings=Settings(home=Path(home), cache=Path(cache)), dags=Path(dags)).state)
"""


def test_it_forks_with_one_thread_and_no_open_database(
    write_dag: Write, dag_folder: Path, home: EmbeddedHome
) -> None:
    write_dag(
        """
        @task
        def nothing(before: object = None) -> None: ...
        nothing.override(task_id="third")([nothing(), nothing.override(task_id="second")()])
        """
    )
    arguments = [str(home.settings.home), str(home.settings.cache), str(home.dags), dag_folder.name]
    ended = subprocess.run(
        [sys.executable, "-c", FORKS, *arguments], capture_output=True, text=True, check=True
    )
    *forks, state = ended.stdout.splitlines()
    assert state == "success"
    assert [json.loads(each) for each in forks] == [{"threads": 1, "databases": []}] * 2
