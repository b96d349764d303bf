"""What the sweep takes for nobody's: every row of the table."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from muster.airflow.attempts.orphans import YOUNG_SECONDS, Origins, sweep, unowned
from muster.airflow.attempts.standing import GONE, ask, ended_by_hand, over
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.job import Origin
from muster.core.status import JobState, JobStatus

NOW = 10_000.0
TASK = Origin(instance="i", dag_id="flights", run_id="r", task_id="train")


def job(job_id: str, *, age: float = 2 * YOUNG_SECONDS) -> JobStatus:
    return JobStatus(job_id=job_id, state=JobState.RUNNING, submitted=NOW - age, owner=f"try of {job_id}")


def chosen(*jobs: JobStatus, state: str | None) -> dict[str, str]:
    found = unowned([(each, TASK) for each in jobs], lambda origin: state, now=NOW)
    assert all(status.job_id == swept.job_id for status, swept in found)
    return {swept.job_id: swept.reason for _, swept in found}


@pytest.mark.parametrize(
    "state", [None, "scheduled", "queued", "running", "deferred", "restarting", "up_for_retry"]
)
def test_a_task_that_goes_on_keeps_its_job(state: str | None) -> None:
    assert chosen(job("a"), state=state) == {}


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "removed", "upstream_failed", GONE])
def test_a_task_that_is_over_owns_nothing(state: str) -> None:
    assert chosen(job("a"), job("b"), state=state) == {
        "a": f"its task is {state}",
        "b": f"its task is {state}",
    }


def test_of_several_jobs_of_one_task_the_newest_is_meant() -> None:
    assert chosen(job("old", age=300), job("new", age=200), state="running") == {
        "old": "its task has begun another"
    }
    assert chosen(job("old", age=300), job("new", age=1), state="running") == {
        "old": "its task has begun another"
    }


def test_what_was_just_begun_is_left_alone_and_airflow_is_not_asked() -> None:
    def never(origin: Origin) -> str:
        raise AssertionError(origin)

    assert unowned([(job("a", age=1), TASK)], never, now=NOW) == []


def test_each_task_is_asked_about_once_and_for_itself() -> None:
    other = Origin(instance="i", dag_id="flights", run_id="r", task_id="train", map_index=3)
    asked = []

    def states(origin: Origin) -> str:
        asked.append(origin)
        return "failed" if origin.map_index == 3 else "running"

    (found,) = unowned([(job("a"), TASK), (job("b"), other)], states, now=NOW)
    assert found[1].job_id == "b"
    assert found[1].task == "flights.train[3] of r"
    assert asked == [TASK, other]


def test_who_is_told_to_stop_was_ended_or_not() -> None:
    assert ended_by_hand("failed")
    assert ended_by_hand("restarting"), "cleared while it ran"
    assert not over("restarting"), "it runs again"
    assert not ended_by_hand("running"), "its worker stops"
    assert not ended_by_hand(None), "reset after its scheduler died"
    assert not ended_by_hand("up_for_retry")


class Machine:
    """A backend in memory, with jobs that are two minutes old."""

    def __init__(self, **origins: Origin) -> None:
        self.origins = origins
        self.failing: dict[str, Exception] = {}
        self.ended: list[tuple[str, str | None]] = []
        self.over: set[str] = set()
        self.asked: list[str] = []
        self.read: list[str] = []

    @property
    def store(self) -> Any:
        return self

    @property
    def ledger(self) -> Any:
        return self

    def jobs(self) -> list[str]:
        return list(self.origins)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        self.asked = [*job_ids]
        return {
            job_id: replace(
                job(job_id),
                submitted=time.time() - 120,
                state=JobState.FAILED if job_id in self.over else JobState.RUNNING,
            )
            for job_id in self.asked
            if not isinstance(self.failing.get(job_id), Corrupt)
        }

    def spec(self, job_id: str) -> Any:
        if isinstance(failing := self.failing.get(job_id), NotFound):
            raise failing
        self.read.append(job_id)
        return type("Spec", (), {"origin": self.origins[job_id]})

    def cancel(self, job_id: str, *, owner: str | None, wait: bool) -> None:
        assert not wait
        if failing := self.failing.get(job_id):
            raise failing
        self.ended.append((job_id, owner))


def swept(machine: Machine, **options: Any) -> list[str]:
    return [each.job_id for each in sweep(machine, "i", lambda _: "failed", **options)]  # type: ignore[arg-type]


def test_only_ones_own_are_ended_in_their_owners_name_and_none_that_is_waited_for() -> None:
    machine = Machine(
        mine=TASK,
        followed=TASK,
        others=replace(TASK, instance="j"),
        by_hand=Origin(instance="i"),
    )
    assert swept(machine, but={"followed"}) == ["mine"]
    assert machine.ended == [("mine", "try of mine")]


def test_one_that_cannot_be_ended_or_read_keeps_no_other() -> None:
    machine = Machine(torn=TASK, gone=TASK, stuck=TASK, a=TASK)
    machine.failing = {
        "torn": Corrupt("torn"),
        "gone": NotFound("gone"),
        "stuck": BackendError("processes [7] do not die"),
    }
    assert swept(machine) == ["a"]


def test_what_was_read_once_is_not_read_again() -> None:
    machine, known = Machine(goes_on=TASK, over=TASK, followed=TASK), Origins()
    machine.over = {"over"}
    for _ in range(2):
        sweep(machine, "i", lambda _: "running", but={"followed"}, known=known)  # type: ignore[arg-type]
    assert machine.asked == ["goes_on"]
    assert machine.read == ["goes_on"]
    del machine.origins["over"]  # gc took it, and its name is forgotten
    machine.over = set()
    sweep(machine, "i", lambda _: "running", but={"followed"}, known=known)  # type: ignore[arg-type]
    machine.origins["over"] = TASK
    sweep(machine, "i", lambda _: "running", known=known)  # type: ignore[arg-type]
    assert machine.asked == ["goes_on", "followed", "over"]


@pytest.mark.parametrize(
    ("index", "known", "found"), [(-1, {"t": "running"}, "running"), (7, {"t_7": None}, None), (7, {}, GONE)]
)
def test_airflow_is_asked_about_one_task_of_a_map_and_no_other(
    monkeypatch: pytest.MonkeyPatch, index: int, known: dict[str, str | None], found: str | None
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked: list[dict[str, object]] = []

    def states(**given: object) -> dict[str, dict[str, str | None]]:
        asked.append(given)
        return {"r": known}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    assert ask(Origin(dag_id="d", run_id="r", task_id="t", map_index=index)) == found
    assert asked == [{"dag_id": "d", "map_index": index, "task_ids": ["t"], "run_ids": ["r"]}]
