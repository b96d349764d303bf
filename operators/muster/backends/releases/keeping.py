"""Keeps deployments as muster left them: looks at all of them every few seconds, and puts back what others deleted or edited."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from muster.core.errors import MusterError

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.core.deployment import DeploymentStatus

ROUND_SECONDS = 5.0

log = logging.getLogger(__name__)


class Keeping:
    """What keeps deployments. It may be killed at any moment, and two of them do what one does.

    A deployment is left alone whose keeping is paused.

    Where others than muster write, a release under way is left to what drives it, and an edit is put back once two looks in
    a row have found it, so that nothing is undone which a process of muster is just doing.
    """

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments
        self._shared = deployments.limits.shared
        self._before: dict[str, tuple[str, str]] = {}
        self._wrong: set[str] = set()

    def look(self) -> None:
        """Look once. What cannot be done is logged the first time, and tried again at the next look."""
        wrong: set[str] = set()
        found: list[DeploymentStatus] = []
        try:
            for name, done in self._deployments.platform.restore():
                self._tell(name, done)
        except (MusterError, OSError) as error:
            wrong.add(str(error))
        try:
            found = [each.status for each in self._deployments.look_at(counts=False)]
        except (MusterError, OSError) as error:
            wrong.add(str(error))
        before, self._before = self._before, {}
        for status in found:
            if not status.drift or status.paused or (self._shared and status.release):
                continue
            self._before[status.name] = (status.token, status.drift)
            if self._shared and before.get(status.name) != self._before[status.name]:
                continue
            try:
                self._mend(status)
            except (MusterError, OSError) as error:
                wrong.add(f"{status.name}: {error}")
        for message in sorted(wrong - self._wrong):
            log.warning("%s; trying again", message)
        self._wrong = wrong

    def _mend(self, status: DeploymentStatus) -> None:
        for done in self._deployments.repair(status.name):
            self._tell(status.name, done)

    def _tell(self, name: str, done: str) -> None:
        log.info("%s: %s", name, done)
        with suppress(MusterError):  # what was done is done
            self._deployments.platform.announce(name, done, mended=True)
