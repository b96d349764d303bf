"""Which versions and columns of a volume are shown first."""

from __future__ import annotations

import pytest

from muster.airflow.plugin.versions import columns, newest_of_each
from muster.volumes.base import Version


def version(number: int, partition: str | None, retired: str | None = None) -> Version:
    return Version(
        volume="m",
        number=number,
        digest="b3:0",
        size_bytes=1,
        files=1,
        created=0.0,
        partition=partition,
        retired=retired,
    )


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        ([], []),
        (["loss", "auc", "rows", "auc_baseline"], ["loss", "auc", "auc_baseline", "rows"]),
        ([f"m{n}" for n in range(200)], [f"m{n}" for n in range(6)]),
        (["a", "b", "c", "d", "e", "f", "f_baseline"], ["a", "b", "c", "d", "e"]),
        (["a_baseline", "b"], ["a_baseline", "b"]),
    ],
)
def test_a_few_metrics_are_shown_each_beside_its_baseline(metrics: list[str], chosen: list[str]) -> None:
    assert columns(metrics)[: len(chosen)] == chosen
    assert len(columns(metrics)) <= 6


def test_of_each_partition_the_newest_that_is_not_retired_is_shown_the_last_partition_first() -> None:
    found = [
        version(5, "2013-01"),
        version(4, "2013-02", "bad"),
        version(3, "2013-02"),
        version(2, "2013-01"),
    ]
    assert [each.number for each in newest_of_each([*found, version(1, None)])] == [3, 5]


def test_where_there_are_no_partitions_every_version_is_shown() -> None:
    found = [version(2, None), version(1, None)]
    assert newest_of_each(found) == found
