"""Drives a release to its end: in the task's process for a while, then by its trigger, and says how it ended."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.remembered import Asked, Remembered
from muster.airflow.attempts.waiting import Stopped
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.releasing import asker, refusal_text
from muster.airflow.operators.smoke import smoke_source
from muster.core.deployment import DeploymentSpec
from muster.core.errors import Behind, DeploymentError, MusterError, NotFound, SpecError
from muster.core.wire import dumps, loads

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowSkipException

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.attempts.waiting import InlinePatience
    from muster.backends.releases.decision import Outcome
    from muster.backends.releases.driver import ReleaseDriver
    from muster.backends.releases.plan import Plan
    from muster.core.deployment import DeploymentStatus

LOOK_SECONDS = 0.25
MARGIN = timedelta(minutes=10)
_TAKING_BACK_SECONDS = 60.0


class ReleasingOperator(MusterOperator):
    """The base of an operator that releases: it begins the release or goes on with it, looks, defers, and ends with it."""

    name: str
    load_timeout: timedelta
    allow_older: bool
    smoke: Any = None

    @abstractmethod
    def _plan(self) -> Plan:
        """The plan of its release."""

    def begin_release(self, task: TaskRun, wanted: Callable[[], DeploymentSpec]) -> ReleaseDriver:
        """Ask for the release, or go on with it, unless that takes the deployment back in time.

        :param wanted: makes the spec to ask for, where no earlier try has asked.
        :raises AirflowSkipException: it would, in a backfill: its models are kept, to be looked at.
        :raises SpecError: it would, and this is no backfill.
        """
        from muster.backends.releases.driver import Order, ReleaseDriver, begin

        by, origin, say, plan = asker(task.origin), task.origin, self.tell, self._plan()
        begun = Remembered(task, "release")
        if text := begun.recall():  # never anew: it may have been refused by now, or rolled back by a person
            asked = loads(Asked, text)
            order = Order(spec=asked.spec, plan=plan, by=by, origin=origin)
            return ReleaseDriver(task.backend.deployments, order, revision=asked.revision, say=say)
        deployments, older = task.backend.deployments, self.allow_older
        try:
            driver = begin(deployments, wanted(), plan, by=by, origin=origin, allow_older=older, say=say)
        except Behind as error:
            if _backfills(task):
                raise self._skipped(f"not deployed: {error}") from None
            raise SpecError(
                f"{error}. A backfill must not do that; say allow_older=True if it is meant"
            ) from error
        begun.remember(dumps(Asked(revision=driver.revision, spec=driver.order.spec)))
        return driver

    def _skipped(self, text: str) -> AirflowSkipException:
        from airflow.sdk.exceptions import AirflowSkipException

        self.log.warning("%s", text)  # Airflow itself says only that the task is skipped
        return AirflowSkipException(text)

    def await_release(self, task: TaskRun, driver: ReleaseDriver) -> DeploymentStatus:
        """Drive the release to its end, a while longer than it may take: its environment may be built first."""
        from muster.backends.releases.manual import tidy

        patience, began = self._patience(task), time.monotonic()
        outcome = self._seen()
        try:
            while outcome is None:
                outcome = driver.step()
                if outcome is None:
                    self.hand_over_release(task, driver, patience, waited=time.monotonic() - began)
                    self.wait.pause(LOOK_SECONDS)
        except Stopped:
            if task.abandoned():
                driver.give_up("its task was ended by hand")
                tidy(task.backend.deployments, self.name)
            raise
        return self._ended(task, driver.order.spec, outcome)

    def _seen(self) -> Outcome | None:
        """How the trigger has seen the release end; by now another may have taken over."""
        from muster.backends.releases.decision import Outcome

        text = self.news.get("outcome")
        return loads(Outcome, text) if text else None

    def _ended(self, task: TaskRun, spec: DeploymentSpec, outcome: Outcome) -> DeploymentStatus:
        """Return the status where the release is done; else say why it is not."""
        from airflow.sdk.exceptions import AirflowFailException

        from muster.backends.releases.decision import Ending

        try:
            status = task.backend.deployments.deployment(spec.name)
        except NotFound:
            status = None
        if outcome.ending in (Ending.DONE, Ending.HELD) and status is not None:
            return status
        model, maker = spec.model.address, None
        if outcome.ending is Ending.ROLLED_BACK:
            with suppress(MusterError):  # the refusal is what counts
                maker = task.backend.store.record(model).origin
        text = refusal_text(
            status,
            outcome,
            name=spec.name,
            model=model,
            smoke=smoke_source(self.smoke),
            maker=maker,
            again=task.origin.again,
        )
        passed_by = outcome.ending is Ending.SUPERSEDED and _backfills(task)
        raise self._skipped(text) if passed_by else AirflowFailException(text)

    def _patience(self, task: TaskRun) -> InlinePatience:
        longest = (self.load_timeout + MARGIN).total_seconds() + self._plan().longest_seconds
        ends = [self.news.get("deadline") or time.time() + longest, task.deadline]
        return replace(task.patience(), deadline=min(end for end in ends if end is not None))

    def _too_late(self) -> str:
        """Say why a release is given up that had its time."""
        wanted = self._plan().rules.fewest_requests
        each = f"; its share widens after {wanted} requests at a step (fewest_requests)" if wanted else ""
        return (
            f"it does not serve in the time that it has (load_timeout {self.load_timeout}, what its steps "
            f"are held and {MARGIN}, or execution_timeout{each})"
        )

    def hand_over_release(
        self, task: TaskRun, driver: ReleaseDriver, patience: InlinePatience, *, waited: float
    ) -> None:
        """Defer if this process has waited long enough, and give up where its time is over.

        :raises DeploymentError: what was given up does not end either.
        """
        from muster.airflow.attempts.trigger import DeploymentTrigger

        now = time.time()
        if patience.overdue(now):
            reason = self._too_late()
            if patience.overdue(now - _TAKING_BACK_SECONDS):
                raise DeploymentError(
                    f"deployment {self.name}: {driver.order.spec.model.address}: {reason}; see muster deployments show {self.name}"
                )
            driver.give_up(reason)
        elif task.defer is not None and patience.left(waited=waited, queued=False, now=now) == 0:
            self.log.info("the release goes on; the triggerer drives it")
            task.defer(
                DeploymentTrigger(
                    spec=dumps(driver.order.spec),
                    plan=dumps(self._plan()),
                    revision=driver.revision,
                    by=asker(task.origin),
                    origin=dumps(task.origin),
                    deadline=patience.deadline or now,
                )
            )


def _backfills(task: TaskRun) -> bool:
    return bool(task.context["dag_run"].run_type == "backfill")
