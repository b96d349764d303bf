"""Which request began which attempt, so that none begins two, however often it is sent.

An operator begins an attempt when it submits a job. When the cluster starts a gang again by itself,
the first pod of the new start that asks for its bundle begins the next one; pods of an earlier start
are refused from then on. A cluster counts its starts: ``0``, ``1``, … or, of two kinds, ``1-0``.

``jobs/<job_id>/starts.json`` holds by request the attempt that it begins, written before it is begun::

    {"request:9f2c…": 1, "1.0": 1, "1.1": 2}

For pods, who mount a folder before they can ask, ``staging/<job_id>/<submitted>.<restart>`` is a link
to the folder of the attempt that this start became.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.core.errors import Conflict, SpecError
from muster.core.job import JobSpec
from muster.core.status import JobState
from muster.volumes.base import Staging
from muster.volumes.durability import symlink, translated, write_whole
from muster.volumes.folder import FolderStore
from muster.volumes.service.committer import Committer
from muster.volumes.service.refusals import Busy

GANG = "gang"
"""The folder of an attempt that its replicas share, to be seen by each other; the store reads nothing there."""

PODS = "pods"
"""The folder of an attempt that is made last: where it is, all that its pods mount is there."""

PATIENCE_SECONDS = 1.0
"""How long after its begin others wait for an attempt in their threads; most are begun in a few hundredths."""

_RESTART = re.compile(r"\d{1,9}(-\d{1,9}){0,3}\Z", re.ASCII)


class Turns:
    """Which jobs have an attempt that is being begun, and since when.

    The first pod of a start that asks has the checkpoints copied, which may take long. A thousand others ask for
    the same meanwhile, each in a thread of the service, and would leave none for other jobs' starts.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[str, float] = {}

    @contextmanager
    def alone(self, job_id: str, *, patient: bool) -> Iterator[None]:
        """Begin an attempt of the job, one of us at a time.

        :param patient: wait for as long as it takes.
        :raises Busy: another thread begins one, and that takes long.
        """
        with self._changed:
            while job_id in self._since:
                left = None if patient else self._since[job_id] + PATIENCE_SECONDS - time.monotonic()
                if left is not None and left <= 0:
                    raise Busy(f"job {job_id}: its checkpoints are being copied for this start: ask again")
                self._changed.wait(left)
            self._since[job_id] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[job_id]
                self._changed.notify_all()


@dataclass(frozen=True)
class Starts:
    """The starts of every job of one store."""

    store: FolderStore
    committer: Committer
    turns: Turns = field(default_factory=Turns)

    def asked(self, job_id: str, request: str) -> Staging:
        """The attempt of an operator's request, begun where it is new; it may take as long as its checkpoints are big.

        :raises Conflict: another was begun since, or the job has sealed or ended.
        """
        name = self._told(job_id, f"request:{request}")
        with self.turns.alone(job_id, patient=True):
            return self._begin(job_id, name)

    def restarted(self, job_id: str, *, submitted: int, restart: str) -> Staging:
        """The attempt of one start of a gang, begun where no pod of that start has asked yet.

        :param submitted: the attempt that the gang was submitted with.
        :param restart: how often the cluster has started it again.
        :raises Conflict: the gang was started again since, under whichever name.
        :raises Busy: another pod of it has asked, and it takes long.
        """
        if not _RESTART.match(restart):
            raise SpecError(
                f"restart {restart!r:.60}: expected how often the gang started again, such as 1 or 1-0"
            )
        name = f"{submitted}.{restart}"
        self._told(job_id, name)
        with self.turns.alone(job_id, patient=False):
            staging = self._begin(job_id, name)
        with translated(f"name the attempt of job {job_id}"):
            symlink(str(staging.attempt), staging.root.parent / name)
        return staging

    def current(self, job_id: str, attempt: int) -> Staging:
        """The staging of an attempt. :raises Conflict: it is not the current one, or the next was asked for."""
        staging = self.store.staging(job_id)
        newest = max((0 if staging is None else staging.attempt, *self._table(job_id).values()))
        if staging is None or newest != attempt:
            now = f"the current one is {newest}" if newest else "there is none yet"
            raise Conflict(f"job {job_id}: attempt {attempt} is fenced, {now}; what it wrote is left aside")
        return staging

    def descends(self, job_id: str, attempt: int, *, submitted: int) -> bool:
        """Whether an attempt is a start of the gang that was submitted with another."""
        return attempt == submitted or attempt in _starts(self._table(job_id), submitted).values()

    def taken(self, job_id: str, attempt: int) -> bool:
        """Whether a pod has asked for this attempt; before that, nothing of it can run."""
        return any("." in name and became == attempt for name, became in self._table(job_id).items())

    def note(self, staging: Staging) -> None:
        """Write down that a gang runs, once the last of its pods has taken its place."""
        job_id, spec = staging.job_id, self.store.ledger.spec(staging.job_id)
        there = sum(1 for _ in (staging.root / PODS).iterdir())
        if there < spec.replicas:
            return
        with self.committer.alone(job_id):
            status = self.store.ledger.status(job_id)
            if not status.state.ended and status.state is not JobState.COMMITTING:
                started = status.started or time.time()
                again = _restarts(self._table(job_id))
                self.store.ledger.update(
                    replace(status, state=JobState.RUNNING, started=started, restarts=again)
                )

    def _told(self, job_id: str, name: str) -> str:
        """Write down which attempt `name` begins, if it is new; from here on the one before is fenced."""
        with self.committer.alone(job_id), translated(f"begin an attempt of job {job_id}"):
            table, staging = self._table(job_id), self.store.staging(job_id)
            current = 0 if staging is None else staging.attempt
            if name not in table:
                self.committer.check_going_on(job_id)
                # what was written down and never begun makes room: who asked for it is refused
                begun = {each: attempt for each, attempt in table.items() if attempt <= current}
                following = _following(job_id, name, begun, current)
                write_whole(self._path(job_id), json.dumps({**begun, name: following}))
        return name

    def _begin(self, job_id: str, name: str) -> Staging:
        """Begin what was written down, unless it is begun."""
        with translated(f"begin an attempt of job {job_id}"), self.store.attempts.alone(job_id):
            staging = self.store.staging(job_id)
            current = 0 if staging is None else staging.attempt
            wanted = self._table(job_id).get(name, 0)
            if wanted < current:
                raise Conflict(
                    f"job {job_id}: {name.partition(':')[0]} is fenced, the current attempt is {current}"
                )
            if staging is None or wanted > current:
                staging = self.store.attempts.begin(job_id)
            if not (staging.root / PODS).is_dir():
                _make_folders(staging, self.store.ledger.spec(job_id))
            return staging

    def _table(self, job_id: str) -> dict[str, int]:
        path = self._path(job_id)
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def _path(self, job_id: str) -> Path:
        return self.store.ledger.check(job_id) / "starts.json"


def _following(job_id: str, name: str, begun: dict[str, int], current: int) -> int:
    """Which attempt a name that is new begins."""
    submitted, dot, restart = name.partition(".")
    if not dot:
        return current + 1
    starts = _starts(begun, int(submitted))
    if max([int(submitted), *starts.values()]) != current:
        raise Conflict(f"job {job_id} was started again under another attempt: start {name} is fenced")
    if starts and _count(restart) <= max(map(_count, starts)):
        raise Conflict(f"job {job_id}: its gang was started again since, and start {name} is fenced")
    return current + 1 if starts else current


def _starts(table: dict[str, int], submitted: int) -> dict[str, int]:
    """The attempts of a gang's starts, by how often it was started again."""
    prefix = f"{submitted}."
    return {name.removeprefix(prefix): attempt for name, attempt in table.items() if name.startswith(prefix)}


def _restarts(table: dict[str, int]) -> int:
    """How often a job was started again, of all times that it was submitted."""
    starts = [name.partition(".")[0] for name in table if "." in name]
    return len(starts) - len(set(starts))


def _count(restart: str) -> int:
    return sum(map(int, restart.split("-")))


def _make_folders(staging: Staging, spec: JobSpec) -> None:
    """Make what pods mount: a folder that a kubelet makes is its own, and no pod could write there."""
    for role in spec.roles:
        for index in range(role.replicas):
            for output in spec.outputs or ("",):
                staging.output(role.name, index, output).mkdir(parents=True, exist_ok=True)
    for name in (GANG, PODS):
        (staging.root / name).mkdir(exist_ok=True)
