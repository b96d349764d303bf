"""How the page names the task that asked, and where it links it to."""

from __future__ import annotations

from muster.airflow.page.task import task
from muster.core.origin import Origin


def test_a_mapped_task_and_what_an_address_may_not_hold() -> None:
    found = task(Origin(dag_id="flights", run_id="manual__a/b+00:00", task_id="t", map_index=3))
    assert found["task"] == "flights · t[3]"
    assert found["task_url"] == "../dags/flights/runs/manual__a%2Fb%2B00%3A00/tasks/t/mapped/3"


def test_muster_run_keeps_a_database_of_its_own() -> None:
    found = task(Origin(dag_id="flights", run_id="muster__2026", task_id="t", map_index=3))
    assert found == {"task": "flights.t[3] by muster run", "task_url": None}


def test_nobody_asked() -> None:
    assert task(Origin()) == {"task": "", "task_url": None}
