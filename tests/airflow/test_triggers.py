"""When a trigger fires, by a clock of the test's own: not before Airflow's scheduler knows of the deferral, nor late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.attempts.log import BURST_LINES, KEPT_LINES
from muster.backends.releases.plan import Plan
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, DeploymentStatus, Release, Revision, RevisionState
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.core.wire import dumps

HOLD_SECONDS = 2.0  # by then the scheduler has heard of the end of the deferred task's process
NEVER = 3600.0
MODEL = "volume://a/model@1"

_turn = asyncio.sleep


class Clock:
    """Time since the deferral, which passes when a caller sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await _turn(0)  # a deadline that has passed interrupts it, as it does a sleep
        self.now += seconds


class Machine:
    """Stands for the hub and for a backend; what is waited for ends at a moment of the clock."""

    def __init__(self, clock: Clock, *, ends: float, lines: int) -> None:
        self.clock, self.ends = clock, ends
        self.lines = tuple(f"[rank 0] {number}" for number in range(lines))

    def close(self) -> None:
        """Nothing is held open."""

    async def follow(self, job_id: str, *, after: str | None) -> AsyncGenerator[Any, None]:
        await self.clock.sleep(self.ends)
        status = JobStatus(job_id=job_id, state=JobState.SUCCEEDED, submitted=1.0)
        yield SimpleNamespace(status=status, lines=self.lines, offset=7)

    @property
    def deployments(self) -> Machine:
        return self

    def deployment(self, name: str) -> DeploymentStatus:
        model = Pinned(address=MODEL, digest="b3:" + "0" * 64)
        if self.clock.now >= self.ends:
            revision = Revision(name="r1", model=model, state=RevisionState.SERVING, percent=100, ready=1)
            return DeploymentStatus(
                name=name, url="http://here", ready=True, token="2", revisions=(revision,)
            )
        revision = Revision(name="r1", model=model, state=RevisionState.STARTING)
        under_way = Release(revision="r1", champion=None, by="me", since=1.0)
        return DeploymentStatus(
            name=name, url="http://here", ready=False, token="1", revisions=(revision,), release=under_way
        )


def job(*, deadline: float | None = None, **more: Any) -> Any:
    from muster.airflow.attempts.trigger import JobTrigger

    return JobTrigger(job_id="j", owner="me", deadline=deadline, **more)


def release(*, deadline: float | None = None) -> Any:
    from muster.airflow.attempts.trigger import DeploymentTrigger

    spec = DeploymentSpec(
        name="d", model=Pinned(address=MODEL, digest="b3:" + "0" * 64), image="serve", image_digest="b3:1"
    )
    return DeploymentTrigger(
        spec=dumps(spec),
        plan=dumps(Plan()),
        revision="r1",
        by="me",
        origin=dumps(Origin(dag_id="d", task_id="deploy", run_id="r")),
        deadline=deadline or time.time() + NEVER,
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The trigger's clock; deadlines, which are moments of the day, stay the machine's."""
    from muster.airflow.attempts import trigger

    clock = Clock()
    monkeypatch.setattr(trigger, "time", SimpleNamespace(monotonic=clock.monotonic, time=time.time))
    monkeypatch.setattr(asyncio, "sleep", clock.sleep)
    return clock


@pytest.fixture
def fires(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Run a trigger to its end and return the moments of its events."""

    def run(trigger: Any, *, ends: float, lines: int = 0, fails: Exception | None = None) -> list[float]:
        def hub() -> Machine:
            if fails:
                raise fails
            return Machine(clock, ends=ends, lines=lines)

        async def moments() -> list[float]:
            return [clock.now async for _ in trigger.run()]

        monkeypatch.setattr("muster.airflow.attempts.hub.hub", hub)
        monkeypatch.setattr("muster.airflow.site.open_backend", hub)
        return asyncio.run(moments())

    return run


@pytest.mark.parametrize("make", [job, release])
@pytest.mark.parametrize(("ends", "moment"), [(0.0, HOLD_SECONDS), (1.0, HOLD_SECONDS), (30.0, 30.0)])
def test_no_trigger_fires_before_the_scheduler_knows_of_the_deferral_or_later_than_that(
    make: Callable[..., Any], ends: float, moment: float, fires: Callable[..., list[float]]
) -> None:
    assert fires(make(), ends=ends) == [moment]


def test_it_fires_later_where_lines_waited_so_that_airflow_has_read_them(
    fires: Callable[..., list[float]],
) -> None:
    """10 ms a line that waited for its turn; those that a task's log shows at once are read by the end."""
    (moment,) = fires(job(), ends=30.0, lines=BURST_LINES // 2)
    assert moment == 30.0
    (moment,) = fires(job(), ends=30.0, lines=3 * BURST_LINES)
    assert moment == pytest.approx(60.0 + KEPT_LINES / 100)


@pytest.mark.parametrize("make", [job, release])
def test_neither_does_one_that_cannot_wait_or_comes_too_late(
    make: Callable[..., Any], fires: Callable[..., list[float]], clock: Clock
) -> None:
    assert fires(make(), ends=NEVER, fails=OSError("the disk is away")) == [HOLD_SECONDS]
    clock.now = 0.0
    assert fires(make(deadline=time.time() - 60), ends=NEVER) == [HOLD_SECONDS]


@pytest.mark.parametrize(
    ("state", "ends"), [(JobState.RUNNING, 105.0), (JobState.QUEUED, 900.0), (JobState.PREPARING, 105.0)]
)
def test_execution_timeout_counts_from_the_jobs_start(state: JobState, ends: float) -> None:
    status = JobStatus(job_id="j", state=state, submitted=1.0, started=100.0)
    assert job(deadline=900.0, limit_seconds=5.0).ends(status) == ends
