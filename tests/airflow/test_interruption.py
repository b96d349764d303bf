"""A run that is killed, stopped or doubled: nothing is left running, and a resume goes on with the same job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.author import MUSTER, WARM
from tests.waiting import GUARD_SECONDS, eventually

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult, Silent
from muster.airflow.embedded.runner import run_dag
from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.backends.local.processes import Process, children, ranks
from muster.cli.warm.place import waiting
from muster.core.cancelling import OVERTAKEN
from muster.core.errors import MusterError, SpecError
from muster.core.status import JobState
from muster.core.wire import loads
from muster.volumes.folder import FolderStore

Write = Callable[..., None]
Run = Callable[..., RunResult]

STEPS = """
import os
import signal
import time
from pathlib import Path

def first(out: Path) -> None:
    (out / "x").write_text("first")

def slow(out: Path, checkpoints: Path, gate: str) -> None:
    saved = len(list(checkpoints.iterdir()))
    print("first epoch", saved + 1)
    for epoch in range(3):
        (checkpoints / str(saved + epoch)).touch()
    print("waiting", flush=True)
    while not Path(gate).exists():
        time.sleep(0.02)
    if Path(gate).read_text() == "die" and not saved:
        os.kill(os.getpid(), signal.SIGKILL)
    assert Path(gate).read_text() != "broken"
    (out / "x").write_text("done")
"""

ONE = 'JobOperator({job}, params={{"gate": "{gate}"}})'
TWO = (
    'JobOperator(task_id="first", image="python", entrypoint="{name}.steps:first", '
    'outputs={{"out": "{name}/first"}}, resources=SMALL) >> JobOperator({job}, params={{"gate": "{gate}"}})'
)
MAPPED = 'JobOperator.partial({job}).expand(job_params=[{{"gate": "{gate}"}}])'


@pytest.fixture
def slow(write_dag: Write, dag_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A Dag of one job that ends once the returned file is there."""
    name, gate = dag_folder.name, tmp_path / "gate"
    job = (
        f'task_id="slow", image="python", entrypoint="{name}.steps:slow", '
        f'outputs={{"out": "{name}/out"}}, resources=SMALL'
    )
    write_dag(getattr(request, "param", ONE).format(job=job, gate=gate, name=name), steps=STEPS)
    return gate


@pytest.fixture(scope="module")
def warm(home: EmbeddedHome) -> Iterator[dict[str, str]]:
    """Variables with which one process waits for all runs of these tests."""
    yield os.environ | home.environment() | WARM
    for note in waiting(home.settings.home):
        os.kill(note.pid, signal.SIGKILL)


@pytest.fixture
def other(
    home: EmbeddedHome, dag_folder: Path, slow: Path, warm: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs the Dag."""
    process = subprocess.Popen(
        [MUSTER, "run", dag_folder.name, "--dags", home.dags, "--json"],
        env=warm,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield process
    kill(process, home)
    assert process.stdout is not None
    process.stdout.close()


def kill(process: subprocess.Popen[str], home: EmbeddedHome) -> None:
    """Kill -9, and return when what ran for it is gone, too."""
    process.kill()
    process.wait()
    eventually(lambda: not [fork for note in waiting(home.settings.home) for fork in children(note.pid)])


def ended(process: subprocess.Popen[str]) -> list[str]:
    """How its run and the run's stages ended, once they have."""
    result = json.loads(process.communicate(timeout=GUARD_SECONDS)[0])
    return [result["state"], *(stage["state"] for stage in result["stages"])]


@pytest.fixture
def job(dag_folder: Path, backend: Backend, other: subprocess.Popen[str]) -> str:
    """The id of that Dag's job, which has said its first line."""
    ledger = backend.store.ledger
    dag_of = cache(lambda job_id: ledger.spec(job_id).origin.dag_id)  # of all that the tests before have left

    def waiting() -> str:
        for job_id in ledger.jobs():
            if dag_of(job_id) == dag_folder.name and b"waiting" in ledger.read(job_id)[0]:
                return job_id
        assert other.poll() is None, "the runner ended before its job began"
        return ""

    return eventually(waiting)


def test_after_a_kill_a_resume_adopts_the_running_job(
    other: subprocess.Popen[str],
    job: str,
    slow: Path,
    run: Run,
    store: FolderStore,
    dag_folder: Path,
    home: EmbeddedHome,
) -> None:
    kill(other, home)
    slow.touch()
    result = run(resume="keep")
    assert result.state == "success"
    assert result.stages[0].job_id == job
    assert (result.stages[0].overhead_seconds or 0) >= 0, "the job began before the stage did"
    assert len(store.versions(f"{dag_folder.name}/out")) == 1


@pytest.mark.parametrize("slow", [TWO], indirect=True)
@pytest.mark.nightly  # in CI on Airflow 3.4
def test_after_a_kill_a_strict_resume_adopts_nothing_that_follows_what_is_made_anew(
    other: subprocess.Popen[str], job: str, slow: Path, run: Run, dag_folder: Path, home: EmbeddedHome
) -> None:
    kill(other, home)
    steps = dag_folder / "steps.py"
    steps.write_text(steps.read_text().replace('"first"', '"made otherwise"'))
    slow.touch()
    result = run(resume="strict")
    assert result.state == "success"
    assert result.stages[1].job_id != job


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_after_a_kill_a_resume_goes_on_at_once_where_the_job_failed_meanwhile(
    other: subprocess.Popen[str],
    job: str,
    slow: Path,
    run: Run,
    backend: Backend,
    seen: Any,
    home: EmbeddedHome,
) -> None:
    kill(other, home)
    slow.write_text("broken")
    eventually(lambda: backend.status(job).state is JobState.FAILED)
    slow.write_text("")
    result = run(resume="keep")
    assert result.state == "success"
    assert result.stages[0].job_id != job
    assert [note for note in seen.notes if f"job {job} ended while no run watched it (user error" in note]
    assert first_epochs(seen) == ["4"]


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_after_a_kill_a_new_run_ends_the_old_ones_job(
    other: subprocess.Popen[str],
    job: str,
    slow: Path,
    run: Run,
    backend: Backend,
    seen: Any,
    home: EmbeddedHome,
) -> None:
    kill(other, home)
    assert backend.status(job).state is JobState.RUNNING
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.airflow.embedded.loop.Loop.run", lambda self, *ended: None)
        run()
    assert backend.status(job).state is JobState.CANCELLED
    assert any("was left by a process that died" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("slow", "number"),
    [(ONE, signal.SIGINT), (MAPPED, signal.SIGTERM)],
    indirect=["slow"],
    ids=["one", "mapped"],
)
def test_a_stop_ends_the_job_and_the_run(
    other: subprocess.Popen[str], job: str, backend: Backend, number: signal.Signals
) -> None:
    other.send_signal(number)
    assert ended(other) == ["interrupted", "cancelled"]
    assert backend.status(job).state is JobState.CANCELLED


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_a_stopped_run_is_resumed(
    other: subprocess.Popen[str],
    job: str,
    slow: Path,
    run: Run,
    dag_folder: Path,
    store: FolderStore,
    seen: Any,
) -> None:
    """It goes on from its checkpoints, and what it runs after that begins anew."""
    other.send_signal(signal.SIGINT)
    other.communicate(timeout=GUARD_SECONDS)
    slow.touch()
    steps = dag_folder / "steps.py"
    steps.write_text(f"{steps.read_text()}\n# mended\n")
    result = run(resume="keep")
    assert result.state == "success"
    assert result.stages[0].job_id != job
    assert len(store.versions(f"{dag_folder.name}/out")) == 1
    assert first_epochs(seen) == ["4"]
    told = f"slow: [muster] goes on from the checkpoints of job {job} (3 files, 0 B, "
    assert [
        line for line in seen.text if line.startswith(told) and f"{dag_folder.name}/steps.py changed" in line
    ]
    run(start="slow")
    run()
    assert first_epochs(seen) == ["4", "1", "1"]


@pytest.mark.parametrize(
    "edited", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["as it was", "edited"]
)
def test_after_a_kill_of_everything_a_resume_goes_on(
    other: subprocess.Popen[str],
    job: str,
    slow: Path,
    run: Run,
    home: EmbeddedHome,
    backend: Backend,
    dag_folder: Path,
    seen: Any,
    edited: bool,
) -> None:
    """With the same job, or where the code was edited with one that runs it."""
    supervisor = loads(Process, Places(home.settings.home).job(job).supervisor.read_bytes())
    for pid in (other.pid, supervisor.pid, *ranks(Places(home.settings.home).mark(job))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill(other, home)
    slow.touch()
    if edited:
        steps = dag_folder / "steps.py"
        steps.write_text(steps.read_text().replace("first epoch", "now the first epoch"))
    result = run(resume="keep")
    assert result.state == "success"
    assert first_epochs(seen)[-1] == "4"
    assert (result.stages[0].job_id != job) is edited
    if edited:
        assert backend.status(job).verdict == OVERTAKEN
    assert any("now the first epoch" in line for line in seen.text) is edited


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_a_retry_and_a_task_that_is_cleared_go_on_from_the_checkpoint(
    slow: Path, run: Run, dag_folder: Path, seen: Any
) -> None:
    """A rank that is killed costs a retry where the gang may not start again."""
    dag = dag_folder / "dag.py"
    dag.write_text(dag.read_text().replace('task_id="slow"', 'task_id="slow", max_restarts=0, retry_delay=0'))
    slow.write_text("die")
    assert run().state == "success"
    assert first_epochs(seen) == ["1", "4"]
    slow.write_text("broken")
    assert run().state == "failed"
    slow.write_text("")
    assert run(start="slow").state == "success"
    assert first_epochs(seen) == ["1", "4", "1", "4"]


def first_epochs(seen: Any) -> list[str]:
    return [line.rpartition(" ")[2] for line in seen.text if "first epoch" in line]


KILLED = """
import os, sys
from pathlib import Path
from muster.airflow.embedded import load, runner
from muster.core.settings import Settings

home, cache, dags, dag_id = sys.argv[1:]
load.make_ready = lambda *_: os.kill(os.getpid(), 9)
runner.run_dag(dag_id, runner.Wanted(params={"word": "meant"}), settings=Settings(home=Path(home), cache=Path(cache)), dags=Path(dags))
"""


@pytest.mark.nightly
def test_a_run_that_was_killed_before_it_began_is_not_taken_for_the_one_before(
    home: EmbeddedHome, dag_folder: Path, write_dag: Write, run: Run, seen: Any
) -> None:
    say = 'JobOperator(task_id="say", image="python", command=["echo", "{{ params.word }}"], resources=SMALL)'
    write_dag(say, params="{'word': 'older'}")
    older = run()
    arguments = [str(home.settings.home), str(home.settings.cache), str(home.dags), dag_folder.name]
    assert (
        subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -signal.SIGKILL
    )
    with pytest.raises(SpecError, match=f"`muster run {dag_folder.name} --resume` begins it"):
        run(start="say")
    resumed = run(resume="keep")
    assert (resumed.state, resumed.params, resumed.stages[0].kept) == ("success", {"word": "meant"}, False)
    assert resumed.run_id != older.run_id
    assert (
        seen.notes[-1]
        == f"run {resumed.run_id} was ended before its first stage: it begins now, with word=meant"
    )
    assert run(resume="keep").run_id == resumed.run_id
    with pytest.raises(SpecError, match="no param 'odd'"):
        run({"odd": "1"})
    assert run(resume="keep").run_id == resumed.run_id, "what was refused was told, and is not begun"


def test_a_run_that_goes_on_elsewhere_is_neither_resumed_nor_given_up(
    other: subprocess.Popen[str], job: str, slow: Path, run: Run, backend: Backend
) -> None:
    with pytest.raises(MusterError, match="still going on in process"):
        run(resume="keep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.airflow.embedded.loop.Loop.run", lambda self, *ended: None)
        run()
    assert backend.status(job).state is JobState.RUNNING
    slow.touch()
    assert ended(other) == ["success", "success"]


class Stopper(Silent):
    """Stops the run by a signal when something happens to a task, as a person might at any moment.

    :param when: ``task_started`` comes before Airflow has taken SIGTERM for the task, ``task_ended`` after.
    """

    def __init__(self, when: str, number: signal.Signals) -> None:
        self.started: list[str] = []
        setattr(self, when, self._stop)
        self._number = number

    def task_started(self, task: str, try_number: int, *, runs_a_job: bool) -> None:
        self.started.append(task)

    def _stop(self, *_: object, **__: object) -> None:
        os.kill(os.getpid(), self._number)


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("task_started", signal.SIGTERM),
        ("task_ended", signal.SIGINT),
        # the two others in CI on Airflow 3.4
        pytest.param("task_started", signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("task_ended", signal.SIGTERM, marks=pytest.mark.nightly),
    ],
)
def test_a_stop_between_two_tasks_is_heard(
    home: EmbeddedHome,
    backend: Backend,
    dag_folder: Path,
    write_dag: Write,
    when: str,
    number: signal.Signals,
) -> None:
    name = dag_folder.name
    job = f'image="python", entrypoint="{name}.steps:quick", resources=SMALL'
    write_dag(
        f'JobOperator(task_id="a", {job}) >> JobOperator(task_id="b", {job})',
        steps="def quick() -> None: ...",
    )
    stopper = Stopper(when, number)
    result = run_dag(name, settings=home.settings, dags=home.dags, listener=stopper)
    assert result.state == "interrupted"
    jobs = [
        job for job in backend.store.ledger.jobs() if backend.store.ledger.spec(job).origin.dag_id == name
    ]
    assert len(jobs) == (when == "task_ended"), "nothing is begun after it"
    assert "b" not in stopper.started
