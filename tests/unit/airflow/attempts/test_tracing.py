"""The phases of an ended job, as its trace tells them."""

from __future__ import annotations

from typing import Any

import pytest

from muster.airflow.attempts.tracing import phases
from muster.core.status import JobState, JobStatus


def status(state: JobState, **facts: Any) -> JobStatus:
    return JobStatus(job_id="a-1", state=state, submitted=10.0, ended=40.0, **facts)


@pytest.mark.parametrize(
    ("ended", "sealed", "expected"),
    [
        (
            status(JobState.SUCCEEDED, started=20.0),
            38.0,
            [("waiting", 10.0, 20.0), ("running", 20.0, 38.0), ("sealing", 38.0, 40.0)],
        ),
        (status(JobState.SUCCEEDED, started=20.0), None, [("waiting", 10.0, 20.0), ("running", 20.0, 40.0)]),
        (status(JobState.FAILED, started=20.0), None, [("waiting", 10.0, 20.0), ("running", 20.0, 40.0)]),
        (status(JobState.CANCELLED), None, [("waiting", 10.0, 40.0)]),
    ],
)
def test_the_phases_follow_each_other(ended: JobStatus, sealed: float | None, expected: Any) -> None:
    assert list(phases(ended, sealed=sealed)) == expected


@pytest.mark.parametrize("sealed", [15.0, 50.0])
def test_clocks_that_differ_give_no_phase_that_ends_before_it_begins(sealed: float) -> None:
    found = list(phases(status(JobState.SUCCEEDED, started=20.0), sealed=sealed))
    assert all(begin <= end for _, begin, end in found)
    assert [name for name, _, _ in found] == ["waiting", "running", "sealing"]
