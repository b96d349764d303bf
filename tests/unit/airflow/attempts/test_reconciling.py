"""Jobs against their tasks: every row of the table, what came too late, and what fails meanwhile."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import OwnStore

from muster.airflow.attempts import reconciling
from muster.airflow.attempts.database import Standing
from muster.airflow.attempts.reconciling import Reconciler, late, unwanted
from muster.airflow.attempts.task_state import GONE
from muster.core.cancelling import WITH_RUN, with_task
from muster.core.errors import NotFound, SpecError, StoreError
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.base import RunNote

TASK = Origin(instance="i", dag_id="flights", run_id="r", task_id="train")
MODEL = "volume://flights/model@7"


@pytest.mark.parametrize(
    ("stands", "why"),
    [
        (Standing(state="running"), None),
        (Standing(state="deferred"), None),
        (Standing(state="up_for_retry"), None),
        (Standing(state=None), None),  # reset after its scheduler died: the next try adopts it
        (Standing(state="failed"), with_task("failed")),
        (Standing(state="success"), with_task("success")),
        (Standing(state=GONE), with_task(GONE)),
        (Standing(state="skipped"), with_task("skipped")),
        (Standing(state="skipped", run_failed=True), WITH_RUN),
        (Standing(state="failed", run_failed=True), with_task("failed")),
        (Standing(state="restarting"), with_task("restarting")),
        (Standing(state=None, cleared=True), with_task(None)),
        (Standing(state="running", cleared=True), with_task(None)),
    ],
)
def test_a_job_goes_on_exactly_while_a_try_waits_for_it_or_will(
    stands: Standing, why: Verdict | None
) -> None:
    assert unwanted(stands) == why


@pytest.mark.parametrize(
    ("stands", "why"),
    [
        (Standing(state="deferred", outcome="deferred"), None),  # its trigger is about to see it
        (Standing(state="success", outcome="success", ended=90.0), None),
        (Standing(state="failed", outcome="failed", ended=90.0), with_task("failed")),
        (Standing(state="failed", outcome="failed", ended=110.0), None),  # it failed at something later
        (Standing(state="skipped", outcome="skipped", ended=90.0), with_task("skipped")),
        (Standing(state="running", cleared=True, outcome="failed", ended=90.0), with_task(None)),
        (Standing(state="running", cleared=True, outcome="success", ended=90.0), None),
        (Standing(state="running", cleared=True, outcome="failed", ended=110.0), None),
        (Standing(state="running", outcome="failed", ended=90.0), None),  # a retry takes it
        (Standing(state=GONE), None),  # when it was deleted is not known
    ],
)
def test_what_is_committed_after_its_try_had_ended_is_used_by_nothing(
    stands: Standing, why: Verdict | None
) -> None:
    status = JobStatus(job_id="j", state=JobState.SUCCEEDED, submitted=1.0, ended=100.0)
    assert late(status, stands) == why


class Machine(OwnStore):
    """A backend and an Airflow in memory: jobs by id, and how the task of each stands."""

    def __init__(self) -> None:
        self.known: dict[str, JobStatus] = {}
        self.stands: dict[str, Standing] = {}
        self.origins: dict[str, Origin] = {}
        self.cancelled: dict[str, tuple[str | None, Verdict]] = {}
        self.retired: dict[str, str] = {}
        self.read: list[str] = []
        self.asked: list[set[str]] = []
        self.away: Exception | None = None
        self.deployments: Any = object()  # nothing is asked of them here
        self.opened = self.closed = self.swept = self.full = self.noted = 0
        self.going = {("flights", "r")}
        self.runs: dict[str, bool] = {}
        self.logs = defaultdict[str, list[str]](list)
        self.earlier = False  # whether the store is of a release that takes no notes

    def sweep(self) -> tuple[str, ...]:
        self.swept += 1
        return ()

    def note_sweep(self) -> None:
        if self.earlier:
            raise SpecError("the store service knows no POST /v1/upkeep/sweep")
        self.noted += 1

    def append(self, job_id: str, data: bytes) -> None:
        self.logs[job_id].append(data.decode())

    def note_run(self, run: Origin, *, going: bool) -> None:
        assert run.instance == "i"
        self.runs[run.run_id] = going

    def run_notes(self) -> list[RunNote]:
        left = [replace(TASK, task_id="", run_id="left"), replace(TASK, task_id="", instance="j")]
        return [RunNote(run=run, alive=True) for run in left]

    def open(self) -> Any:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def begin(
        self, job_id: str, state: JobState = JobState.RUNNING, *, origin: Origin = TASK, **task: Any
    ) -> None:
        now = time.time()
        ended = now if state.ended else None
        result = JobResult(outputs={"model": (MODEL,)}) if state is JobState.SUCCEEDED else None
        self.known[job_id] = JobStatus(
            job_id=job_id, state=state, submitted=now, ended=ended, owner=f"try of {job_id}", result=result
        )
        self.origins[job_id] = replace(origin, task_id=job_id)
        self.stands[job_id] = Standing(**{"state": "running", **task})

    def jobs(self) -> list[str]:
        if self.away is not None:
            raise self.away
        return list(self.known)

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        return [self.known[job_id] for job_id in job_ids]

    def status(self, job_id: str) -> JobStatus:
        return self.known[job_id]

    def spec(self, job_id: str) -> Any:
        self.read.append(job_id)
        if job_id not in self.origins:
            raise NotFound(job_id)
        return type("Spec", (), {"origin": self.origins[job_id]})

    def cancel(self, job_id: str, *, owner: str | None, wait: bool, why: Verdict) -> None:
        assert not wait, "others wait for their turn"
        self.cancelled.setdefault(job_id, (owner, why))

    def retire(self, address: str, *, reason: str) -> None:
        if self.full:
            self.full -= 1
            raise StoreError("the disk is full")
        self.retired[address] = reason

    def ask(self, jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[str, Standing]:
        self.asked.append({status.job_id for status, _ in jobs})
        return {status.job_id: self.stands[status.job_id] for status, _ in jobs}


@pytest.fixture
def machine() -> Machine:
    return Machine()


def opened(machine: Machine) -> Reconciler:
    ask = lambda jobs: machine.ask(jobs)  # noqa: E731 - it may be away for a while
    return Reconciler(machine.open, lambda: "i", ask, lambda: machine.going)


def test_a_job_whose_dag_was_renamed_goes_on_and_its_log_says_so_once(machine: Machine) -> None:
    machine.begin("renamed", stale=True)
    machine.begin("another")
    looks = opened(machine)
    looks.try_look()
    looks.try_look()
    assert machine.cancelled == {}
    (said,) = machine.logs["renamed"]
    assert said.startswith("[muster] this Airflow has no Dag flights any more: it was renamed")
    assert said.endswith("muster jobs cancel renamed\n")
    machine.stands["renamed"] = Standing(state="running")
    looks.try_look()
    machine.stands["renamed"] = Standing(state="running", stale=True)
    looks.try_look()
    assert [*map(len, machine.logs.values())] == [2], "it went again"


def test_the_runs_that_go_on_are_noted_until_they_end(machine: Machine) -> None:
    looks = opened(machine)
    looks.try_look()
    assert machine.runs == {"r": True, "left": False}, "one ended while no triggerer was there"
    machine.runs.clear()
    looks.try_look()
    assert machine.runs == {}, "once a minute"
    machine.going = {("flights", "r2")}
    looks.try_look()
    assert machine.runs == {"r": False, "r2": True}


def test_a_run_is_not_noted_as_long_as_a_job_of_it_goes_on(machine: Machine) -> None:
    machine.begin("waits", state=JobState.QUEUED)
    machine.stands["waits"] = Standing(state="deferred")
    looks = opened(machine)
    looks.try_look()
    assert machine.runs == {"left": False}
    machine.begin("waits", state=JobState.SUCCEEDED)
    machine.stands["waits"] = Standing(state="success", outcome="success", ended=time.time() + 1)
    looks.try_look()
    assert machine.runs == {"left": False, "r": True}, "it may be between two stages"


def test_a_job_is_ended_at_the_first_look_however_young_in_its_owners_name(machine: Machine) -> None:
    machine.begin("handed-over", state=JobState.RUNNING)
    machine.stands["handed-over"] = Standing(state="failed")
    machine.begin("others", origin=replace(TASK, instance="j"))
    machine.begin("by-hand", origin=Origin(instance="i"))
    machine.begin("by-muster-run", origin=replace(TASK, run_id="muster__1"))
    machine.begin("runs")
    opened(machine).try_look()
    assert machine.cancelled == {"handed-over": ("try of handed-over", with_task("failed"))}
    assert machine.asked == [{"handed-over", "runs"}]


def commits_late(machine: Machine) -> Reconciler:
    """A job whose task is gone at the first look, and which has succeeded by the next."""
    machine.begin("late")
    machine.stands["late"] = Standing(state=GONE)
    ours = opened(machine)
    ours.try_look()
    machine.begin("late", JobState.SUCCEEDED)
    machine.stands["late"] = Standing(state=GONE)
    return ours


def test_what_it_commits_all_the_same_is_retired_with_the_reason(machine: Machine) -> None:
    commits_late(machine).try_look()
    assert machine.retired == {MODEL: f"committed by job late too late: {with_task(GONE).message}"}


def test_what_was_committed_between_two_looks_is_retired_too_and_what_was_taken_is_not(
    machine: Machine,
) -> None:
    machine.begin("gap", JobState.SUCCEEDED)
    machine.stands["gap"] = Standing(state="failed", outcome="failed", ended=time.time() - 1)
    machine.begin("taken", JobState.SUCCEEDED)
    machine.stands["taken"] = Standing(state="success", outcome="success", ended=time.time() - 1)
    opened(machine).try_look()
    assert list(machine.retired) == [MODEL]
    assert "gap" in machine.retired[MODEL]


def test_what_has_long_been_relied_on_stays(machine: Machine) -> None:
    machine.begin("old", JobState.SUCCEEDED)
    machine.known["old"] = replace(machine.known["old"], ended=time.time() - 2 * 86400)
    machine.stands["old"] = Standing(state="failed", outcome="failed", ended=1.0)
    opened(machine).try_look()
    assert machine.retired == {}
    assert machine.asked == [], "and Airflow is not asked"


def test_what_has_ended_is_judged_once_and_what_never_changes_is_read_once(machine: Machine) -> None:
    machine.begin("runs")
    machine.begin("done", JobState.SUCCEEDED)
    ours = opened(machine)
    for _ in range(3):
        ours.try_look()
    assert machine.asked == [{"runs", "done"}, {"runs"}, {"runs"}]
    assert sorted(machine.read) == ["done", "runs"]
    assert machine.opened == 1


def test_a_database_that_is_away_loses_no_judgement_and_is_said_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    machine.begin("gap", JobState.SUCCEEDED)
    machine.stands["gap"] = Standing(state="failed", outcome="failed", ended=time.time() - 1)
    answer, machine.ask = machine.ask, _away  # type: ignore[method-assign]
    ours = opened(machine)
    for _ in range(20):
        ours.try_look()
    assert machine.retired == {}
    machine.ask = answer  # type: ignore[method-assign]
    ours.try_look()
    assert list(machine.retired) == [MODEL]
    said = [record.getMessage() for record in caplog.records if record.name == reconciling.__name__]
    assert len(said) == 3, said
    assert "the database is away" in said[0]
    assert "again" in said[2]


def _away(_: object) -> Mapping[str, Standing]:
    raise StoreError("the database is away")


def test_of_several_jobs_of_one_task_the_newest_is_meant(machine: Machine) -> None:
    for job_id, age in (("old", 300.0), ("new", 0.0)):
        machine.begin(job_id)
        machine.origins[job_id] = TASK
        machine.known[job_id] = replace(machine.known[job_id], submitted=time.time() - age)
    opened(machine).try_look()
    assert list(machine.cancelled) == ["old"]


def test_where_muster_is_not_used_nothing_is_made(machine: Machine) -> None:
    ours = Reconciler(machine.open, lambda: "i", machine.ask, set, used=lambda: False)
    ours.try_look()
    assert machine.opened == 0


def test_now_and_then_releases_and_leftovers_are_seen_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands: list[str | None] = []

    def take_back(found: object, instance: str, states: Callable[[Origin], str | None]) -> list[object]:
        assert (found, instance) == (machine.deployments, "i")
        machine.stands["none"] = Standing(state="failed")
        stands.append(states(TASK))
        return []

    monkeypatch.setattr(reconciling, "take_back", take_back)
    monkeypatch.setattr(reconciling, "RELEASES_EVERY_SECONDS", -1.0)
    monkeypatch.setattr(reconciling, "LEFTOVERS_EVERY_SECONDS", -1.0)
    opened(machine).try_look()
    assert stands == ["failed"]
    assert machine.swept == 1


def test_only_a_look_that_ended_well_is_noted_and_once_a_minute(machine: Machine) -> None:
    machine.begin("runs")
    ours = opened(machine)
    machine.away = StoreError("the store is away")
    ours.try_look()
    assert machine.noted == 0
    machine.away = None
    for _ in range(3):
        ours.try_look()
    assert machine.noted == 1


def test_a_store_that_takes_no_note_keeps_no_job_from_being_ended(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.earlier = True
    machine.begin("left")
    machine.stands["left"] = Standing(state="failed")
    opened(machine).try_look()
    assert list(machine.cancelled) == ["left"]
    assert "knows no POST /v1/upkeep/sweep" in caplog.text


def test_a_job_that_succeeds_with_its_task_while_airflow_is_asked_is_neither_ended_nor_retired(
    machine: Machine,
) -> None:
    machine.begin("quick")
    answer = machine.ask

    def ask(jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[str, Standing]:
        machine.begin("quick", JobState.SUCCEEDED)
        machine.stands["quick"] = Standing(state="success", outcome="success", ended=time.time() + 1)
        return answer(jobs)

    ours = Reconciler(machine.open, lambda: "i", ask, set)
    for _ in range(3):
        ours.try_look()
    assert (machine.cancelled, machine.retired) == ({}, {})


def test_what_could_not_be_retired_is_tried_again(machine: Machine) -> None:
    ours = commits_late(machine)
    machine.full = 2
    for _ in range(3):
        ours.try_look()
    assert list(machine.retired) == [MODEL]


def test_one_version_that_cannot_be_retired_keeps_nothing_else_waiting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retire(address: str, *, reason: str) -> None:
        if address == "volume://deleted/since@1":
            raise NotFound(address)
        if address == "volume://damaged/one@1":
            raise StoreError(address)
        machine.retired[address] = reason

    monkeypatch.setattr(machine, "retire", retire)
    monkeypatch.setattr(reconciling, "LEFTOVERS_EVERY_SECONDS", -1.0)
    for volume in ("damaged/one", "deleted/since", "whole/one"):
        job_id = volume.replace("/", "-")
        machine.begin(job_id, JobState.SUCCEEDED)
        made = JobResult(outputs={"model": (f"volume://{volume}@1",)})
        machine.known[job_id] = replace(machine.known[job_id], result=made)
        machine.stands[job_id] = Standing(state="failed", outcome="failed", ended=time.time() - 1)
    ours = opened(machine)
    for _ in range(2):
        ours.try_look()
    assert list(machine.retired) == ["volume://whole/one@1"]
    assert machine.asked == [{"damaged-one", "deleted-since", "whole-one"}, {"damaged-one"}]
    assert machine.swept == 2, "what ended jobs left is seen to all the same"


@pytest.mark.parametrize(("took", "rests"), [(0.0, 4.0), (0.3, 6.0), (60.0, 8.0)])
def test_no_rest_is_so_long_that_a_job_outlives_its_task_by_ten_seconds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, took: float, rests: float
) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return len(waited) > 1

    waited, now = list[float](), iter((100.0, 100.0 + took))
    ours = opened(machine)
    monkeypatch.setattr(ours, "try_look", lambda: None)
    monkeypatch.setattr(reconciling, "time", SimpleNamespace(monotonic=lambda: next(now)))
    ours.run(Stop())
    assert waited == [0.0, pytest.approx(rests)]
