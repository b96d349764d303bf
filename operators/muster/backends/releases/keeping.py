"""Keeps deployments as muster left them: looks at all of them every few seconds, and puts back what others deleted or edited."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from muster.core.errors import MusterError, SpecError

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.core.deployment import DeploymentStatus

ROUND_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 600.0
STUCK_SECONDS = 300.0  # what a round takes at most: to put a hundred deployments back
_TOLD_AT = 3  # repairs of the same drift

log = logging.getLogger(__name__)


class Keeping:
    """What keeps deployments. It may be killed at any moment, and two of them do what one does.

    A deployment is left alone whose keeping is paused.

    Where others than muster write, a release under way is left to what drives it, and an edit is put back once two looks in
    a row have found it, so that nothing is undone which a process of muster is just doing. The same drift that comes back
    waits, each time twice as long: two programs that fight would roll its pods for ever.

    :ivar looked: when all of them were looked at last, in seconds since the epoch; 0 before the first time.
    """

    def __init__(self, deployments: Deployments, *, now: Callable[[], float] = time.monotonic) -> None:
        self._deployments, self._now = deployments, now
        # By name: the drift that was put back, how often, and until when it waits.
        self._repaired: dict[str, tuple[str, int, float]] = {}
        self._shared = deployments.limits.shared
        self._before: dict[str, tuple[str, str]] = {}
        self._wrong: set[str] = set()
        self.looked, self._ended = 0.0, now()

    def healthy(self) -> bool:
        """Whether the last round ended lately: one that could not look at all counts, too, since a new process could not either."""
        return self._now() - self._ended < STUCK_SECONDS

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
            self.looked = time.time()
        except (MusterError, OSError) as error:
            wrong.add(str(error))
        before, self._before = self._before, {}
        for status in found:
            if not status.drift or status.paused or (self._shared and status.release):
                continue
            self._before[status.name] = (status.token, status.drift)
            if self._shared and (
                before.get(status.name) != self._before[status.name] or self._now() < self._repairs(status)[1]
            ):
                continue
            try:
                self._mend(status)
            except (MusterError, OSError) as error:
                wrong.add(f"{status.name}: {error}")
        for message in sorted(wrong - self._wrong):
            log.warning("%s; trying again", message)
        self._wrong, self._ended = wrong, self._now()

    def answer(self, *, port: int) -> ThreadingHTTPServer:
        """Return a server that listens: it answers 200, or 503 once a round hangs, with the time of the last look.

        :raises SpecError: the port cannot be had.
        """
        kept = self

        class HealthAnswer(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                said = {"looked": kept.looked, "failing": len(kept._wrong)}
                self.send_response(200 if kept.healthy() else 503)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, *_: object) -> None:
                """Log no request: there is one every few seconds."""

        try:
            return ThreadingHTTPServer(("", port), HealthAnswer)
        except OSError as error:
            raise SpecError(
                f"port {port} cannot be had ({error.strerror}): end what listens there, or name another one"
            ) from error

    def _mend(self, status: DeploymentStatus) -> None:
        name, (times, _) = status.name, self._repairs(status)
        if times == _TOLD_AT and self._shared:
            why = f"put back {times} times and edited again; another program writes it"
            log.warning("%s: %s: `muster deployments keep --pause %s` leaves it", name, why, name)
        for done in self._deployments.repair(name):
            self._tell(name, done)
            wait = min(ROUND_SECONDS * 2 ** min(times, 9), LONGEST_WAIT_SECONDS) if times else 0.0
            self._repaired[name] = (status.drift, times + 1, self._now() + wait)

    def _repairs(self, status: DeploymentStatus) -> tuple[int, float]:
        """Return how often this drift was put back so far, and until when it waits now; one that stayed away is a new one."""
        drift, times, until = self._repaired.get(status.name, ("", 0, 0.0))
        again = drift == status.drift and self._now() <= until + LONGEST_WAIT_SECONDS
        return (times, until) if again else (0, 0.0)

    def _tell(self, name: str, done: str) -> None:
        log.info("%s: %s", name, done)
        with suppress(MusterError):  # what was done is done
            self._deployments.platform.announce(name, done, mended=True)
