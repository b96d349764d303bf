"""What a Dag wrote for the release before still parses, with a warning at the line that wrote it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import muster.airflow as m
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.deprecated import NAMES, Renamed
from muster.core.errors import SpecError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def planted(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "muster.airflow.RankOperator", Renamed(now="GangOperator", goes="9.0"))
    monkeypatch.setitem(NAMES, "muster.airflow.JobOperator(tries)", Renamed(now="max_restarts", goes="9.0"))


def test_a_name_is_imported_under_its_old_name() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"muster\.airflow\.RankOperator is now GangOperator"
    ) as warned:
        assert m.RankOperator is m.GangOperator  # type: ignore[attr-defined]
    assert warned[0].filename == __file__


def plain(**given: Any) -> Any:
    return m.GangOperator(task_id="t", image="python", entrypoint="a.b:c", **given)


def of_the_dag(**given: Any) -> Any:
    return m.GangOperator(task_id="t", image="python", entrypoint="a.b:c", default_args={"muster": given})


def function(**given: Any) -> Any:
    @m.job(image="python", **given)
    def t() -> None:
        pass

    return t().operator


def mapped(**given: Any) -> Any:
    task = m.JobOperator.partial(task_id="t", image="python", entrypoint="a.b:c", **given).expand(params=[{}])
    return type("Kept", (), task.partial_kwargs)


@pytest.mark.parametrize("make", [plain, of_the_dag, function, mapped])
def test_a_keyword_is_taken_under_its_old_name_by_all_that_inherit_it(make: Callable[..., Any]) -> None:
    from airflow.sdk import DAG

    with DAG("d", schedule=None, start_date=datetime(2024, 1, 1)):  # noqa: DTZ001
        with pytest.warns(DeprecationWarning, match=r"JobOperator\(tries\) is now max_restarts"):
            task = make(tries=7)
        assert task.max_restarts == 7


def test_both_names_at_once_are_refused() -> None:
    with (
        pytest.warns(DeprecationWarning, match="is now max_restarts"),
        pytest.raises(SpecError, match="task 't': tries is now max_restarts, and both are given: drop tries"),
    ):
        plain(tries=1, max_restarts=2)
