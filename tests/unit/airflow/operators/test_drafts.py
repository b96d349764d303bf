"""What a job's spec looks like where it is stored: digests of what was made depend on its every byte."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from muster.airflow.operators.validate import ValidateOperator
from muster.core.resources import Resources
from muster.core.wire import dumps
from muster.ext.ingest.compact import CompactOperator
from muster.ext.ingest.operator import IngestOperator
from muster.ext.predictions.drift import DriftOperator
from muster.ext.predictions.score import ScoreOperator

STORED = Path(__file__).with_name("drafts.txt")
"""As they were stored when each of the five operators still built its own: not to be written anew."""
COMMON: dict[str, Any] = {
    "task_id": "t",
    "resources": Resources(cpus=2, memory_gib=3),
    "queue": "batch",
    "priority": "high",
    "run_timeout": timedelta(hours=1),
}


def test_the_specs_of_muster_s_own_programs_are_stored_as_ever() -> None:
    operators = (
        CompactOperator(task_id="t", volume="a/b"),
        CompactOperator(**COMMON, volume="a/b", partition="2026-01", large_mib=64, keep=3, image="spark"),
        DriftOperator(task_id="t", deployment="a"),
        DriftOperator(
            **COMMON, deployment="a", reference="a/b@1", columns=["x"], report_volume="a/d", image="tables"
        ),
        IngestOperator(task_id="t", source="kafka://events/clicks", volume="a/b"),
        IngestOperator(
            **COMMON,
            source="kafka://events/clicks",
            volume="a/b",
            most=10,
            until="2026-01-01T00:00:00Z",
            image="spark",
        ),
        ScoreOperator(task_id="t", model="a/b@1", rows=["a/c@1"], outputs="a/d"),
        ScoreOperator(
            **COMMON, model="a/b@1", rows=["a/c@1"], outputs="a/d", shards=3, keep=["id"], image="tables"
        ),
        ValidateOperator(task_id="t", volume=["a/b@1"]),
        ValidateOperator(**COMMON, volume=["a/b@1"], suite="s.json", result_volume="a/r", image="tables"),
    )
    drafts = [dumps(operator.job_draft("a.t")) for operator in operators]
    assert drafts == STORED.read_text().splitlines()
