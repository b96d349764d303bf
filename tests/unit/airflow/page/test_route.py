"""The site that the page reads, one for all, closed once no request reads it; and how the page names a task."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from muster.airflow.page.route import Opening, task
from muster.core.origin import Origin


class Opened:
    """Opens sites, and knows which were closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[int] = []

    def __call__(self) -> Any:
        number = self.opened = self.opened + 1
        return SimpleNamespace(
            number=number, backend=SimpleNamespace(close=lambda: self.closed.append(number))
        )


def test_all_who_come_together_are_lent_one() -> None:
    sites = Opened()
    opening = Opening(sites)

    def read(_: int) -> int:
        with opening.lent() as site:
            return int(site.number)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(200))) == {1}
    assert (sites.opened, sites.closed) == (1, [])


def test_one_that_was_replaced_is_closed_when_its_last_reader_has_gone() -> None:
    sites = Opened()
    opening = Opening(sites)
    with opening.lent() as first:
        with opening.lent() as same:
            opening.replace(same)
            opening.replace(same)
            with opening.lent() as second:
                assert (first.number, same.number, second.number) == (1, 1, 2)
                opening.replace(first)  # which was refused, too, a moment later
            assert sites.closed == []
        assert sites.closed == []
    assert sites.closed == [1]
    with opening.lent() as still:
        assert still.number == 2


def test_one_that_nobody_reads_is_closed_at_once() -> None:
    sites = Opened()
    opening = Opening(sites)
    with opening.lent() as site:
        pass
    opening.replace(site)
    assert sites.closed == [1]


def test_a_mapped_task_and_what_an_address_may_not_hold() -> None:
    found = task(Origin(dag_id="flights", run_id="manual__a/b+00:00", task_id="t", map_index=3))
    assert found["task"] == "flights · t[3]"
    assert found["task_url"] == "../dags/flights/runs/manual__a%2Fb%2B00%3A00/tasks/t/mapped/3"


def test_muster_run_keeps_a_database_of_its_own() -> None:
    found = task(Origin(dag_id="flights", run_id="muster__2026", task_id="t", map_index=3))
    assert found == {"task": "flights.t[3] by muster run", "task_url": None}


def test_nobody_asked() -> None:
    assert task(Origin()) == {"task": "", "task_url": None}
