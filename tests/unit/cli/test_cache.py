"""``muster cache ls`` and ``drop``; ``why`` needs Airflow (``tests/airflow/test_cache.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.cli.conftest import make_spec, run_job

from muster.core.data import OutputTarget
from muster.core.origin import Origin
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


@pytest.fixture
def made(store: FolderStore) -> FolderStore:
    """Two Dags made something, and a later run of the first kept it twice."""
    for dag in ("flights", "lab"):
        origin = Origin(instance="laptop", dag_id=dag, run_id="r1", task_id="rows", map_index=3)
        spec = make_spec(inputs={}, outputs={"rows": OutputTarget(volume=f"{dag}/rows")}, origin=origin)
        run_job(store, f"{dag}-1", spec, {"rows": {"x": dag.encode()}})
    for run in ("r2", "r3"):
        store.use("flights-1", by=Origin(instance="laptop", dag_id="flights", run_id=run, task_id="rows"))
    return store


@pytest.mark.usefixtures("made")
class TestList:
    def test_what_may_be_kept_is_listed_newest_first(self, muster: Run) -> None:
        head, lab, flights = muster("cache", "ls").out.splitlines()
        assert head.split()[:4] == ["dag", "stage", "versions", "made"]
        assert lab.split()[:3] == ["lab", "rows[3]", "lab/rows@1"]
        assert flights.split()[:3] == ["flights", "rows[3]", "flights/rows@1"]
        assert flights.split()[5] == "2"

    def test_it_can_be_read_by_a_script(self, muster: Run) -> None:
        (found,) = muster("cache", "ls", "--dag", "flights", "--json").json()
        assert (found["job_id"], found["outputs"]) == ("flights-1", {"rows": ["volume://flights/rows@1"]})
        assert [use["origin"]["run_id"] for use in found["uses"]] == ["r3", "r2"]

    def test_what_was_dropped_or_retired_is_not_listed(self, muster: Run, store: FolderStore) -> None:
        assert "is not kept any more" in muster("cache", "drop", "flights/rows@1").out
        store.retire("volume://lab/rows@1", reason="wrong")
        assert "nothing can be kept yet" in muster("cache", "ls").err
        assert "nothing of lab can be kept" in muster("cache", "ls", "--dag", "lab").err

    def test_a_run_shows_what_it_kept(self, muster: Run) -> None:
        out = muster("runs", "show", "r2").out
        for known in ("rows  kept", "rows = flights/rows@1", "job flights-1"):
            assert known in out
        assert [run["run_id"] for run in muster("runs", "ls", "--json").json()] == ["r3", "r2", "r1", "r1"]
