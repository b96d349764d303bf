"""What a try takes in place of a job of its own, and how it waits for a run that makes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.contract.test_store import make_spec, run

from muster.airflow.attempts import keeping
from muster.airflow.attempts.keeping import Reuse, Wish
from muster.airflow.attempts.trigger import OthersJobTrigger
from muster.airflow.attempts.waiting import InlinePatience
from muster.core.comparison import whole_key_of
from muster.core.errors import NotFound
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

MINE = Origin(instance="one", dag_id="loop", run_id="mine", task_id="train")
SPEC = replace(make_spec(features={"volume": "loop/rows"}), origin=MINE)
THEIRS = replace(SPEC, origin=replace(MINE, run_id="theirs"))
FILES = {"features": {"x": b"1"}}


class Deferred(Exception):
    """Airflow's own way to leave a task's process."""


class Task:
    """A try of a task: what happens while it sleeps is in `meanwhile`, one step a look."""

    def __init__(self, store: FolderStore, *meanwhile: Callable[[], object]) -> None:
        self.meanwhile = list(meanwhile)
        self.said: list[str] = []
        self.backend = SimpleNamespace(store=store, status=self.status)
        self.wait = SimpleNamespace(pause=self.pause)
        self.log = SimpleNamespace(info=lambda text, *words: self.said.append(text % words))
        self.origin, self.owner, self.deadline = MINE, "me", None
        self.defer: Any = None
        self.triggers: list[Any] = []
        self.alive = True
        self.seconds: float | None = None

    def status(self, job_id: str) -> JobStatus:
        return replace(self.backend.store.ledger.status(job_id), alive=self.alive)

    def patience(self) -> InlinePatience:
        return InlinePatience(seconds=self.seconds)

    def pause(self, _: float) -> None:
        assert self.meanwhile, "it waits for ever"
        self.meanwhile.pop(0)()

    def hand_over(self, trigger: Any) -> NoReturn:
        self.triggers.append(trigger)
        raise Deferred

    def take(self, wish: Wish | None = None) -> str | None:
        made = Reuse(self, wish or Wish(), self.said.append).take(SPEC, "mine-1")  # type: ignore[arg-type]
        return made.job_id if made else None


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def claimed(store: FolderStore, *, entered: bool = True) -> None:
    """Another run has claimed the same for its job."""
    assert store.claim(whole_key_of(THEIRS), job_id="theirs-1") == "theirs-1"
    if entered:
        store.ledger.create("theirs-1", THEIRS)


def finish(store: FolderStore) -> None:
    run(store, "theirs-1", THEIRS, FILES)
    store.ledger.update(JobStatus(job_id="theirs-1", state=JobState.SUCCEEDED, submitted=1.0, ended=2.0))


def fail(store: FolderStore) -> None:
    store.ledger.update(JobStatus(job_id="theirs-1", state=JobState.FAILED, submitted=1.0, ended=2.0))


def test_what_was_made_is_taken_and_counts_as_used(store: FolderStore) -> None:
    run(store, "old-1", THEIRS, FILES)
    task = Task(store)
    assert task.take() == "old-1"
    (line,) = task.said
    assert line.startswith("kept loop/rows@1 of 2")
    assert line.endswith("same code, image, inputs and params")
    assert store.used("volume://loop/rows@1") > 0


def test_where_there_is_nothing_the_job_has_the_claim(store: FolderStore) -> None:
    task = Task(store)
    assert task.take() is None
    assert task.said == ["nothing is kept: this task has made nothing that is live"]
    assert store.claim(whole_key_of(SPEC), job_id="other-1") == "mine-1"


def test_the_second_of_two_waits_and_takes_what_the_first_made(store: FolderStore) -> None:
    claimed(store)
    task = Task(store, lambda: None, lambda: finish(store))
    assert task.take() == "theirs-1"
    assert task.said[0] == "waits for theirs's train (job theirs-1)"
    assert task.said[1].startswith("kept loop/rows@1")


@pytest.mark.parametrize("how", [JobState.FAILED, JobState.CANCELLED])
def test_the_second_makes_it_where_the_first_does_not(store: FolderStore, how: JobState) -> None:
    claimed(store)
    ended = JobStatus(job_id="theirs-1", state=how, submitted=1.0, ended=2.0)
    assert Task(store, lambda: store.ledger.update(ended)).take() is None
    assert store.claim(whole_key_of(SPEC), job_id="other-1") == "mine-1"
    assert store.ledger.status("theirs-1").state is how, "its job is left as it is"


def test_what_the_first_made_and_retired_is_made_again(store: FolderStore) -> None:
    def retire() -> None:
        finish(store)
        store.retire("volume://loop/rows@1", reason="wrong")

    claimed(store)
    assert Task(store, retire).take() is None


def test_a_claim_of_a_job_that_never_came_counts_for_a_while(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    claimed(store, entered=False)

    def later() -> None:
        now[0] += keeping.GRACE_SECONDS

    task = Task(store, lambda: None, later)
    assert task.take() is None
    assert task.said[0] == "waits for job theirs-1"
    assert task.meanwhile == []


def test_a_job_whose_supervisor_is_gone_counts_for_a_while(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    claimed(store)

    def lost() -> None:
        task.alive = False
        now[0] += keeping.GRACE_SECONDS - 1

    def later() -> None:
        now[0] += keeping.GRACE_SECONDS

    task = Task(store, lost, later)
    assert task.take() is None
    assert store.ledger.status("theirs-1").state is JobState.QUEUED, "its own task goes on with it"


def test_a_long_wait_is_a_triggers(store: FolderStore) -> None:
    claimed(store)
    task = Task(store)
    task.seconds, task.defer = 0.0, task.hand_over
    with pytest.raises(Deferred):
        task.take()
    (trigger,) = task.triggers
    assert (type(trigger), trigger.job_id, trigger.deadline) == (OthersJobTrigger, "theirs-1", None)


def test_a_version_that_vanishes_between_the_comparison_and_its_use_is_made_again(store: FolderStore) -> None:
    run(store, "old-1", THEIRS, FILES)

    def refuse(_: Any) -> str:
        store.retire("volume://loop/rows@1", reason="wrong")
        return ""

    task = Task(store)
    assert task.take(Wish(refuse=refuse)) is None
    assert task.said[0] == "what job old-1 made is not live any more: it is made again"


def test_what_was_made_has_the_result_that_its_job_had(store: FolderStore) -> None:
    run(store, "old-1", THEIRS, FILES, metrics={"rows": 1.0}, modules=["etl.py"])
    task = Task(store)
    found = Reuse(task, Wish(), task.said.append)  # type: ignore[arg-type]
    made = found.take(SPEC, "mine-1")
    assert made is not None
    status = found.status(made)
    assert (status.job_id, status.state) == ("old-1", JobState.SUCCEEDED)
    assert status.result is not None
    assert status.result.outputs == {"features": ("volume://loop/rows@1",)}
    assert status.result.metrics == {"rows": 1.0}
    store.ledger.update(replace(status, ended=1.0))
    store.collect(job_days=0)
    with pytest.raises(NotFound):
        store.ledger.status("old-1")
    assert found.status(made) == status, "also after gc took the job's entry"
