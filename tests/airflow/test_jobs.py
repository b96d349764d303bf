"""One try's job, by itself: who owns it, what is left when the process is stopped, and what a trigger does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.airflow.leaving import no_job_left
from tests.unit.airflow.attempts.notes import Log, Ti
from tests.waiting import GUARD_SECONDS, until

from muster.airflow.embedded.home import EmbeddedHome
from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.backends.local.processes import marked
from muster.backends.releases.decision import Outcome
from muster.backends.releases.plan import Plan
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, DeploymentStatus, Release, Revision, RevisionState
from muster.core.errors import NotFound
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.core.wire import dumps, loads
from muster.images.folders import find_image, image_folders, put_image

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun

# As Airflow draws them: UUIDs whose order is that of time.
FIRST, SECOND, THIRD = (f"01985b3e-000{number}-7000-8000-000000000000" for number in range(3))
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DAG_RUN_STATE = "airflow.sdk.execution_time.task_runner.RuntimeTaskInstance.get_dagrun_state"
RUN = Origin(instance="i", dag_id="d", run_id="r", task_id="t")


class Notes:
    """Airflow's task_state_store, which refuses a try that is no longer the task's own."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.refuses = False
        self.before_set: Callable[[], None] = lambda: None

    def get(self, key: str) -> Any:
        return None if self.refuses else self.kept.get(key)

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse

        self.before_set()
        if self.refuses:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        self.kept[key] = value


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def spec(backend: Backend, home: EmbeddedHome) -> Callable[..., JobSpec]:
    image = put_image(backend.store, find_image("python", image_folders(home.settings)))

    def make(code: str = "print('ran')", **changes: Any) -> JobSpec:
        role = Role(command=("python", "-c", code), resources=Resources(memory_gib=0.2))
        given = {"name": "d.t", "image": "python", "image_digest": image, "origin": RUN, **changes}
        return JobSpec(roles=(role,), **given)

    return make


@pytest.fixture
def task(
    backend: Backend, home: EmbeddedHome, notes: Notes, request: pytest.FixtureRequest
) -> Callable[..., TaskRun]:
    """Makes tries of one task."""
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.attempts.waiting import Wait

    origin = replace(RUN, task_id=f"t{abs(hash(request.node.name)) % 10**8}")

    def make(owner: str = FIRST, **changes: Any) -> TaskRun:
        given: dict[str, Any] = {
            "context": {"task_state_store": notes, "ti": Ti()},
            "settings": home.settings,
            "backend": backend,
            "origin": origin,
            "owner": owner,
            "max_tries": 2,
            "retries": 2,
            "last_try": False,
            "wait": Wait(),
            "log": Log(),
            "listener": None,
        }
        return TaskRun(**{**given, **changes})

    return make


class Deferred(Exception):
    """What Airflow's own exception does; its one argument is the trigger."""


def defer(trigger: Any) -> NoReturn:
    raise Deferred(trigger)


def begin(task: TaskRun, spec: JobSpec) -> Any:
    """Start a job that goes on, and return the trigger that waits for it."""
    deferring = replace(task, defer=defer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__MUSTER__INLINE_WAIT", "0")
        patch.setattr("muster.airflow.attempts.run.ask", lambda origin: "running")
        with pytest.raises(Deferred) as deferred:
            deferring.run(lambda: spec)
    return deferred.value.args[0]


def test_a_job_that_a_failing_test_leaves_is_ended_with_it_and_no_other(
    home: EmbeddedHome, task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend
) -> None:
    before = begin(task(), spec(SLEEP)).job_id

    def test() -> None:
        with no_job_left(home.settings):
            backend.submit(spec(SLEEP), job_id="left-1")
            raise AssertionError

    with pytest.raises(AssertionError):
        test()
    assert backend.status("left-1").state is JobState.CANCELLED
    assert not marked(Places(home.settings.home).mark("left-1"))
    assert not backend.status(before).state.ended


def test_nothing_is_submitted_for_a_try_that_airflow_has_replaced(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], notes: Notes, backend: Backend
) -> None:
    from airflow.sdk.exceptions import AirflowRuntimeError

    notes.refuses, before = True, backend.store.ledger.jobs()
    with pytest.raises(AirflowRuntimeError):
        task().run(spec)
    assert backend.store.ledger.jobs() == before


def test_a_newer_try_takes_the_job_over_and_an_older_one_does_not_take_it_back(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend
) -> None:
    from muster.core.errors import Conflict

    job_id = begin(task(FIRST), spec(SLEEP)).job_id
    assert begin(task(SECOND), spec("never")).job_id == job_id
    assert backend.status(job_id).owner == SECOND
    with pytest.raises(Conflict, match="belongs to a newer try"):
        task(FIRST).run(spec)
    backend.cancel(job_id, owner=FIRST)
    assert not backend.status(job_id).state.ended, "nor does it end it"


def test_a_failure_that_nobody_has_reported_costs_one_try_and_the_one_after_it_begins_anew(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend
) -> None:
    """The process that waited was lost with its node, and the job failed before the next try looked."""
    from airflow.sdk.exceptions import AirflowException

    job_id = begin(task(FIRST), spec("import time; time.sleep(0.2); raise OSError(5, 'the disk')")).job_id
    assert until(lambda: backend.status(job_id).state.ended)
    with pytest.raises(AirflowException, match="the disk"):
        task(SECOND).run(spec)
    status = task(THIRD).run(spec)
    assert status.state is JobState.SUCCEEDED
    assert status.job_id != job_id


def test_a_try_that_was_thought_dead_and_submits_late_leads_to_one_job(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], notes: Notes, backend: Backend
) -> None:
    """The first wrote its attempt down and was paused; the second reads it, and both submit."""
    from muster.airflow.attempts.attempt import Attempt

    second = task(SECOND)
    notes.kept["muster"] = Attempt(nonce="a" * 16, max_tries=2, retries=2).dump()

    def build() -> JobSpec:
        attempt = Attempt.load(notes.kept["muster"])
        assert attempt is not None
        job_id = attempt.job_id(instance="i", task=second.name)
        backend.submit(
            spec("print('the first')"), job_id=job_id, owner=FIRST
        )  # in between, and it pinned others
        return spec("print('the second')")

    status = second.run(build)
    assert status.state is JobState.SUCCEEDED
    assert status.owner == SECOND
    assert b"the first" in backend.store.ledger.read(status.job_id)[0]


def stopped(task: TaskRun, spec: JobSpec, state: Any) -> tuple[str, str]:
    """Start a job, stop its try while Airflow says `state`; return the job's id and what the task says."""
    from airflow.sdk.exceptions import AirflowException

    job_id = begin(task, spec).job_id

    def ask(origin: Origin) -> Any:
        if isinstance(state, Exception):
            raise state
        return state

    def say(*words: object) -> None:
        task.wait.stop()

    ending = replace(task, log=type("Talking", (Log,), {"info": lambda self, *words: say()})())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.airflow.attempts.run.ask", ask)
        patch.setattr(DAG_RUN_STATE, lambda dag_id, run_id: "running")
        with pytest.raises(AirflowException) as caught:
            ending.run(lambda: spec)
    return job_id, str(caught.value)


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "restarting", "gone"])
def test_a_try_that_was_ended_or_cleared_ends_its_job(
    task: Callable[..., TaskRun],
    spec: Callable[..., JobSpec],
    backend: Backend,
    notes: Notes,
    state: str,
) -> None:
    job_id, said = stopped(task(), spec(SLEEP), state)
    assert backend.status(job_id).state is JobState.CANCELLED
    assert said.startswith("cancelled\n")
    assert notes.kept["muster"]["reported"]


@pytest.mark.parametrize("state", ["running", "up_for_retry", "queued", None])
def test_a_try_whose_worker_stops_leaves_its_job_alone(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend, state: str | None
) -> None:
    job_id, said = stopped(task(), spec(SLEEP), state)
    assert not backend.status(job_id).state.ended
    assert said.splitlines()[:2] == ["stopped", f"the task's process was told to stop; job {job_id} goes on"]


def test_nobody_comes_after_the_last_try(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend, notes: Notes
) -> None:
    job_id, _ = stopped(task(last_try=True), spec(SLEEP), "running")
    assert backend.status(job_id).state is JobState.CANCELLED


def test_an_airflow_that_does_not_answer_ends_nothing(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend
) -> None:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    silent = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
    job_id, _ = stopped(task(), spec(SLEEP), silent)
    assert not backend.status(job_id).state.ended


def test_what_cannot_be_written_down_any_more_is_asked_for_first_and_the_next_try_begins_anew(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend, notes: Notes
) -> None:
    """Cleared while it ran: Airflow has another id for the task by then, and refuses this one's notes."""
    refused: list[bool] = []

    def refuse() -> None:
        if notes.kept:
            notes.refuses = True
            refused.append(True)

    notes.before_set = refuse
    job_id, _ = stopped(task(FIRST), spec(SLEEP), "restarting")
    assert refused
    assert backend.status(job_id).state is JobState.CANCELLED
    notes.refuses, notes.before_set = False, lambda: None
    status = task(SECOND).run(spec)
    assert status.state is JobState.SUCCEEDED
    assert status.job_id != job_id


def test_a_job_that_has_ended_is_taken_though_no_time_is_left_to_wait_for_it(
    task: Callable[..., TaskRun],
    spec: Callable[..., JobSpec],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a trigger has waited for is not handed to the next one, with an inline_wait of 0 too."""
    job_id = begin(task(), spec("import time; time.sleep(0.5)")).job_id
    assert until(lambda: backend.status(job_id).state.ended)
    monkeypatch.setenv("AIRFLOW__MUSTER__INLINE_WAIT", "0")
    status = task(defer=defer).run(spec)
    assert (status.job_id, status.state) == (job_id, JobState.SUCCEEDED)


def test_airflows_alarm_does_not_end_a_job_whose_own_time_is_not_over(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], backend: Backend, notes: Notes
) -> None:
    """It counts from the start of the task's process; the limit is the job's, from its own start."""
    import signal
    from datetime import timedelta

    from airflow.sdk.exceptions import AirflowException
    from airflow.sdk.execution_time.timeout import timeout

    begun = begin(task(), spec(SLEEP))
    limit = time.time() - (backend.status(begun.job_id).started or time.time()) + 2.0
    with (
        timeout(1),  # as Airflow does around execute
        pytest.raises(AirflowException, match="it ran longer than its task's execution_timeout of"),
    ):
        task(limit=timedelta(seconds=limit)).run(lambda: spec("never"))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    status = backend.status(begun.job_id)
    assert status.state is JobState.FAILED
    assert status.verdict is not None
    assert status.verdict.cause is Cause.TIMEOUT
    assert (status.ended or 0.0) - (status.started or 0.0) >= limit
    assert notes.kept["muster"]["reported"]


# triggers


def events(trigger: Any) -> list[Any]:
    async def all_of_it() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(all_of_it(), timeout=GUARD_SECONDS))


@pytest.fixture
def trigger(home: EmbeddedHome) -> Callable[..., Any]:
    from muster.airflow.attempts.trigger import JobTrigger

    def make(job_id: str, **changes: Any) -> Any:
        name, kept = JobTrigger(**{"job_id": job_id, "owner": FIRST, **changes}).serialize()
        assert name == "muster.airflow.attempts.trigger.JobTrigger"
        return JobTrigger(**kept)

    return make


def test_a_trigger_fires_once_behind_the_last_line(
    task: Callable[..., TaskRun],
    spec: Callable[..., JobSpec],
    backend: Backend,
    trigger: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = task().run(lambda: spec("print('first'); print('last')"))
    log = backend.store.ledger.read(status.job_id)[0]
    waiting = trigger(status.job_id, cursor=str(log.index(b"first\n") + 6))
    heard = Log()
    monkeypatch.setattr(type(waiting), "log", heard)
    (event,) = events(waiting)
    assert event == {"job_id": status.job_id, "cursor": str(len(log))}
    assert heard.lines == ["[rank 0] last"]


def test_a_trigger_fires_though_there_is_nothing_to_wait_for(trigger: Callable[..., Any]) -> None:
    assert events(trigger("no-such-job")) == [{"job_id": "no-such-job", "cursor": "0"}]
    assert events(trigger("no-such-job", cursor="torn")) == [{"job_id": "no-such-job", "cursor": "torn"}]


def test_a_trigger_fires_at_the_deadline(
    task: Callable[..., TaskRun], spec: Callable[..., JobSpec], trigger: Callable[..., Any]
) -> None:
    job_id = begin(task(), spec(SLEEP)).job_id
    assert len(events(trigger(job_id, deadline=time.time() + 0.5))) == 1


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        ("failed", True),
        ("success", True),
        ("skipped", True),
        ("gone", True),
        (None, True),  # cleared
        ("deferred", False),  # another triggerer has it now
        ("scheduled", False),  # it has fired there, or the new try sees to it
        ("running", False),
    ],
)
def test_a_trigger_that_is_taken_away_ends_its_job_if_the_task_was_ended(
    task: Callable[..., TaskRun],
    spec: Callable[..., JobSpec],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    state: str | None,
    ends: bool,
) -> None:
    trigger = begin(task(), spec(SLEEP))
    monkeypatch.setattr("muster.airflow.attempts.task_state.ask", lambda origin: state)
    monkeypatch.setattr(DAG_RUN_STATE, lambda dag_id, run_id: "running")
    asyncio.run(trigger.on_kill())
    if ends:
        assert until(lambda: backend.status(trigger.job_id).state is JobState.CANCELLED)
    else:
        assert not backend.status(trigger.job_id).state.ended


def test_a_job_of_another_try_is_not_ended_by_an_old_trigger(
    task: Callable[..., TaskRun],
    spec: Callable[..., JobSpec],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trigger = begin(task(FIRST), spec(SLEEP))
    begin(task(SECOND), spec(SLEEP))
    monkeypatch.setattr("muster.airflow.attempts.task_state.ask", lambda origin: "failed")
    asyncio.run(trigger.on_kill())
    assert not backend.status(trigger.job_id).state.ended


@pytest.mark.parametrize(
    ("fields", "ready", "ending"),
    [
        ({"state": "serving", "percent": 100, "ready": 1}, True, "done"),
        ({"state": "serving", "percent": 100, "ready": 1}, False, None),
        ({"state": "refused", "reason": "wrong"}, True, "rolled back"),
        ({"state": "retired"}, True, "superseded"),
        ({"state": "starting"}, True, None),
        (None, True, "superseded"),  # the deployment was retired
    ],
)
def test_a_release_is_driven_until_it_has_ended(
    home: EmbeddedHome,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any] | None,
    ready: bool,
    ending: str | None,
) -> None:
    from muster.airflow.attempts.trigger import DeploymentTrigger

    model = Pinned(address="volume://a/model@1", digest="b3:" + "0" * 64)
    spec = DeploymentSpec(name="flights", model=model, image="serve", image_digest="b3:1")

    class Serving:
        @property
        def deployments(self) -> Any:
            return self

        def deployment(self, name: str) -> DeploymentStatus:
            if fields is None:
                raise NotFound(name)
            state = RevisionState(fields["state"])
            revision = Revision(name="r1", model=model, since=1.0, **(fields | {"state": state}))
            coming = state is RevisionState.STARTING
            return DeploymentStatus(
                name=name,
                url="http://here",
                ready=ready,
                token="1",
                revisions=(revision,),
                release=Release(revision="r1", champion=None, by="me", since=1.0) if coming else None,
            )

        def close(self) -> None:
            closed.append(self)

    closed: list[Serving] = []
    monkeypatch.setattr("muster.airflow.site.open_backend", Serving)
    deadline = time.time() + (60 if ending else 0.2)
    trigger = DeploymentTrigger(
        spec=dumps(spec), plan=dumps(Plan()), revision="r1", by="me", origin=dumps(RUN), deadline=deadline
    )
    (event,) = events(DeploymentTrigger(**trigger.serialize()[1]))
    assert (event["deadline"], len(closed)) == (deadline, 1)
    assert (loads(Outcome, event["outcome"]).ending.value if event["outcome"] else None) == ending


def test_a_database_that_does_not_answer_is_no_defect_of_musters(home: EmbeddedHome) -> None:
    import sqlite3

    from sqlalchemy.exc import OperationalError

    from muster.airflow.attempts.database import standings
    from muster.core.errors import BackendError

    def away(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked"))

    running = JobStatus(job_id="j", state=JobState.RUNNING, submitted=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlalchemy.orm.Session.execute", away)
        with pytest.raises(BackendError, match=r"^Airflow's database does not answer: database is locked$"):
            standings([(running, RUN)])
