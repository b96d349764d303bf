"""A run notes in the store that it goes on, also after the store was away, and warns of that once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from muster.airflow.embedded import runner
from muster.core.errors import Unreachable
from muster.core.origin import Origin
from muster.volumes.protocols import Ledger


class Away:
    """A ledger that is away now and then."""

    def __init__(self) -> None:
        self.away = False
        self.notes: list[bool] = []

    def note_run(self, _run: Origin, *, going: bool) -> None:
        if self.away:
            raise Unreachable("the store service does not answer")
        self.notes.append(going)


def test_a_run_is_noted_again_once_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 60.0, 60.0, 120.0, 360.0, 360.0, 400.0, 660.0, 660.0, 700.0, 700.0])
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(times))
    ledger, warnings = Away(), list[Any]()
    run = Origin(instance="here", dag_id="flights", run_id="muster__1")
    with runner.noted(cast("Ledger", ledger), run, warnings.append) as beat:
        ledger.away = True
        for _ in range(3):  # at 60, 120 and 360
            beat()
        ledger.away = False
        for _ in range(3):  # at 400, 660 and 700
            beat()
        assert ledger.notes == [True, True]
        ledger.away = True
    assert len(warnings) == 1
