"""Triggers: what waits for a job or a release while its task is deferred."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, closing
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from muster.airflow.attempts.waiting import job_ends
from muster.core.deployment import DeploymentSpec
from muster.core.extensions import added
from muster.core.origin import Origin
from muster.core.status import JobState
from muster.core.wire import dumps, loads

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.backends.releases.driver import ReleaseDriver
    from muster.core.status import JobStatus

# A scheduler that hears of the end of a task's process only when its trigger has fired already takes
# that for the end of the try, and it costs a retry (Airflow 3.3.2: "finished with state success, but
# the task instance's state attribute is queued"). So no trigger fires before this.
_SOONEST_SECONDS = 2.0
# A trigger's lines go through a socket that Airflow reads 4 KiB at a time, and what it has not read when the
# trigger fires is in no task's log (Airflow 3.3.2: TriggerRunnerSupervisor forgets its logger then).
_SECONDS_TO_READ_A_LINE = 0.01


class StoredTrigger(BaseTrigger):
    """A trigger of which the database stores its constructor's keywords; each is an attribute of the same name.

    :cvar stored_in: the module in the path that the database stores, where the class has moved since; see :func:`__getattr__`.
    """

    stored_in: ClassVar[str] = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's path and its keywords, without those at their default.

        The triggerer of an earlier release refuses a keyword that it does not know (docs/adr/past/0022-two-releases.md).
        """
        kind = type(self)
        values = {
            name: getattr(self, name)
            for name, keyword in inspect.signature(kind).parameters.items()
            if getattr(self, name) != keyword.default
        }
        return f"{kind.stored_in or kind.__module__}.{kind.__qualname__}", values


class WaitingTrigger(StoredTrigger):
    """Waits for a job, or drives something to its end, and fires once.

    It fires at the end, at the deadline, and when it cannot wait: whatever is to be done then is done by the task,
    which looks for itself. So it never raises, and what it fires with is only a hint. Where its triggerer dies,
    Airflow starts it in another one, which goes on from what is written down.

    :ivar what: what it waits for, for the log. :ivar told: what it fires with.
    :ivar deadline: when that has to have ended, in seconds since the epoch; None: never.
    :ivar soonest: when it may fire, by the monotonic clock.
    """

    what: str
    told: Mapping[str, Any]
    deadline: float | None
    soonest: float = 0.0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield the one event."""
        self.soonest = time.monotonic() + _SOONEST_SECONDS
        try:
            async with asyncio.timeout(_left(self.deadline)) as limit:
                await self.follow(limit)
        except TimeoutError:
            self.log.info("%s has to end now", self.what)
        # a trigger that raises fails its task, and then nothing waits for its work
        except Exception as error:
            self.log.warning("the triggerer cannot wait for %s: %r", self.what, error)
        await _until(self.soonest)
        yield TriggerEvent(dict(self.told))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End what nothing waits for any more, since the task was ended or cleared.

        Airflow calls this too where another triggerer has taken the trigger over, or has fired it.
        """
        if await asyncio.to_thread(self.stop_unless_wanted):
            self.log.info("the task does not wait for it any more, so %s is ended", self.what)

    @abstractmethod
    async def follow(self, limit: asyncio.Timeout) -> None:
        """Wait for the end, or drive to it; `told` then says what the task is told. :param limit: the deadline, which may be moved."""

    @abstractmethod
    def stop_unless_wanted(self) -> bool:
        """Stop what is waited for where the task does not want it; whether that was so."""

    def say(self, line: str) -> None:
        """Put a line into the task's log."""
        self.log.info("%s", line)


class JobTrigger(WaitingTrigger):
    """Waits for a job, or until it has to be picked up again, and passes its lines on to the task's log.

    :param owner: the try in whose name the job runs.
    :param cursor: the offset in the log, as text, behind the lines that the task has passed on itself.
    :param deadline: when the job has to have ended, in seconds since the epoch.
    :param limit_seconds: how long it may take from its own start.
    """

    def __init__(
        self,
        *,
        job_id: str,
        owner: str,
        cursor: str | None = None,
        deadline: float | None = None,
        limit_seconds: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.owner = owner
        self.cursor = cursor
        self.deadline = deadline
        self.limit_seconds = limit_seconds
        self.what = f"job {job_id}"

    @property
    def told(self) -> Mapping[str, Any]:  # type: ignore[override]  # it goes with the lines
        """The job, and behind which of its lines the task goes on."""
        return {"job_id": self.job_id, "cursor": self.cursor}

    async def follow(self, limit: asyncio.Timeout) -> None:
        """Follow the job; its own limit counts from its start."""
        from muster.airflow.attempts.hub import hub
        from muster.airflow.attempts.log import StateLog, TaskLog

        say, log = StateLog(self.log), TaskLog(lambda line: self.log.info("%s", line), job_id=self.job_id)
        try:
            async with aclosing(hub().follow(self.job_id, after=int(self.cursor or 0))) as looks:
                async for news in looks:
                    log(news.lines)
                    self.cursor = str(news.offset)
                    if news.status is not None:
                        say(news.status)
                        left = _left(self.ends(news.status))
                        limit.reschedule(None if left is None else asyncio.get_running_loop().time() + left)
        finally:
            self.soonest = max(self.soonest, time.monotonic() + log.close() * _SECONDS_TO_READ_A_LINE)

    def ends(self, status: JobStatus) -> float | None:
        """When the job has to have ended, by what is known of it now; one that is queued has not started."""
        started = None if status.state is JobState.QUEUED else status.started
        ends = [self.deadline, job_ends(started, self.limit_seconds)]
        return min((each for each in ends if each is not None), default=None)

    def stop_unless_wanted(self) -> bool:
        """End the job where the task does not wait for it, nor a try that goes on; whether that was so."""
        from muster.airflow.attempts.task_state import ask, ended_by_hand, why_over
        from muster.airflow.site import open_backend

        with closing(open_backend()) as backend:
            origin = backend.store.ledger.spec(self.job_id).origin
            state = ask(origin)
            if state is not None and not ended_by_hand(state):
                return False
            # Airflow waits 30 seconds for this, and ranks may take longer to save; their end is certain.
            backend.cancel(self.job_id, owner=self.owner, wait=False, why=why_over(origin, state))
            return True


class OthersJobTrigger(JobTrigger):
    """Waits for the end of a job of another run, which makes what this task wants.

    It shows none of the job's lines, and never ends it.
    """

    async def on_kill(self) -> None:
        """Do nothing: the job is the other run's."""

    async def follow(self, limit: asyncio.Timeout) -> None:  # noqa: ARG002 - its deadline is the task's own
        """Wait for the job's end."""
        from muster.airflow.attempts.hub import hub

        async with aclosing(hub().follow(self.job_id)) as looks:
            async for _ in looks:
                pass


class DeploymentTrigger(WaitingTrigger):
    """Drives a release, from the route.

    :param spec: of the release, and its `plan`, as :func:`muster.core.wire.dumps` writes them.
    :param revision: what is released, in the name of `by`.
    :param origin: the task instance that asks, written likewise.
    :param deadline: when it has to have ended, in seconds since the epoch.
    """

    def __init__(self, *, spec: str, plan: str, revision: str, by: str, origin: str, deadline: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = spec
        self.plan = plan
        self.revision = revision
        self.by = by
        self.origin = origin
        self.deadline = deadline
        self.what, self.told = f"the release of {revision}", {"outcome": None, "deadline": deadline}

    async def follow(self, limit: asyncio.Timeout) -> None:  # noqa: ARG002 - it stays the deadline
        """Drive the release to its outcome."""
        from muster.airflow.attempts.hub import driving_hub

        ours = driving_hub("release")
        async with ours.joined() as backend:
            driver = self._driver(backend)
            while (outcome := await ours.look(driver.step)) is None:
                pass
            self.told = {"outcome": dumps(outcome), "deadline": self.deadline}

    def _driver(self, backend: Backend) -> ReleaseDriver:
        from muster.backends.releases.driver import Order, ReleaseDriver
        from muster.backends.releases.plan import Plan

        order = Order(
            spec=loads(DeploymentSpec, self.spec),
            plan=loads(Plan, self.plan),
            by=self.by,
            origin=loads(Origin, self.origin),
        )
        return ReleaseDriver(backend.deployments, order, revision=self.revision, say=self.say)

    def stop_unless_wanted(self) -> bool:
        """Have the release taken back where its task is over, and not as a success."""
        from muster.airflow.attempts.task_state import GIVEN_UP, ask
        from muster.airflow.site import open_backend
        from muster.backends.releases.manual import tidy

        if ask(loads(Origin, self.origin)) not in GIVEN_UP:
            return False
        with closing(open_backend()) as backend:
            driver = self._driver(backend)
            driver.give_up("its task was ended by hand")
            tidy(backend.deployments, loads(DeploymentSpec, self.spec).name)
        return True


def __getattr__(name: str) -> Any:
    """Return an extension's trigger that Airflow's database names as one of this module."""
    if (module := added(lambda each: each.triggers).get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.time(), 0.0)


async def _until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock, if it is still to come."""
    await asyncio.sleep(max(moment - time.monotonic(), 0.0))
