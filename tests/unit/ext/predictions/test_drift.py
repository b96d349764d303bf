"""What may be asked of drift, and that old requests are no reason to leave it out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from muster.backends import request_log
from muster.core.errors import SpecError
from muster.ext.predictions.drift import DriftLimits, DriftOperator

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"psi": -1}, "psi is -1"),
        ({"ks": 2}, "ks is 2: need a share"),
        ({"false_alarms": 0}, "false_alarms is 0"),
        ({"fewest_rows": 0.5}, "fewest_rows is 0.5"),
    ],
)
def test_limits_that_mean_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        DriftLimits(**given)


def test_drift_is_compared_though_old_hours_are_not_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def commit(*_: Any, **__: Any) -> None:
        raise request_log.NotRetired("the requests of a are committed, but the disk is full")

    monkeypatch.setattr(request_log.Predictions, "commit_answered", commit)
    task = SimpleNamespace(settings=None, backend=SimpleNamespace(store=None))
    monkeypatch.setattr(request_log, "LocalDecoder", lambda _: None)
    said: list[str] = []
    log = SimpleNamespace(info=print, warning=lambda text, *words: said.append(text % words))
    monkeypatch.setattr(DriftOperator, "log", log)
    DriftOperator(task_id="t", deployment="a").commit_requests(cast("TaskRun", task))
    assert said == ["the requests of a are committed, but the disk is full"]
