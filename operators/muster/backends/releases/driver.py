"""The loop of a release: looks, decides, writes once, and looks again.

The process that asks for a release drives it: a task, its trigger, or a command. A driver remembers only one step's
requests and counts besides the route. So the successor of a killed driver begins that step anew, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.backends.base import PATIENCE_SECONDS
from muster.backends.releases.decision import (
    Ending,
    Move,
    Outcome,
    ReleaseSight,
    WaitMove,
    Withdraw,
    decide,
    shares_at,
)
from muster.backends.releases.figures import since
from muster.backends.releases.judge import Questions
from muster.backends.releases.manual import give_up, insisting
from muster.core.deployment import RevisionState
from muster.core.errors import (
    BackendError,
    Conflict,
    Corrupt,
    DeploymentError,
    Forbidden,
    NotFound,
    SpecError,
    Unavailable,
)

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.backends.releases.plan import Plan
    from muster.core.deployment import Counts, DeploymentSpec, DeploymentStatus
    from muster.core.origin import Origin

_REVIVE_SECONDS = 5.0
REPEAT_SECONDS = 60.0
CAUSE_SECONDS = 5.0  # in which a platform says how a replica ended that fell silent; kubelets take one

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What was asked for: a version, the plan by which it gets the traffic, and in whose name.

    :param by: the same for every process that drives this release; `origin` where it is a task.
    """

    spec: DeploymentSpec
    plan: Plan
    by: str
    origin: Origin | None = None


def begin(
    deployments: Deployments,
    spec: DeploymentSpec,
    plan: Plan,
    *,
    by: str,
    origin: Origin | None = None,
    allow_older: bool = True,
    say: Say = lambda _line: None,
    clock: Callable[[], float] = time.monotonic,
) -> ReleaseDriver:
    """Begin a release, or go on with one of the same version that users see already; do not wait.

    :param by: who asks, the same for every process that drives this release; `origin` where it is a task.
    :param say: is told what happens, a line a change.
    :raises SpecError: it can never run here, or its steps cannot.
    :raises Behind: a newer version serves, or will, and it must not be older.
    :raises Conflict: others write the route all the time.
    """
    check_steps(deployments, plan)
    if plan.rules.max_psi is not None:
        spec = replace(spec, counts_inputs=True)
    order = Order(spec=spec, plan=plan, by=by, origin=origin)
    with suppress(NotFound):
        insisting(deployments, spec.name, lambda status: _take_over(deployments, status, order))
    revision = deployments.prepare(spec, by=by, origin=origin, allow_older=allow_older)
    return ReleaseDriver(
        deployments, order, revision=revision.name, restarts=revision.restarts, say=say, clock=clock
    )


def _take_over(deployments: Deployments, status: DeploymentStatus, order: Order) -> None:
    """Take over another driver's release of the same version, from the share that it has."""
    release = status.release
    mine = status.called(release.revision) if release else None
    if release is None or mine is None or release.failed or release.by == order.by:
        return
    if mine.percent and mine.model == order.spec.model:
        shares = shares_at(status, release, mine.percent)
        release = replace(release, by=order.by, origin=order.origin, held=False)
        deployments.shift(order.spec.name, shares, token=status.token, release=release)


def check_steps(deployments: Deployments, plan: Plan) -> None:
    """Refuse shares of traffic where there are none. :raises SpecError: with the reason."""
    if (why := deployments.limits.only_whole) and not plan.whole:
        raise SpecError(
            f"steps {list(plan.steps)}: traffic cannot be shared here ({why}); leave steps at 100"
        )


class ReleaseDriver:
    """Drives one release, call by call, from wherever it is to its end.

    Another process goes on with it: it builds a driver with the same order, and the same :attr:`revision`.

    :param revision: the revision that is released, as :func:`begin` was told by the platform.
    :param restarts: how many of its replicas had died before; None counts from the first look on.
    :param clock: seconds that only rise.
    """

    def __init__(
        self,
        deployments: Deployments,
        order: Order,
        *,
        revision: str,
        restarts: int | None = None,
        say: Say = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.revision = revision
        self.order = order
        self._deployments = deployments
        self._say = say
        self._clock = clock
        self._share: int | None = None
        self._restarts = restarts
        self._before: Mapping[str, Counts] | None = {}
        self._last: Mapping[str, Counts] = {}
        self._began = clock()
        self._said, self._said_at = "", self._began
        self.questions = Questions(deployments, order.spec, order.plan, revision=revision)
        self._trouble: float | None = None
        self._down: float | None = None
        self._silent: float | None = None

    def step(self) -> Outcome | None:
        """Look, do at most one thing about it, and return the end once there is one.

        To be called every quarter of a second or so; a backend that is away is waited for, ``PATIENCE_SECONDS``.

        :raises MusterError: it stayed away, or its access control says no. The shares stand as they are.
        """
        since_when, self._trouble = self._trouble, None
        try:
            return self._step(since_when)
        except Conflict:
            return None  # another writer was first: the next look shows what it wrote
        except (SpecError, Forbidden):
            raise
        # What is not found may have been retired in the middle of this look, which the next one will find.
        except (BackendError, Corrupt, DeploymentError, NotFound, Unavailable) as error:
            self._endure(error, since_when)
            return None

    def give_up(self, reason: str) -> None:
        """Have the release taken back, where it still goes forward; :meth:`step` sees to it.

        :raises MusterError: the route cannot be written now.
        """
        status = self._deployments.deployment(self.order.spec.name)
        release = status.release
        if release and (release.revision, release.by) == (self.revision, self.order.by):
            with suppress(Conflict):  # another writer has changed it
                give_up(self._deployments, status, reason=reason)

    def _step(self, trouble: float | None) -> Outcome | None:
        try:
            status = self._deployments.deployment(self.order.spec.name)
        except NotFound:
            return Outcome(
                ending=Ending.SUPERSEDED, revision=self.revision, reason="the deployment was retired"
            )
        counts = self._count(status, trouble)
        move = self._decide(status, counts)
        if isinstance(move, WaitMove) and self._ask(status):
            move = self._decide(status, counts)
        return self._do(move, status, counts)

    def _decide(self, status: DeploymentStatus, counts: Mapping[str, Counts] | None) -> Move:
        sight = ReleaseSight(
            status=status,
            smoke=self.questions.found,
            counts=self._since(counts),
            held_seconds=self._clock() - self._began,
            restarts=self._restarts or 0,
            now=time.time(),
        )
        return decide(sight, self.order.plan, revision=self.revision, by=self.order.by)

    def _count(self, status: DeploymentStatus, trouble: float | None) -> Mapping[str, Counts] | None:
        """Return what was counted until now, and begin a step where the share is another than the last time."""
        mine = status.called(self.revision)
        share = mine.percent if mine else 0
        if mine and self._restarts is None:
            self._restarts = mine.restarts
        counts: Mapping[str, Counts] | None = {}
        if status.release and (share or (mine and mine.ready)):  # else there is nothing to be judged by
            counts = self._heard(share, trouble)
        if share != self._share or self._before is None:
            self._begin_step(share, counts)
        if counts is not None and self._before is not None:  # of who was silent, what was before is not known
            self._before = {**counts, **self._before}
        return counts

    def _heard(self, share: int, trouble: float | None) -> Mapping[str, Counts] | None:
        """Return what was counted; None where that of the revision itself, which has a share, is not among it."""
        try:
            counts = self._deployments.counts(self.order.spec.name)
            if share and self.revision not in counts:
                raise BackendError(
                    f"deployment {self.order.spec.name}: no replica of {self.revision} says what it has answered"
                )
        except BackendError as error:
            self._endure(error, trouble)
            return None
        return counts

    def _since(self, counts: Mapping[str, Counts] | None) -> Mapping[str, Counts] | None:
        """What was counted since the step began; at 100 % the champion's are those of the step before."""
        before = self._before
        if counts is None or before is None:
            return None
        counted = {name: since(before.get(name), now) for name, now in counts.items()}
        return {**counted, **self._last} if self._share == 100 else counted

    def _begin_step(self, share: int, before: Mapping[str, Counts] | None) -> None:
        if share != self._share:
            self.questions.begin()
        self._share, self._before, self._began = share, before, self._clock()

    def _ask(self, status: DeploymentStatus) -> bool:
        """Ask what is still to be asked, for a moment; whether anything was."""
        mine, release = status.called(self.revision), status.release
        if mine is None or release is None or mine.ready < mine.wanted or self.questions.found is not None:
            return False
        champion = status.called(str(release.champion))
        if self.order.plan.comparison and champion and not champion.ready:
            self._tell(f"{champion.name}, which it is to be compared with, does not answer now")
            return False
        self.questions.ask(champion=release.champion)
        return True

    def _do(
        self, move: Move, status: DeploymentStatus, counts: Mapping[str, Counts] | None
    ) -> Outcome | None:
        if isinstance(move, Outcome):
            return move
        if isinstance(move, WaitMove):
            self._tell(move.why, so_far=move.so_far)
            self._revive(status)
        elif isinstance(move, Withdraw):
            self._withdraw(move, status)
        else:
            self._deployments.shift(
                self.order.spec.name, move.shares, token=status.token, release=move.release
            )
            self._tell(move.why)
            if move.release and not move.release.failed:  # what is answered from now on is the next step's
                seen = self._since(counts) or {}
                self._last = {name: each for name, each in seen.items() if name == move.release.champion}
                self._begin_step(move.shares.get(self.revision, 0), counts)
            elif self._silent is None and self._fell_silent(status):
                self._silent = self._clock()
        return None

    def _fell_silent(self, status: DeploymentStatus) -> bool:
        """Whether a replica gives no answer: how it ended its platform may say in a moment."""
        mine = status.called(self.revision)
        down = mine is not None and mine.state is RevisionState.SERVING and not mine.ready
        return down or self.questions.silent

    def _withdraw(self, move: Withdraw, status: DeploymentStatus) -> None:
        """Have a revision withdrawn; one of ours that fell silent, which has no share any more, with the cause of that."""
        reason = move.reason
        if move.revision == self.revision and self._silent is not None:
            cause = self._cause(status)
            if not cause and self._clock() < self._silent + CAUSE_SECONDS:
                return
            reason += f"; {cause}" * (cause not in reason)
        self._deployments.withdraw(self.order.spec.name, move.revision, state=move.state, reason=reason)
        if move.revision != self.revision:
            self._tell(f"{move.revision} is {move.state.value}: {reason}")

    def _cause(self, status: DeploymentStatus) -> str:
        """How a replica of ours has ended since we began to look; empty where none has, as far as is known."""
        mine = status.called(self.revision)
        return mine.reason if mine and mine.restarts > (self._restarts or 0) else ""

    def _revive(self, status: DeploymentStatus) -> None:
        """Ask once more for what was asked for, where nothing answers: its keeper may be gone."""
        now = self._clock()
        if status.ready:
            self._down = None
        elif self._down is None:
            self._down = now
        elif now - self._down >= _REVIVE_SECONDS:
            self._down = None
            token = status.token  # a release that began since is not superseded
            self._deployments.prepare(
                self.order.spec, by=self.order.by, origin=self.order.origin, token=token
            )

    def _tell(self, line: str, *, so_far: str = "") -> None:
        """Say a line that is news; while it stays so, only what is there so far, now and then."""
        now = self._clock()
        if line and (line != self._said or (so_far and now - self._said_at >= REPEAT_SECONDS)):
            self._said, self._said_at = line, now
            self._say(f"{self.revision}: {line}{so_far}")

    def _endure(self, error: Exception, since_when: float | None) -> None:
        """Let a trouble pass that began a while ago. :raises Exception: it lasts too long."""
        now = self._clock()
        self._trouble = now if since_when is None else since_when
        if now - self._trouble > PATIENCE_SECONDS:
            raise error
        self._tell(f"trying again: {error}")
