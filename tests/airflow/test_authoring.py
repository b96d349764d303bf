"""Tasks as an author writes them: functions of the Dag file, mapped and gathered, with real jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult, Stage
from muster.airflow.embedded.runner import Wanted, run_dag
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

EXAMPLE = Path(__file__).parent / "authored"


@pytest.fixture(scope="module")
def ran(home: EmbeddedHome) -> Iterator[RunResult]:
    folder = shutil.copytree(EXAMPLE, home.dags / "authored", ignore=shutil.ignore_patterns("__pycache__"))
    yield run_dag("authored", Wanted(params={"epochs": 5}), settings=home.settings, dags=home.dags)
    shutil.rmtree(folder)


def stage(ran: RunResult, name: str) -> Stage:
    return next(stage for stage in ran.stages if stage.task_id == name)


def rows(store: FolderStore, address: str, file: str = "rows.json") -> Any:
    return json.loads((store.path(address) / file).read_text())


def test_it_succeeds(ran: RunResult) -> None:
    assert {each.task_id: (each.state, each.message) for each in ran.stages} == dict.fromkeys(
        ("write", "gather", "train", "count", "say"), ("success", "")
    )


def test_a_mapped_task_writes_a_partition_for_each_month(ran: RunResult, store: FolderStore) -> None:
    assert rows(store, "volume://authored/month@2024-02") == ["2024-02-0", "2024-02-1"]


def test_what_a_mapped_task_left_is_gathered_in_the_order_of_the_map(
    ran: RunResult, store: FolderStore
) -> None:
    assert rows(store, "volume://authored/all@1") == [
        f"2024-{month}-{row}" for month in ("01", "02", "03") for row in range(2)
    ]


def test_params_of_the_form_keep_their_types_in_every_rank(ran: RunResult, store: FolderStore) -> None:
    given = {"rows": 6, "epochs": 5, "options": {"rate": 0.5, "deep": True, "layers": [64, 32]}, "note": None}
    (address,) = stage(ran, "train").versions["model"]
    assert [rows(store, address, f"rank-{rank}.json") for rank in range(2)] == [given, given]


def test_partitions_and_jobs_of_a_mapped_task_are_told_as_one_stage(
    ran: RunResult, store: FolderStore
) -> None:
    """In the order of the map; numbers are those of the order in which the instances ended."""
    written = stage(ran, "write")
    assert set(written.versions) == {"months"}
    months = written.versions["months"]
    assert [store.record(address).partition for address in months] == ["2024-01", "2024-02", "2024-03"]
    assert sorted(months) == [f"volume://authored/month@{number}" for number in (1, 2, 3)]
    assert (written.job_id, written.metrics) == (None, {})
    assert stage(ran, "gather").metrics == {"rows": 6}


def test_the_record_names_the_function_by_the_dag_file(ran: RunResult, store: FolderStore) -> None:
    record = store.record("volume://authored/all@1")
    assert record.code
    there = (store.code(record.code) / "authored" / "dag.py").read_text()
    assert record.modules == ("authored/dag.py",)
    assert "def gather(" in there
    assert "def train(" not in there
    assert store.ledger.spec(record.job_id).roles[0].entrypoint == "authored.dag:gather"


def test_a_strict_type_checker_knows_every_word_of_it(tmp_path: Path) -> None:
    told = mypy(EXAMPLE / "dag.py")
    assert told == "Success: no issues found in 1 source file\n"


def test_a_strict_type_checker_sees_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "dag.py"
    wrong.write_text(
        dedent(
            """\
            from pathlib import Path

            from muster.airflow import GangOperator, job

            GangOperator(task_id="a", command=["true"], trigger_rule="all_done", queue="gpus", params={"x": 1})
            GangOperator(task_id="b", command=["true"], hang_timeot=None)
            GangOperator(task_id="c", command=["true"], hang_timeout=3)
            GangOperator(command=["true"])

            @job(image="python", outputs={"rows": "a/rows"}, retires=3)
            def one(rows: Path) -> None: ...

            @job(image="python")
            def two(rows: Path) -> None: ...

            two(rows="a/rows").version["rows"]
            """
        )
    )
    told = mypy(wrong)
    assert "dag.py:5:" not in told
    assert (
        'Unexpected keyword argument "hang_timeot" for "GangOperator"; did you mean "hang_timeout"?' in told
    )
    assert '"hang_timeout" to "GangOperator" has incompatible type "int"; expected "timedelta | None"' in told
    assert 'Missing named argument "task_id" for "GangOperator"' in told
    assert 'Unexpected keyword argument "retires"' in told
    assert '"TaskResult" has no attribute "version"; maybe "versions"?' in told


def mypy(file: Path) -> str:
    """What ``mypy --strict`` says of a file of an author's, for whom muster is an installed package."""
    cache = Settings.load({"HOME": str(Path.home())}).cache / "mypy"
    words = ["mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "dag.py"]
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=file.parent, capture_output=True, text=True, check=False
    ).stdout
