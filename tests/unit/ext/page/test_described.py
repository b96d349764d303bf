"""What the page says of a job beside its state."""

from __future__ import annotations

import pytest

from muster.airflow.operators.validate import ENTRYPOINT
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState, JobStatus
from muster.ext.page.board import VALIDATION, Job
from muster.ext.page.described import detail, row

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


@pytest.mark.parametrize(("trial", "search"), [(-1, None), (3, "search-1")])
def test_a_trials_job_names_its_search_and_another_job_names_no_owner(trial: int, search: str | None) -> None:
    origin = Origin(dag_id="d", run_id="r", task_id="search", trial=trial)
    spec = JobSpec(
        name="a.b", image="etl", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a:b"),), origin=origin
    )
    status = JobStatus(job_id="j", state=JobState.RUNNING, submitted=1.0, owner="search-1")
    assert detail(Job(job_id="j", status=status, spec=spec))["search"] == search
