"""What the page says of a job beside its state."""

from __future__ import annotations

import pytest

from muster.airflow.operators.validate import ENTRYPOINT
from muster.airflow.plugin.board import Job
from muster.airflow.plugin.described import VALIDATION, row
from muster.core.job import JobSpec, Role
from muster.core.status import JobResult, JobState, JobStatus

FAILED = {"expectations": 30.0, "failed": 2.0, "rows": 7.0}


@pytest.mark.parametrize(
    ("entrypoint", "metrics", "said"),
    [
        (VALIDATION, FAILED, "the data failed: 2 of 30 expectations"),
        (VALIDATION, {**FAILED, "failed": 0.0}, ""),
        ("etl:rows", FAILED, ""),  # an author's own metric of that name
    ],
)
def test_a_validation_whose_data_failed_says_so_though_its_job_succeeded(
    entrypoint: str, metrics: dict[str, float], said: str
) -> None:
    assert VALIDATION == ENTRYPOINT
    spec = JobSpec(
        name="a.b", image="validate", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint=entrypoint),)
    )
    status = JobStatus(job_id="j", state=JobState.SUCCEEDED, submitted=1.0, result=JobResult(metrics=metrics))
    assert row(Job(job_id="j", status=status, spec=spec))["failed_expectations"] == said
