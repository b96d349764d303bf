"""Which jobs the sweep takes for abandoned: every row of the table."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import DagRunState
from tests.unit.airflow.attempts.notes import OwnStore

from muster.airflow.attempts.orphans import YOUNG_SECONDS, sweep, unowned
from muster.airflow.attempts.task_state import GONE, ask, ended_by_hand, over, why_over
from muster.core.cancelling import WITH_RUN, with_task
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Verdict

NOW = 10_000.0
TASK = Origin(instance="i", dag_id="flights", run_id="r", task_id="train")


def job(job_id: str, *, age: float = 2 * YOUNG_SECONDS) -> JobStatus:
    return JobStatus(job_id=job_id, state=JobState.RUNNING, submitted=NOW - age, owner=f"try of {job_id}")


def chosen(*jobs: JobStatus, state: str | None) -> dict[str, str]:
    found = unowned([(each, TASK) for each in jobs], lambda origin: state, now=NOW)
    assert all(status.job_id == swept.job_id for status, swept in found)
    return {swept.job_id: swept.why.message for _, swept in found}


@pytest.mark.parametrize(
    "state", [None, "scheduled", "queued", "running", "deferred", "restarting", "up_for_retry"]
)
def test_a_task_that_goes_on_keeps_its_job(state: str | None) -> None:
    assert chosen(job("a"), state=state) == {}


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "removed", "upstream_failed", GONE])
def test_a_task_that_is_over_owns_nothing(state: str) -> None:
    why = with_task(state).message
    assert chosen(job("a"), job("b"), state=state) == {"a": why, "b": why}


def test_of_several_jobs_of_one_task_the_newest_is_meant() -> None:
    assert chosen(job("old", age=300), job("new", age=200), state="running") == {
        "old": "its task has begun another job"
    }
    assert chosen(job("old", age=300), job("new", age=1), state="running") == {
        "old": "its task has begun another job"
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


class Machine(OwnStore):
    """A backend in memory, with jobs that are two minutes old."""

    def __init__(self, **origins: Origin) -> None:
        self.origins = origins
        self.failing: dict[str, Exception] = {}
        self.ended: list[tuple[str, str | None]] = []
        self.over: set[str] = set()
        self.asked: list[str] = []
        self.read: list[str] = []

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

    def cancel(self, job_id: str, *, owner: str | None, wait: bool, why: Verdict) -> None:
        assert not wait
        assert why == with_task("failed")
        if failing := self.failing.get(job_id):
            raise failing
        self.ended.append((job_id, owner))


def swept(machine: Machine) -> list[str]:
    return [each.job_id for each in sweep(machine, "i", lambda _: "failed")]  # type: ignore[arg-type]


def test_only_ones_own_are_ended_in_their_owners_name() -> None:
    machine = Machine(mine=TASK, others=replace(TASK, instance="j"), by_hand=Origin(instance="i"))
    assert swept(machine) == ["mine"]
    assert machine.ended == [("mine", "try of mine")]


def test_one_that_cannot_be_ended_or_read_keeps_no_other() -> None:
    machine = Machine(torn=TASK, gone=TASK, stuck=TASK, a=TASK)
    machine.failing = {
        "torn": Corrupt("torn"),
        "gone": NotFound("gone"),
        "stuck": BackendError("processes [7] do not die"),
    }
    assert swept(machine) == ["a"]


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


@pytest.mark.parametrize(
    ("state", "run", "why"),
    [
        ("skipped", DagRunState.FAILED, WITH_RUN),
        ("skipped", DagRunState.RUNNING, with_task("skipped")),
        ("failed", None, with_task("failed")),
        (None, None, with_task(None)),
    ],
)
def test_a_task_that_is_skipped_with_its_run_came_to_dagrun_timeout(
    monkeypatch: pytest.MonkeyPatch, state: str | None, run: DagRunState | None, why: Verdict
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def told(dag_id: str, run_id: str) -> DagRunState:
        assert run is not None, "it is not asked"
        return run

    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", told)
    assert why_over(TASK, state) == why
