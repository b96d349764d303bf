"""The state of a mapped task, told by those of its instances."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.embedded.runs import States


@pytest.mark.parametrize(
    ("each", "whole"),
    [
        (["upstream_failed", "failed", "success"], "failed"),
        (["success", "skipped"], "skipped"),
        (["success", "success"], "success"),
        ([], "none"),
    ],
)
def test_an_instance_that_failed_is_hidden_by_none_that_has_not_run(each: list[str], whole: str) -> None:
    rows = [("fit", index, state) for index, state in enumerate(each)]
    session: Any = SimpleNamespace(execute=lambda query: rows)
    run: Any = SimpleNamespace(dag_id="d", run_id="r")
    states = States(run, session)
    states.read()
    assert states.of("fit") == whole
