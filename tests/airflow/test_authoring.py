"""Tasks as an author writes them: functions of the Dag file, mapped and gathered, with real jobs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.airflow.runner import run_dag
from muster.volumes.folder import FolderStore

EXAMPLE = Path(__file__).parent / "authored"


@pytest.fixture(scope="module")
def ran(home: EmbeddedHome) -> Iterator[RunResult]:
    folder = shutil.copytree(EXAMPLE, home.dags / "authored", ignore=shutil.ignore_patterns("__pycache__"))
    yield run_dag("authored", params={"epochs": 5}, settings=home.settings, dags=home.dags)
    shutil.rmtree(folder)


def stage(ran: RunResult, name: str):
    return next(stage for stage in ran.stages if stage.task_id == name)


def rows(store: FolderStore, address: str, file: str = "rows.json"):
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
