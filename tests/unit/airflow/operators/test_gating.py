"""A gate's decision: thresholds, the champion, and figures that are none."""

from __future__ import annotations

import math

import pytest

from muster.airflow.operators.gating import ChampionComparison, MetricCheck, Threshold, decide, table
from muster.core.errors import SpecError

AUC = Threshold(metric="auc", sign=">=", limit=0.72)


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        (">= 0.72", 0.72, True),
        ("> 0.72", 0.72, False),
        ("<=0.1", 0.1, True),
        (" < 1e-3 ", 0.001, False),
        (">=-1", 0.0, True),
    ],
)
def test_a_rule_is_a_comparison_with_a_number(rule: str, value: float, holds: bool) -> None:
    (threshold,) = Threshold.parse("m", rule)
    assert threshold.check({"m": value}).holds is holds


@pytest.mark.parametrize(
    "rule",
    [
        "0.72",
        "== 0.72",
        ">= ",
        ">= two words",
        ">= nan",
        ">= -Infinity",
        ">= m + nan",
        ">= m +",
        ">= 0.7,",
        ">= m - 1 - 1",
        ">= inf",
        "> 1 or True",
        0.72,
        "",
    ],
)
def test_what_is_no_such_rule_is_refused(rule: str) -> None:
    with pytest.raises(SpecError, match=r"'auc'.*expected such as '>= 0\.72'"):
        Threshold.parse("auc", rule)


@pytest.mark.parametrize(
    ("rule", "wanted", "holds"),
    [
        (">= auc_baseline", ">= auc_baseline 0.74", True),
        ("> auc_baseline + 0.02", "> auc_baseline 0.74 plus 0.02", False),
        (">= auc_baseline - 1e-3", ">= auc_baseline 0.74 less 0.001", True),
        ("<auc_baseline+.02", "< auc_baseline 0.74 plus 0.02", True),
    ],
)
def test_a_rule_may_hold_a_model_against_another_metric_of_its_own(
    rule: str, wanted: str, holds: bool
) -> None:
    (threshold,) = Threshold.parse("auc", rule)
    metrics = {"auc": 0.75, "auc_baseline": 0.74}
    assert threshold.check(metrics) == MetricCheck(metric="auc", found=0.75, wanted=wanted, holds=holds)


def test_several_rules_for_one_metric_all_hold_or_the_gate_is_closed() -> None:
    rules = Threshold.parse("auc", ">= 0.65, >= auc_baseline")
    checks = decide(rules, {"auc": 0.66, "auc_baseline": 0.74}, None)
    assert [check.holds for check in checks] == [True, False]


def test_a_metric_to_compare_with_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match="no metric 'auc_basline'; it has auc, auc_baseline"):
        decide(Threshold.parse("auc", ">= auc_basline"), {"auc": 0.7, "auc_baseline": 0.7}, None)


def test_without_a_champion_the_thresholds_decide() -> None:
    (check,) = decide((AUC,), {"auc": 0.71, "loss": 3.0}, None)
    assert check == MetricCheck(metric="auc", found=0.71, wanted=">= 0.72", holds=False)


@pytest.mark.parametrize(
    ("candidate", "champion", "higher", "tolerance", "holds"),
    [
        (0.73, 0.72, True, 0.0, True),
        (0.72, 0.72, True, 0.0, True),
        (0.71, 0.72, True, 0.0, False),
        (0.71, 0.72, True, 0.01, True),
        (0.4, 0.5, False, 0.0, True),
        (0.6, 0.5, False, 0.0, False),
        (0.6, 0.5, False, 0.1, True),
    ],
)
def test_the_champion_is_the_bar(
    candidate: float, champion: float, higher: bool, tolerance: float, holds: bool
) -> None:
    comparison = ChampionComparison(
        metric="m",
        candidate={"m": candidate},
        champion={"m": champion},
        higher_is_better=higher,
        tolerance=tolerance,
    )
    (check,) = decide((), {}, comparison)
    assert check.holds is holds


@pytest.mark.parametrize(
    ("metrics", "says"), [({}, "no metric 'auc'; it has none"), ({"auc": math.nan}, "is nan")]
)
def test_a_metric_that_is_missing_or_no_number_is_named(metrics: dict[str, float], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        decide((AUC,), metrics, None)


def test_a_champion_without_the_metric_is_named_as_such() -> None:
    with pytest.raises(SpecError, match="the champion has no metric 'auc'"):
        decide((), {}, ChampionComparison(metric="auc", candidate={"auc": 1.0}, champion={}))


def test_the_table_says_what_was_found_and_wanted() -> None:
    comparison = ChampionComparison(
        metric="auc", candidate={"auc": 0.7}, champion={"auc": 0.75}, tolerance=0.01
    )
    assert table(decide((AUC,), {"auc": 0.73}, comparison)) == [
        "ok    auc  0.73  wanted >= 0.72",
        "FAIL  auc  0.7  wanted >= the champion's 0.75 less 0.01",
    ]
