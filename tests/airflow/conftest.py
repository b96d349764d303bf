"""A real Airflow in this process."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.airflow.leaving import no_job_left

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult, Silent, Stage
from muster.airflow.embedded.runner import Wanted, run_dag
from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.core.status import JobStatus
from muster.volumes import fsck
from muster.volumes.folder import FolderStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Airflow; what Airflow's own libraries warn of is not ours to mend."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Using `httpx` with"))


@pytest.fixture
def store(home: EmbeddedHome) -> FolderStore:
    return FolderStore(home.settings.store)


@pytest.fixture(autouse=True, scope="module")
def undamaged(home: EmbeddedHome) -> Iterator[None]:
    """Fail in the file that damaged the store: all files share it, and gc refuses a damaged one."""
    yield
    store = FolderStore(home.settings.store)
    fsck.refuse(store.layout, store.marks)


@pytest.fixture
def keeps(home: EmbeddedHome) -> Callable[[str], list[str]]:
    """Tell which files of the home hold a text.

    Another process reads them: closing a file gives up all locks that the process has on it
    (fcntl(2)), and SQLite's on Airflow's database are this process's.
    """

    def ask(text: str) -> list[str]:
        found = subprocess.run(
            [
                "grep",
                "--recursive",
                "--text",
                "--fixed-strings",
                "--files-with-matches",
                "-e",
                text,
                home.settings.home,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode in (0, 1), found.stderr
        return found.stdout.splitlines()

    return ask


@pytest.fixture
def backend(home: EmbeddedHome) -> Iterator[Backend]:
    """The machine; jobs that a test leaves there are ended with it."""
    with no_job_left(home.settings):
        yield Backend(MachinePlace(home.settings))


@pytest.fixture
def dag_folder(home: EmbeddedHome, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder below dags/ named after the test: its package, and its Dag's id; its jobs are ended with it."""
    folder = home.dags / re.sub(r"\W+", "_", request.node.name)[:60].strip("_").lower()
    folder.mkdir()
    try:
        with no_job_left(home.settings):
            yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def write_dag(dag_folder: Path) -> Callable[..., None]:
    """Write the test's Dag: the body of its function, and the modules beside it."""

    def write(body: str, *, params: str = "{}", **modules: str) -> None:
        name = dag_folder.name
        head = f"""\
            from __future__ import annotations
            from datetime import datetime, timedelta
            from airflow.sdk import Param, dag, task
            from muster.airflow import (
                DeployOperator, GangOperator, GateOperator, JobOperator, Output, Resources, ValidateOperator
            )

            SMALL = Resources(memory_gib=0.5)

            @dag(dag_id="{name}", schedule=None, start_date=datetime(2024, 1, 1), catchup=False, params={params})
            def {name}() -> None:
            """
        indented = "\n".join(f"    {line}" for line in dedent(body).strip().splitlines())
        (dag_folder / "dag.py").write_text(f"{dedent(head)}{indented}\n\n{name}()\n")
        for module, text in modules.items():
            (dag_folder / f"{module}.py").write_text(dedent(text))

    return write


class Seen(Silent):
    """A listener that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.jobs: list[tuple[str, str, str]] = []
        self.started: list[tuple[str, int]] = []
        self.text: list[str] = []
        self.ended: list[Stage] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def task_started(self, task: str, try_number: int, *, runs_a_job: bool) -> None:
        self.started.append((task, try_number))

    def job(self, task: str, status: JobStatus) -> None:
        self.jobs.append((task, status.state.value, status.reason))

    def lines(self, task: str, lines: Any) -> None:
        self.text += [f"{task}: {line}" for line in lines]

    def task_ended(self, stage: Stage) -> None:
        self.ended.append(stage)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def run(home: EmbeddedHome, dag_folder: Path, seen: Seen) -> Callable[..., RunResult]:
    """Run the test's Dag."""

    def go(params: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
        return run_dag(
            dag_folder.name,
            Wanted(params=params or {}, **options),
            settings=home.settings,
            dags=home.dags,
            listener=seen,
        )

    return go
