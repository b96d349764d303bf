"""Judges a revision: what it is asked at each step, and whether its answers and its counts are good enough."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from muster.backends.releases.figures import percentile, shown
from muster.backends.releases.inputs import broken_by_inputs, drifts
from muster.backends.releases.plan import Comparison, Rules
from muster.core.deployment import Answer, Counts, SmokeRequest
from muster.core.errors import DeploymentError

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.backends.releases.plan import Plan
    from muster.core.deployment import DeploymentSpec

_P95 = 0.95
_TRIES = 2
# Of the champion, which may have crashed: only seconds later its platform says that it does not answer, and then it
# is waited for. Looks come four times a second.
_CHAMPION_TRIES = 20
MOMENT_SECONDS = 0.2  # of asking at a stretch: errors of users' requests must not wait behind it

Answers = tuple[Answer, ...]


class Unanswered(Exception):
    """A replica gave no answer, or none that is one. :param tries: how often that has to be so to count."""

    def __init__(self, text: str, *, tries: int) -> None:
        super().__init__(text)
        self.tries = tries


class Unfinished(Exception):
    """The answers are not there yet: the same question takes them at the next look."""


class Questions:
    """What is still to be asked of a revision at this step.

    `found` is None until all is asked, then empty if all is well; or what is not, at once. A replica may take its time
    to answer: what was asked of it is waited for at the next looks.
    """

    def __init__(self, deployments: Deployments, spec: DeploymentSpec, plan: Plan, *, revision: str) -> None:
        self._deployments = deployments
        self._spec = spec
        self._comparison = plan.comparison
        self._revision = revision
        self.begin()

    def begin(self) -> None:
        """Begin a step: everything is to be asked anew."""
        self.found: str | None = None
        self.silent = False  # whether the last that was asked could not be reached
        self._champion: str | None = None
        self._asked: Future[Answers] | None = None  # of what is left, the first
        self._unanswered = 0
        self._until = 0.0
        self._left: deque[Callable[[], str]] = deque(partial(self._smoke, each) for each in self._spec.smoke)
        if self._comparison:
            self._left.append(partial(self._add_comparison, self._comparison))

    def ask(self, *, champion: str | None) -> None:
        """Ask for a moment. :raises BackendError: the cluster is away; the same is asked the next time."""
        self._champion = champion
        self._until = time.monotonic() + MOMENT_SECONDS
        while self._left and not self.found and time.monotonic() < self._until:
            try:
                self.found = self._left[0]() or None
            except Unfinished:
                return
            except Unanswered as error:  # asked again at the next look: by then it may be known to be down
                self._unanswered += 1
                self.found = str(error) if self._unanswered >= error.tries else None
                return
            self._unanswered = 0
            self._left.popleft()
        if not self._left and self.found is None:
            self.found = ""

    def _answers(self, revision: str, request: SmokeRequest) -> Answers:
        """Ask every replica of a revision; of the champion one that answers will do, for it is not judged.

        :raises Unanswered: there is an error in place of an answer; :raises Unfinished: not yet.
        """
        if self._asked is None:
            self._asked = _begun(partial(self._deployments.ask, self._spec.name, revision, request))
        if not wait([self._asked], timeout=max(0.0, self._until - time.monotonic())).done:
            raise Unfinished
        asked, self._asked = self._asked, None
        try:
            answers = asked.result()
        except DeploymentError as error:  # the model does not take what is asked
            raise DeploymentError(f"smoke request {request.name!r:.80}: {error}") from error
        if revision != self._revision:
            answers = tuple(answer for answer in answers if not answer.error) or answers
        else:
            self.silent = not answers or any(answer.silent for answer in answers)
        if not answers or any(answer.error for answer in answers):
            tries = _TRIES if revision == self._revision else _CHAMPION_TRIES
            raise Unanswered(broken_by_answers(request, answers), tries=tries)
        return answers

    def _smoke(self, request: SmokeRequest) -> str:
        return broken_by_answers(request, self._answers(self._revision, request))

    def _add_comparison(self, comparison: Comparison) -> str:
        """Have the comparison's requests asked next, one by one."""
        champion = self._champion
        if champion is None or champion == self._revision:
            return ""  # there is nothing to compare it with
        ours, theirs = list[float](), list[float]()
        for request in comparison.requests:
            self._left.append(partial(self._fill, ours, comparison.output, self._revision, request))
            self._left.append(partial(self._fill, theirs, comparison.output, champion, request))
        self._left.append(lambda: _broken_by_comparison(comparison, ours, theirs))
        return ""

    def _fill(self, rows: list[float], output: str, revision: str, request: SmokeRequest) -> str:
        where = f"in the comparison, {revision}"
        try:
            answers = self._answers(revision, request)
        except Unanswered as error:
            raise Unanswered(f"{where}: {error}", tries=error.tries) from None
        column, wrong = (answers[0].outputs or {}).get(output), broken_by_answers(request, answers)
        if not wrong and (column is None or not all(isinstance(one, (int, float)) for one in column)):
            wrong = f"output {output!r:.80}: expected numbers, found {column!r:.60}"
        if wrong:
            return f"{where}: {wrong}"
        rows += map(float, column or ())
        return ""


def _begun(question: Callable[[], Answers]) -> Future[Answers]:
    """Ask in a thread of its own that is never joined: a replica that hangs delays no process's end."""
    asked: Future[Answers] = Future()

    def answer() -> None:
        try:
            asked.set_result(question())
        except BaseException as error:  # raised where the answer is taken
            asked.set_exception(error)

    threading.Thread(target=answer, name="muster-smoke", daemon=True).start()
    return asked


def broken_by_counts(rules: Rules, ours: Counts, theirs: Counts, *, ending: bool = False) -> str:
    """Say which rule the counts of a step break; empty where none.

    Errors are judged from the first one on: when there are more than the fewest requests would allow, more
    good ones up to there cannot mend that. At the end of a step its own requests count, however few.

    :param ours: of the revision that is released, `theirs` the champion's, over the same time.
    :param ending: whether the step is over.
    """
    fewest = 1 if ending else rules.judged_from
    if ours.failed > rules.max_error_share * max(ours.tried, fewest):
        return (
            f"{ours.failed} of {ours.tried} requests failed, "
            f"above the {rules.max_error_share:.2%} that are allowed"
        )
    refused = [(one.refused, one.requests) for one in (ours, theirs)]
    unseen = [(one.unseen, one.tried) for one in (ours, theirs)]
    return (
        _too_many("were refused", rules.max_refused_share, fewest, *refused)
        or _refuses_more(rules, ours, theirs)
        or _too_many("hold a value that is no category", rules.max_unseen_share, fewest, *unseen)
        or broken_by_inputs(rules.max_psi, ours, fewest=rules.judged_from)
        or _too_slow(rules, ours, theirs)
    )


def told(ours: Counts, theirs: Counts) -> str:
    """Say for people what a step has counted, of the revision and beside it of the champion."""
    own, champions = percentile(ours, _P95), percentile(theirs, _P95)
    slow = "" if own is None else f", 95 % within {shown(own)}"
    beside = "" if own is None or champions is None else f", the champion's within {shown(champions)}"
    refused = f", {ours.refused} refused" * bool(ours.refused)
    refused += f", {ours.left} left by their clients" * bool(ours.left)
    unseen = f", {ours.unseen} with unseen values" * bool(ours.unseen)
    far = "".join(f", drift at most {first.psi:.2g} ({first.name:.80})" for first in drifts(ours)[:1])
    return f"{ours.requests} requests, {ours.failed} failed{refused}{unseen}{far}{slow}{beside}"


def _too_many(
    what: str, allowed: float | None, fewest: int, ours: tuple[int, int], theirs: tuple[int, int]
) -> str:
    """Say that more requests than are allowed are so, and how it is with the champion's: it is asked alike.

    :param fewest: of how many requests at least the share is one. :param ours: how many are so, of how many; `theirs` likewise.
    """
    (own, of), (champions, of_theirs) = ours, theirs
    if allowed is None or own <= allowed * max(of, fewest):
        return ""
    beside = f"; of the champion's {champions / of_theirs:.2%}" if champions and of_theirs else ""
    return f"{own} of {of} requests {what}, above the {allowed:.2%} that are allowed{beside}"


def _refuses_more(rules: Rules, ours: Counts, theirs: Counts) -> str:
    """Say that it refuses a greater share than the champion, which is asked alike, where no rule allows a share.

    Greater by more than the share of errors that is allowed, and by three standard errors: that is no chance.
    """
    if rules.max_refused_share is not None or min(ours.requests, theirs.requests) < rules.judged_from:
        return ""
    own, champions = ours.refused / ours.requests, theirs.refused / theirs.requests
    together = (ours.refused + theirs.refused) / (ours.requests + theirs.requests)
    chance = 3 * (together * (1 - together) * (1 / ours.requests + 1 / theirs.requests)) ** 0.5
    if own - champions <= max(chance, rules.max_error_share):
        return ""
    return (
        f"{ours.refused} of {ours.requests} requests were refused, {own:.2%}; of the champion's {champions:.2%}: "
        "max_refused_share=… allows a share, whatever the champion's is"
    )


def _timed(counts: Counts) -> int:
    """How many requests took a time that counts: those, too, that clients no longer waited for."""
    return counts.requests - counts.refused


def _too_slow(rules: Rules, ours: Counts, theirs: Counts) -> str:
    if rules.max_p95_ratio is None or min(_timed(ours), _timed(theirs)) < rules.judged_from:
        return ""
    own, champions = percentile(ours, _P95), percentile(theirs, _P95)
    if own is None or champions is None:
        return ""
    if own <= rules.max_p95_ratio * champions + rules.p95_slack_seconds:
        return ""
    return (
        f"95 % of its requests took up to {shown(own)}, the champion's {shown(champions)}: more "
        f"than {rules.max_p95_ratio:g} times that and {rules.p95_slack_seconds * 1000:g} ms"
    )


def broken_by_answers(request: SmokeRequest, answers: Sequence[Answer]) -> str:
    """Say which replica answers a smoke request otherwise than expected; empty where none does."""
    if not answers:
        return f"smoke request {request.name!r:.80}: none of its replicas answers"
    for answer in answers:
        if why := answer.error or _unexpected(request, answer):
            where = f" of {answer.replica}" if len(answers) > 1 else ""
            return f"smoke request {request.name!r:.80}{where}: {why}"
    return ""


def _unexpected(request: SmokeRequest, answer: Answer) -> str:
    outputs = answer.outputs or {}
    for name, bounds in request.expect.items():
        if name not in outputs:
            return f"output {name!r:.80} is expected; the model answers {', '.join(outputs) or 'none'}"
        for value in outputs[name]:
            if not isinstance(value, (int, float)):
                return f"output {name!r} is {value!r:.40}, expected a number"
            if not bounds.get("min", value) <= value <= bounds.get("max", value):
                wanted = " and ".join(
                    f"{kind} {bound:g}" for kind, bound in sorted(bounds.items(), reverse=True)
                )
                return f"output {name!r} is {value!r:.40}, expected {wanted}"
    return ""


def _broken_by_comparison(comparison: Comparison, ours: list[float], theirs: list[float]) -> str:
    """Say in what the candidate falls behind the champion; empty where it does not.

    :param ours: what the candidate answered for the output in question; `theirs` what the champion did.
    """
    if len(ours) != len(theirs) or not ours:
        return f"it answers {len(ours)} rows of {comparison.output!r:.40}, the champion {len(theirs)}"
    if comparison.agreement is not None:
        same = sum(abs(a - b) <= comparison.tolerance for a, b in zip(ours, theirs, strict=True)) / len(ours)
        if same < comparison.agreement:
            return f"it agrees with the champion in {same:.1%} of the rows, need {comparison.agreement:.1%}"
    return _worse(comparison, ours, theirs) if comparison.metric else ""


def _worse(comparison: Comparison, ours: list[float], theirs: list[float]) -> str:
    assert comparison.metric is not None
    labels = [label for each in comparison.labels for label in each]
    if len(labels) != len(ours):
        return f"it answers {len(ours)} rows of {comparison.output!r:.40} to {len(labels)} labels"
    own, champions = (measure(comparison.metric, answers, labels) for answers in (ours, theirs))
    lost = own - champions if comparison.metric in ("mae", "rmse") else champions - own
    if lost <= comparison.worse_by:
        return ""
    return (
        f"{comparison.metric} is {own:.4g} on the labelled requests, the champion's {champions:.4g}: "
        f"worse by more than {comparison.worse_by:g}"
    )


def measure(metric: str, answers: Sequence[float], labels: Sequence[float]) -> float:
    """A metric of answers by their labels: share of right ones (cut at 0.5), area under the curve, mean errors."""
    pairs = list(zip(answers, labels, strict=True))
    if metric == "accuracy":
        return sum((a >= 0.5) == (b >= 0.5) for a, b in pairs) / len(pairs)
    if metric == "mae":
        return sum(abs(a - b) for a, b in pairs) / len(pairs)
    if metric == "rmse":
        return float((sum((a - b) ** 2 for a, b in pairs) / len(pairs)) ** 0.5)
    return _area(pairs)


def _area(pairs: Sequence[tuple[float, float]]) -> float:
    """The share of pairs of a positive and a negative that are in order, ties by half.

    From the sum of the positives' ranks (Mann-Whitney), as there may be too many pairs to look at each.
    """
    positives = sum(label >= 0.5 for _, label in pairs)
    negatives = len(pairs) - positives
    if not positives or not negatives:
        return 0.5  # nothing to tell apart
    ranks, below = 0.0, 0
    for _, tied in groupby(sorted(pairs), key=itemgetter(0)):
        labels = [label >= 0.5 for _, label in tied]
        ranks += sum(labels) * (below + (len(labels) + 1) / 2)
        below += len(labels)
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
