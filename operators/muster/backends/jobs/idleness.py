"""Ends a gang that does nothing with what it holds, after a warning in its log; the same wherever it runs."""

from __future__ import annotations

from collections.abc import Callable

from muster.core.advice import advice_on
from muster.core.idle import idle_seconds
from muster.core.series import Series
from muster.core.text import lasting
from muster.core.verdict import Cause, Verdict

_LOOK_SECONDS = 30.0


class Idleness:
    """Looks at one gang.

    :param limit_seconds: how long it may do nothing; 0: for ever.
    :ivar verdict: why the gang is ended; None while it goes on.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit, self._next, self._warned = limit_seconds, 0.0, False
        self.verdict: Verdict | None = None

    def look(
        self, series: Callable[[], Series], *, replicas: int, now: float, warn: Callable[[str], None]
    ) -> Verdict | None:
        """Return the verdict while it has done nothing for so long; warn of it at half of that, once each time.

        A gang that computes again before it is ended goes on: then there is no verdict any more.
        """
        if not self._limit or now < self._next:
            return self.verdict
        self._next = now + min(_LOOK_SECONDS, self._limit / 20)
        found = series()
        idle = idle_seconds(found, replicas=replicas, now=now)
        cards = any(curve.name.startswith("gpu") for curve in found.use)
        nothing = "no card computes" if cards else "no output, and less than 5 % of a core in each replica"
        self.verdict = None
        if idle >= self._limit:
            message = f"idle for {lasting(idle)} with {replicas} replica{'s' * (replicas > 1)}: {nothing}"
            self.verdict = Verdict(cause=Cause.IDLE, message=message, advice=advice_on(Cause.IDLE))
        warned, self._warned = self._warned, idle >= self._limit / 2
        if self._warned and not warned:
            warn(
                f"warning: idle for {lasting(idle)}: {nothing}; it is ended after {lasting(self._limit)} (idle=)"
            )
        return self.verdict
