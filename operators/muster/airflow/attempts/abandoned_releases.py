"""Takes back abandoned releases: those whose task is over, so that no task watches them.

Where a task is marked failed between its deferral and its trigger's start, or while no triggerer runs, or where
its run is deleted, Airflow calls no hook of ours, and a canary would keep its share whatever it answers. So what
is under way is compared with what Airflow says of its tasks, now and then. In doubt a release is left alone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.airflow.attempts.orphans import YOUNG_SECONDS, States
from muster.airflow.attempts.task_state import GIVEN_UP
from muster.backends.releases.manual import give_up, tidy
from muster.core.deployment import DeploymentStatus
from muster.core.errors import MusterError

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """A release that was taken back, who had asked for it, and why."""

    deployment: str
    revision: str
    by: str
    reason: str


def take_back(deployments: Deployments, instance: str, states: States) -> list[TakenBack]:
    """Take back the releases of one Airflow whose tasks are over, and not as a success; return which.

    :param instance: the Airflow's name; releases of others, and of people, are none of its business.
    :param states: is asked for the task of each release that is not young.
    """
    return [
        taken for name in deployments.names() if (taken := _take_back(deployments, name, instance, states))
    ]


def unwatched(status: DeploymentStatus, instance: str, states: States, *, now: float) -> TakenBack | None:
    """Say what to take back of a deployment; None where nothing is.

    What is held waits for a person as it was told to, and what has just got its share has its driver.
    """
    release = status.release
    if release is None or release.held or release.origin is None or release.origin.instance != instance:
        return None
    if now - release.since < YOUNG_SECONDS or (state := states(release.origin)) not in GIVEN_UP:
        return None
    reason = release.failed or f"its task is {state}, and no task watches it any more"
    return TakenBack(deployment=status.name, revision=release.revision, by=release.by, reason=reason)


def _take_back(deployments: Deployments, name: str, instance: str, states: States) -> TakenBack | None:
    """Take back what was seen, unless the route was written since: then it is looked at the next time."""
    try:
        status = deployments.deployment(name)
        found = unwatched(status, instance, states, now=time.time())
        if found:
            give_up(deployments, status, reason=found.reason)
            tidy(deployments, name)
    except MusterError as error:  # the others are looked at all the same, and this one is tried again
        log.warning("whether the release of %s is watched cannot be seen to now: %s", name, error)
        return None
    return found
