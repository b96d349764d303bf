"""Whether an answer is as a smoke request expects."""

from __future__ import annotations

from typing import Any

import pytest

from muster.backends.local.deployment_smoke import check_answer
from muster.core.deployment import SmokeRequest
from muster.core.errors import DeploymentError

ASKED = SmokeRequest(name="one", inputs={"x": (1,)}, expect={"y": {"min": 0, "max": 1}})


def answered(*values: Any) -> dict[str, Any]:
    return {"outputs": [{"name": "y", "data": list(values)}]}


def test_values_within_their_bounds_are_as_expected() -> None:
    check_answer(ASKED, answered(0, 0.5, 1.0, True))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0.5, 1.5), "output 'y' is 1.5, expected min 0 and max 1"),
        (("late",), "is 'late', expected a number"),
    ],
)
def test_what_is_not_expected_is_named(values: tuple[Any, ...], says: str) -> None:
    with pytest.raises(DeploymentError, match=says):
        check_answer(ASKED, answered(*values))
