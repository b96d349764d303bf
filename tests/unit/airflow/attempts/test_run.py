"""Tries of a task whose job runs on a cluster: what one was killed at is done by the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.unit.airflow.attempts.notes import Log, Notes, Ti
from tests.unit.backends.kubernetes.cluster_jobs import Cut, World, at_request, die, world
from tests.unit.backends.kubernetes.fake_cluster import KUEUE

from muster.airflow.attempts import run
from muster.airflow.attempts.attempt import Attempt
from muster.airflow.attempts.run import TaskRun
from muster.airflow.attempts.trigger import JobTrigger
from muster.airflow.attempts.waiting import GoesOn
from muster.backends.base import Backend
from muster.backends.kubernetes.api.kinds import POD_GROUP
from muster.core.errors import NotFound
from muster.core.job import JobSpec
from muster.core.origin import Origin
from muster.core.settings import Settings

# As Airflow draws them: UUIDs whose order is that of time.
FIRST, SECOND = "01985b3e-0000-7000-8000-000000000000", "01985b3e-0001-7000-8000-000000000000"


class Followed(Exception):
    """The job is submitted or adopted; how it is followed is not of interest here."""


class Following:
    """A task's wait that does not."""

    def follow(self, *_: object, **__: object) -> NoReturn:
        raise Followed


class Leaving:
    """A task's wait that has been long enough."""

    def follow(self, *_: object, **__: object) -> NoReturn:
        raise GoesOn("7")


class Deferred(Exception):
    """The task is handed over to a trigger."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), missing=KUEUE, queue=None) as found:
        yield found


class Task:
    """One task, whose tries begin one after the other."""

    def __init__(self, there: World, home: Path, name: str) -> None:
        self._there = there
        self._home = home
        self._origin = Origin(instance="i", dag_id="d", run_id="r", task_id=name)
        self._notes = Notes()
        self.log = Log()

    def run(self, owner: str, *, cut: int = 0, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
        """Begin a try, killed after a request where `cut` tells which; return what it sent."""
        backend = self._there.backend(f"{owner}-{self._origin.task_id}")
        backend.runner.check(self._there.job(max_restarts=7))  # so that the cluster is known
        meanwhile()
        task = self._begun(owner, backend, wait=Following())
        with pytest.MonkeyPatch.context() as patch, at_request(patch, cut, die, after=True) as sent:
            with pytest.raises(Cut if cut else Followed):
                task.run(self._build)
            return sent

    def defer(self, owner: str, **fields: Any) -> JobTrigger:
        """Begin a try that does not wait itself; return its trigger."""
        found: list[Any] = []

        def hand_over(trigger: object) -> NoReturn:
            found.append(trigger)
            raise Deferred

        backend = self._there.backend(f"{owner}-{self._origin.task_id}")
        task = self._begun(owner, backend, wait=Leaving(), defer=hand_over, **fields)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "ask", lambda _: "running")
            with pytest.raises(Deferred):
                task.run(self._build)
        (trigger,) = found
        assert isinstance(trigger, JobTrigger)
        return trigger

    def begin(self, owner: str, build: Callable[[], JobSpec]) -> None:
        """Begin a try with this spec."""
        self._begun(owner, self._there.backend(f"{owner}-{self._origin.task_id}"), wait=Following()).run(
            build
        )

    def _begun(self, owner: str, backend: Backend, **fields: Any) -> TaskRun:
        context: Any = {"task_state_store": self._notes, "ti": Ti()}
        return TaskRun(
            context=context,
            backend=backend,
            settings=Settings(home=self._home, cache=self._home),
            origin=self._origin,
            owner=owner,
            retries=2,
            last_try=False,
            log=self.log,
            listener=None,
            max_tries=2,
            **fields,
        )

    def forget(self) -> None:
        """Discard what its tries wrote down, as *Clear* of Airflow 3.4 does."""
        self._notes.kept.clear()

    def _build(self) -> JobSpec:
        return self._there.job(origin=self._origin)

    @property
    def attempt(self) -> Attempt:
        attempt = Attempt.load(self._notes.kept["muster"])
        assert attempt is not None
        return attempt

    @property
    def job_id(self) -> str:
        return self.attempt.job_id(instance="i", task=f"d.{self._origin.task_id}")


@pytest.mark.parametrize("kind", ["jobsets", "podgroups", "secrets"])
def test_a_submission_that_was_cut_off_is_finished_by_the_next_try(
    there: World, tmp_path: Path, kind: str
) -> None:
    sent = Task(there, tmp_path, f"whole-{kind}").run(FIRST)
    last = max(number for number, each in enumerate(sent, 1) if each.startswith(f"create {kind}"))
    task = Task(there, tmp_path, f"cut-{kind}")
    task.run(FIRST, cut=last)
    (root,) = there.roots(task.job_id)
    task.run(SECOND)
    assert there.roots(task.job_id) == [root]
    assert task.job_id in {each["metadata"]["name"] for each in there.cluster.all(POD_GROUP)}
    assert there.ask_for_bundle(task.job_id).status_code == 200
    assert there.backend().status(task.job_id).owner == SECOND


def test_a_job_that_runs_is_adopted_while_the_cluster_is_away(there: World, tmp_path: Path) -> None:
    task = Task(there, tmp_path, "runs")
    task.run(FIRST)

    def go_away() -> None:
        there.cluster.away = True

    task.run(SECOND, meanwhile=go_away)
    there.cluster.away = False
    assert there.backend().status(task.job_id).owner == SECOND


def test_a_cleared_task_of_which_nothing_is_stored_goes_on_from_its_last_job(
    there: World, tmp_path: Path
) -> None:
    task = Task(there, tmp_path, "forgotten")
    task.defer(FIRST)
    first = task.job_id
    task.forget()
    task.defer(SECOND, again=True)
    assert task.job_id != first
    assert (task.attempt.before, task.attempt.anew) == (first, True)
    assert there.backend().status(first).state.ended, "no job goes on that no try waits for"


def test_what_fails_before_its_job_is_written_down_as_a_try(there: World, tmp_path: Path) -> None:
    def build() -> NoReturn:
        raise NotFound("no such version")

    task = Task(there, tmp_path, "no-input")
    with pytest.raises(NotFound):
        task.begin(FIRST, build)
    assert (task.attempt.number, task.attempt.anew) == (1, False)


def test_at_the_hand_over_the_trigger_gets_execution_timeout_and_the_log_tells_of_the_pool(
    there: World, tmp_path: Path
) -> None:
    task = Task(there, tmp_path, "limited")
    trigger = task.defer(FIRST, limit=timedelta(minutes=2), pool="licence")
    assert (trigger.limit_seconds, trigger.cursor) == (120.0, "7")
    assert "pool licence counts this task meanwhile only if it includes deferred tasks" in task.log.lines[-1]
    told = Task(there, tmp_path, "plain")
    assert told.defer(FIRST).limit_seconds is None
    assert not any("pool" in line for line in told.log.lines)
