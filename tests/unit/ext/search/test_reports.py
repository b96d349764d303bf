"""What the ranks of a trial print: the rungs that it reaches by it, and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.ext.search.reports import Reports
from muster.ext.search.space import loguniform
from muster.ext.search.spec import SearchSpec

SPEC = SearchSpec(space={"rate": loguniform(1e-4, 1e-1)}, metric="auc", rungs=(1, 3, 9))


def line(epoch: float, auc: object, *, total: int | None = 9) -> str:
    return f"muster: epoch={epoch}{'' if total is None else f'/{total}'} auc={auc}"


def test_each_rung_counts_once_with_the_value_that_is_told_first() -> None:
    reports = Reports(SPEC)
    told = [list(reports.read(0, line(epoch, epoch / 10))) for epoch in (1, 2, 3, 4)]
    assert told == [[(0, 0.1)], [], [(1, 0.3)], []]
    assert (reports.position, reports.value) == (4, 0.4)


def test_a_gang_that_starts_again_from_its_checkpoint_tells_nothing_new_until_it_is_further() -> None:
    reports = Reports(SPEC)
    for epoch in (1, 2, 3, 4, 5):
        reports.read(0, line(epoch, 0.5))
    assert [list(reports.read(0, line(epoch, 0.9))) for epoch in (3, 4, 5)] == [[], [], []]
    assert (reports.position, reports.value) == (5, 0.5)
    assert not reports.warnings
    assert reports.read(0, line(9, 0.8)) == [(2, 0.8)]


def test_a_line_beyond_several_rungs_reaches_each_of_them() -> None:
    reports = Reports(SPEC)
    assert reports.read(0, line(4, 0.5)) == [(0, 0.5), (1, 0.5)]


def test_a_reader_that_begins_anew_does_not_reach_what_was_reached() -> None:
    reports = Reports(SPEC, reached=1)
    assert reports.read(0, line(5, 0.5)) == []
    assert reports.read(0, line(9, 0.6)) == [(2, 0.6)]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_none(value: str) -> None:
    assert Reports(SPEC).read(0, line(1, value)) == [(0, None)]


@pytest.mark.parametrize("first", [0, 1])
def test_rank_0_counts_and_another_value_of_another_rank_is_one_warning(first: int) -> None:
    reports = Reports(SPEC)
    for epoch in (1, 2):
        reached = [
            each for rank in (first, 1 - first) for each in reports.read(rank, line(epoch, 0.5 + rank / 10))
        ]
        assert reached == ([(0, 0.5)] if epoch == 1 else [])
    assert reports.warnings == ["at 1 rank 0 tells auc=0.5 and rank 1 0.6: rank 0's counts"]


def test_ranks_that_tell_the_same_and_a_new_job_are_no_warning() -> None:
    reports = Reports(SPEC)
    for rank in (0, 1, 2):
        reports.read(rank, line(1, "nan"))
    reports.start_again()
    reports.read(1, line(1, 0.7))
    assert reports.warnings == []


def test_the_resource_is_the_number_with_a_total_or_the_named_one() -> None:
    both = "muster: step=300 epoch=3/9 auc=0.7"
    assert [rung for rung, _ in Reports(SPEC).read(0, both)] == [0, 1]
    named = replace(SPEC, resource="step", rungs=(100, 400))
    assert [rung for rung, _ in Reports(named).read(0, both)] == [0]


def test_the_metric_may_have_a_total_itself() -> None:
    assert [rung for rung, _ in Reports(SPEC).read(0, "muster: auc=0.7/1 epoch=1/9")] == [0]


def test_what_is_missing_is_said() -> None:
    reports = Reports(SPEC)
    assert reports.missing() == "it never told auc with a number that has a total, such as epoch=1/27"
    reports.read(0, "muster: loss=0.5 epoch=1/9")
    assert reports.missing().endswith("; it told loss, epoch")
    reports.read(0, line(3, 0.5, total=None))
    assert reports.warnings == [
        "it tells auc without a number that has a total, such as epoch=1/27 in the same line"
    ]
    reports.read(0, line(4, 0.5))
    assert reports.missing() == "it ended by itself at 4, before the last rung, 9"
    reports.read(0, line(9, 0.5))
    assert reports.missing() == ""


def test_a_total_below_the_last_rung_is_a_warning_unless_the_search_sets_it() -> None:
    reports, sets_it = Reports(SPEC), Reports(replace(SPEC, until="epochs"))
    for each in (reports, sets_it):
        each.read(0, line(1, 0.5, total=5))
        each.read(0, line(2, 0.5, total=5))
    assert reports.warnings == ["it trains to 5, and the last rung is 9: it cannot be reached"]
    assert sets_it.warnings == []


def test_other_lines_say_nothing() -> None:
    reports = Reports(SPEC)
    assert [
        list(reports.read(0, each)) for each in ("", "epoch=1/9 auc=0.5", "muster: link A=https://b/c")
    ] == [[], [], []]
    assert (reports.warnings, reports.value) == ([], None)
