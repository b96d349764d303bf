"""RetentionOperator: what it refuses, and what it says; that it keeps what serves is in test_backfill.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.core.errors import SpecError
from muster.volumes.base import CollectionPlan, Version


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep": 0}, "'gc', keep: 0: expected a whole number, 1 or more"),
        ({"keep": True}, "keep: True: expected a whole number"),
        ({"keep": "3"}, "keep: '3': expected a whole number"),
        ({"young_days": -0.5}, "young_days: -0.5: expected a number of days"),
        ({"partition_days": -1}, "partition_days: -1: expected a number of days"),
        ({"job_days": float("nan")}, "job_days: nan: expected a number of days"),
        ({"job_days": float("inf")}, "job_days: inf: expected a number of days"),
        ({"dry_run": "no"}, "dry_run: 'no': expected True or False"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(home: EmbeddedHome, given: Any, says: str) -> None:
    from muster.airflow import RetentionOperator

    with pytest.raises(SpecError, match=says):
        RetentionOperator(task_id="gc", **given)


def test_a_param_keeps_its_type_and_is_checked_when_it_is_known(
    write_dag: Callable[..., None], run: Callable[..., RunResult]
) -> None:
    write_dag(
        """
        from muster.airflow import RetentionOperator
        RetentionOperator(task_id="gc", keep="{{ params.keep }}", dry_run="{{ params.dry_run }}")
        """,
        params="{'keep': Param(3, type='integer'), 'dry_run': True}",
    )
    done = run()
    assert done.state == "success", done.stages
    refused = run({"keep": 0})
    assert refused.state == "failed"
    assert "keep: 0: expected a whole number, 1 or more" in refused.stages[0].message


def version(number: int, *, retired: str | None = None) -> Version:
    return Version(
        volume="f/rows",
        number=number,
        digest="b3:" + "0" * 64,
        size_bytes=1000 * number,
        files=1,
        created=0.0,
        partition="2013-01",
        retired=retired,
    )


def test_the_log_names_what_goes_and_counts_what_stays(home: EmbeddedHome) -> None:
    from muster.airflow.operators.retention import sentence, summary, table

    kept = {
        "a@1": "pinned: deployment/flights",
        "a@2": "one of the last 3",
        "a@3": "volume://m@1 was made from it",
        "a@4": "volume://m@2 was made from it",
        "a@5": "leased by train-1",
    }
    plan = CollectionPlan(versions=(version(1), version(20, retired="wrong")), kept=kept, jobs=("train-0",))
    assert list(table(plan)) == [
        "version             partition  size      why",
        "volume://f/rows@1   2013-01    1,000 B   older than those kept",
        "volume://f/rows@20  2013-01    20,000 B  retired",
        "2 stay: one that stays was made from it",
        "1 stay: pinned",
        "1 stay: one of the last 3",
        "1 stay: leased",
    ]
    told = summary(plan, freed_bytes=5, dry_run=True)
    assert told["deleted"] == {"f/rows": 2}
    assert sentence(told) == (
        "2 versions (21,000 B) would go, 5 stay; 0 leftovers, 0 code snapshots and 1 old jobs would go; "
        "5 B were freed"
    )
    many = CollectionPlan(versions=tuple(version(number) for number in range(1, 251)))
    lines = list(table(many))
    assert (len(lines), lines[-1]) == (202, "… and 50 more")
