"""Ids of predictions, and what may be asked of a log and of drift."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core.deployment import RequestLog
from muster.core.errors import SpecError
from muster.core.prediction import PredictionId, hour_of, predictions_volume


def test_an_id_names_deployment_and_hour() -> None:
    found = PredictionId.parse("price-of-rooms-19ab2c3d4e5-3f9c1a7b-2a")
    assert (found.deployment, found.at) == ("price-of-rooms", 0x19AB2C3D4E5 / 1000)
    assert found.hour == hour_of(found.at) == "2025-11-23T22"
    assert predictions_volume(found.deployment) == "price-of-rooms/predictions"


@pytest.mark.parametrize(
    "text", ["", "flights", "flights-1-2-3", "../x-19ab2c3d4e5-3f9c1a7b-2a", "-1-3f9c1a7b-2"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        PredictionId.parse(text)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"share": 0}, "share is 0: need a number above 0, at most 1"),
        ({"share": True}, "share is True"),
        ({"keep_partitions": 0}, "keep_partitions is 0: need a whole number of 1 or more"),
        ({"partition_days": 0}, "partition_days is 0: need a number of days above 0"),
        ({"leave_out": "user"}, "leave_out is 'user': need a list of names"),
        ({"leave_out": ["a"], "hashed": ["a"]}, "'a' is left out and hashed"),
    ],
)
def test_a_log_that_cannot_be_kept_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says.replace("(", r"\(")):
        RequestLog(**given)
