from __future__ import annotations

from typing import Any

import pytest

from muster.backends.releases.plan import Comparison, Plan, Rules
from muster.core.deployment import SmokeRequest
from muster.core.errors import SpecError
from muster.core.wire import dumps, loads

ASKED = (SmokeRequest(name="two", inputs={"x": (2.0, 3.0)}),)


@pytest.mark.parametrize(
    "steps", [(), (25, 5, 100), (5, 5, 100), (0, 100), (5, 100, 101), (2.5, 100), ("5",)]
)
def test_steps_that_are_no_rising_percents_are_refused(steps: Any) -> None:
    with pytest.raises(SpecError, match=r"steps is .*: need percents"):
        Plan(steps=steps)


@pytest.mark.parametrize("hold", [(), (1.0, 2.0), (-1.0,), (float("inf"),), (float("nan"),)])
def test_holds_that_do_not_fit_are_refused(hold: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="hold_seconds"):
        Plan(steps=(5, 25, 100), hold_seconds=hold)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_error_share": 1.5}, "max_error_share is 1.5"),
        ({"max_refused_share": 2}, "max_refused_share is 2: need a share, 0 to 1"),
        ({"max_unseen_share": -0.1}, "max_unseen_share is -0.1: need a share"),
        ({"max_unseen_share": float("nan")}, "max_unseen_share is nan: need a share"),
        ({"max_psi": 0}, "max_psi is 0: need more than 0, such as 0.2"),
        ({"max_psi": float("nan")}, "max_psi is nan: need more than 0"),
        ({"max_psi": "much"}, "max_psi is 'much': need a number"),
        ({"p95_slack_seconds": None}, "p95_slack_seconds is None: need a number"),
        ({"max_p95_ratio": 0.5}, "max_p95_ratio is 0.5"),
        ({"p95_slack_seconds": -1.0}, "p95_slack_seconds is -1.0"),
        ({"fewest_requests": 0}, "fewest_requests is 0"),
        ({"fewest_requests": "many"}, "fewest_requests is 'many': need a number"),
        ({"max_error_share": "1 %"}, "max_error_share is '1 %': need a number"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Rules(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "an agreement or a metric"),
        ({"agreement": 2.0}, "agreement is 2.0"),
        ({"metric": "f1"}, "metric 'f1' is unknown; known are accuracy, auc, mae, rmse"),
        ({"metric": "auc"}, r"labels: auc needs as many as there are rows, \[2\] by request"),
        ({"metric": "auc", "labels": ((1.0,),)}, "labels"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Comparison(requests=ASKED, output="y", **fields)


def test_what_comes_after_a_share_and_how_long_it_is_held() -> None:
    plan = Plan(steps=(5, 25, 100), hold_seconds=(1.0, 2.0, 3.0))
    assert [plan.after(percent) for percent in (0, 4, 5, 7, 25, 99, 100)] == [5, 5, 25, 25, 100, 100, 100]
    assert [plan.hold(percent) for percent in (5, 7, 25, 100)] == [1.0, 2.0, 2.0, 3.0]
    assert not plan.whole
    assert Plan().whole
    assert plan.longest_seconds == 9.0
    held = Plan(steps=(5, 25), hold_seconds=(1.0, 2.0))
    assert ([held.after(p) for p in (0, 5, 25, 50)], held.hold(50)) == ([5, 25, 25, 25], 2.0)


def test_a_plan_crosses_processes() -> None:
    plan = Plan(
        steps=(5, 100),
        hold_seconds=(1.5,),
        rules=Rules(max_p95_ratio=None),
        comparison=Comparison(requests=ASKED, output="y", metric="auc", labels=((0.0, 1.0),)),
    )
    assert loads(Plan, dumps(plan)) == plan
