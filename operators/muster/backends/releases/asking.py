"""What is asked of a revision at each step: smoke requests of every replica, and a comparison with the champion.

The words are those of the Open Inference Protocol (https://github.com/kserve/open-inference-protocol), on one
machine and on a cluster alike.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.backends.releases.judging import broken_by_answers, broken_by_comparison
from muster.core.deployment import Answer, SmokeRequest
from muster.core.errors import DeploymentError

if TYPE_CHECKING:
    from muster.backends.base import Deployments
    from muster.backends.releases.plan import Comparison, Plan
    from muster.core.deployment import DeploymentSpec

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
            self.silent = any(answer.silent for answer in answers)
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
        ours, theirs = Column(comparison.output), Column(comparison.output)
        for request in comparison.requests:
            self._left.append(partial(self._fill, ours, self._revision, request))
            self._left.append(partial(self._fill, theirs, champion, request))
        self._left.append(lambda: broken_by_comparison(comparison, ours.rows, theirs.rows))
        return ""

    def _fill(self, column: Column, revision: str, request: SmokeRequest) -> str:
        where = f"in the comparison, {revision}"
        try:
            answers = self._answers(revision, request)
        except Unanswered as error:
            raise Unanswered(f"{where}: {error}", tries=error.tries) from None
        wrong = broken_by_answers(request, answers) or column.add(answers[0])
        return f"{where}: {wrong}" if wrong else ""


def _begun(question: Callable[[], Answers]) -> Future[Answers]:
    """Ask in a thread of its own, which nobody waits for at the end: a replica that hangs holds up no process."""
    asked: Future[Answers] = Future()

    def answer() -> None:
        try:
            asked.set_result(question())
        except BaseException as error:  # whoever takes the answer gets it
            asked.set_exception(error)

    threading.Thread(target=answer, name="muster-smoke", daemon=True).start()
    return asked


class Column:
    """What one revision answers for one output, request by request."""

    def __init__(self, output: str) -> None:
        self._output = output
        self.rows: list[tuple[float, ...]] = []

    def add(self, answer: Answer) -> str:
        """Take an answer; say what is wrong where it holds no numbers."""
        column = (answer.outputs or {}).get(self._output)
        if column is None or not all(isinstance(value, (int, float)) for value in column):
            return f"output {self._output!r:.80}: expected numbers, found {column!r:.60}"
        self.rows.append(tuple(map(float, column)))
        return ""


def infer_request(request: SmokeRequest, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Write a request in the protocol's words, with the types that the model's metadata says it takes.

    :raises DeploymentError: the model takes no such input, or its metadata is not the protocol's.
    """
    try:
        tensors = {each["name"]: (each["datatype"], each["shape"][1:]) for each in metadata["inputs"]}
    except (KeyError, TypeError) as error:
        raise DeploymentError(f"it describes itself as {metadata!r:.120}, expected inputs") from error
    inputs = []
    for name, column in request.inputs.items():
        if name not in tensors:
            raise DeploymentError(f"input {name!r:.80} is unknown; this model takes {', '.join(tensors)}")
        datatype, tail = tensors[name]
        shape = [len(column), *tail]
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "data": list(column)})
    return {"inputs": inputs}


def read_answer(replica: str, document: Mapping[str, Any]) -> Answer:
    """Read an answer in the protocol's words; what is not in them is an answer with an error."""
    try:
        outputs = {output["name"]: tuple(output["data"]) for output in document["outputs"]}
    except (KeyError, TypeError):
        return Answer(replica=replica, outputs=None, error=f"it answers {document!r:.120}, expected outputs")
    return Answer(replica=replica, outputs=outputs)
