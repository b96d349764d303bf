"""Which request began which attempt, so that a repeated request begins only one.

An operator begins an attempt when it submits a job. When the cluster starts a gang again by itself,
the first pod of the new start that fetches its bundle begins the next one; from then on pods of an earlier
start are refused. A cluster counts its starts: ``0``, ``1``, … or, in two parts, ``1-0``.

``jobs/<job_id>/starts.json`` holds each request's attempt, written before the attempt is begun::

    {"request:9f2c…": 1, "1.0": 1, "1.1": 2}

A gang that starts again in the pods that it has (:mod:`muster.volumes.service.regrouping`) is no start to the cluster:
such a start adds ``-0`` to the name of the one before, ``1.1-0``. Nor does a cluster count that it takes a gang's nodes and
gives it others later, with new pods: that adds ``-00``, and only if all processes of the pods before are known to be gone.
A gang that stopped for another size goes on as it was, in its pods, if no process begins that size: this adds ``-000``, and is no restart.
All count as often as the start before where starts are compared, also by an earlier release.

Pods mount a folder before they can ask, so ``staging/<job_id>/<submitted>.<restart>`` is a link to the
folder of the attempt that this start became.
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
from muster.volumes.durability import link_text, rename, symlink, temporary, translated, write_whole
from muster.volumes.folder import FolderStore
from muster.volumes.handing_over import GANG, PODS, said_by
from muster.volumes.service.committer import Committer
from muster.volumes.service.refusals import ServiceBusy
from muster.volumes.tree import remove

PATIENCE_SECONDS = 1.0
"""How long other requests wait in their threads for an attempt that is being begun; most take some 10 ms."""

_MADE = "made"
"""A link in an attempt's folder, made last: once it names the attempt, all folders that pods mount exist."""

IN_PLACE, _ANEW, AS_IT_WAS = "-0", "-00", "-000"
_GOES_ON = (IN_PLACE, _ANEW, AS_IT_WAS)
_TAKEN_AWAY = (
    "[muster] evicted: the cluster took its pods away; the whole gang starts again from its checkpoint"
)
_RESTART = re.compile(r"\d{1,9}(-\d{1,9}){0,3}\Z", re.ASCII)


class StartTurns:
    """The jobs with an attempt that is being begun, and since when.

    The first pod of a start has the checkpoints copied, which may take long. A thousand other pods request
    the same meanwhile, each in a thread of the service, and would leave no thread for other jobs' starts.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[str, float] = {}

    @contextmanager
    def alone(self, job_id: str, *, patient: bool) -> Iterator[None]:
        """Hold the right to begin an attempt of the job, one thread at a time.

        :param patient: wait as long as it takes.
        :raises ServiceBusy: another thread is beginning one, and it takes long.
        """
        with self._changed:
            while job_id in self._since:
                left = None if patient else self._since[job_id] + PATIENCE_SECONDS - time.monotonic()
                if left is not None and left <= 0:
                    raise ServiceBusy(
                        f"job {job_id}: its checkpoints are being copied for this start: ask again"
                    )
                self._changed.wait(left)
            self._since[job_id] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[job_id]
                self._changed.notify_all()


@dataclass(frozen=True)
class GangStarts:
    """The starts of every job of one store."""

    store: FolderStore
    committer: Committer
    turns: StartTurns = field(default_factory=StartTurns)

    def asked(self, job_id: str, request: str, *, replicas: int | None = None) -> Staging:
        """Return the attempt of an operator's request, begun if new; copying big checkpoints takes long.

        :param replicas: of an elastic gang; without it, those of the attempt before.
        :raises Conflict: another attempt was begun since, or the job has sealed or ended.
        """
        if "." in request:  # as a start of the cluster's has
            raise SpecError(f"request {request!r:.60}: need a name without a dot")
        name = self._told(job_id, f"request:{request}")
        with self.turns.alone(job_id, patient=True):
            return self._begin(job_id, name, replicas=replicas)

    def restarted(self, job_id: str, *, submitted: int, restart: str, replica: str, pod: str) -> Staging:
        """Return the attempt of one start of a gang, begun by the first pod of that start.

        :param submitted: the attempt that the gang was submitted with.
        :param restart: how often the cluster has restarted it.
        :param replica: what the pod is; it is registered.
        :raises Conflict: the gang was started again since, by the cluster or an operator; or another pod is this
            replica, and may live on.
        :raises ServiceBusy: another pod's request is beginning it, and that takes long.
        """
        if not _RESTART.match(restart):
            raise SpecError(
                f"restart {restart!r:.60}: expected how often the gang started again, such as 1 or 1-0"
            )
        asked = self._told(job_id, f"{submitted}.{restart}")
        with self.turns.alone(job_id, patient=False):
            table = self._table(job_id)
            name = _last(table, asked)
            staging = self._begin(job_id, name, copy=not _is_in_place(table, name))
            if not _takes_place(staging, replica, pod):
                staging = self._begin_anew(staging, replica, pod)
            with translated(f"name the attempt of job {job_id}"):
                _lead_to(staging, staging.root.parent / asked)
        return staging

    def _begin_anew(self, staging: Staging, replica: str, pod: str) -> Staging:
        """Begin an attempt for a new pod of the same start, if nothing of the pods before is left."""
        job_id, attempt = staging.job_id, staging.attempt
        taken = Conflict(
            f"job {job_id}, attempt {attempt}: another pod is replica {replica}, and may "
            "live on: the whole gang has to start again"
        )
        # A pod that never took a place has no worker: its gang was taken away again before all of it had begun.
        if any(said_by(staging, each.name) is None for each in (staging.root / PODS).iterdir()):
            raise taken
        with self.committer.alone(job_id):
            self.committer.check_going_on(job_id)
            name = self.tell_again(job_id, attempt, suffix=_ANEW)
            self.committer.tell(job_id, f"again-{attempt + 1}", _TAKEN_AWAY)
        following = self._begin(job_id, name)
        if not _takes_place(following, replica, pod):
            raise taken
        return following

    def again(self, job_id: str, attempt: int) -> int | None:
        """Return the attempt that `attempt` became in the same pods; None where it did not."""
        table = self._table(job_id)
        name = _name(table, attempt)
        if name is None:
            return None
        return table.get(f"{name}{IN_PLACE}", table.get(f"{name}{AS_IT_WAS}"))

    def tell_again(self, job_id: str, attempt: int, *, suffix: str = IN_PLACE) -> str:
        """Record that the current attempt starts again in its pods; call it within the committer's ``alone``.

        :param suffix: what the start's name adds to that of the one before.
        """
        table = self._table(job_id)
        name = _name(table, attempt)
        if name is None or attempt != max(table.values()):
            raise Conflict(f"job {job_id}: attempt {attempt} is fenced, its gang was started again since")
        following = f"{name}{suffix}"
        write_whole(self._path(job_id), json.dumps({**table, following: attempt + 1}))
        return following

    def begin_again(self, job_id: str, attempt: int) -> Staging:
        """Begin what :meth:`tell_again` recorded, once: all processes of the attempt before are gone.

        :raises Conflict: an attempt was begun since.
        """
        with self.turns.alone(job_id, patient=True):
            name = _name(self._table(job_id), attempt)
            if name is None:
                raise Conflict(
                    f"job {job_id}: its gang was started again since attempt {attempt} was to begin"
                )
            staging = self._begin(job_id, name, copy=False)
            with translated(f"name the attempt of job {job_id}"):
                _lead_to(staging, staging.root.parent / _asked(self._table(job_id), name))
        with self.committer.alone(job_id):
            self._note_running(job_id)
        return staging

    def restarts(self, job_id: str) -> int:
        """Return how often a job was started again, over all its submissions."""
        return _restarts(self._table(job_id))

    def only_in_place(self, job_id: str) -> bool:
        """Whether the cluster has never started the job's gang again by itself."""
        table = self._table(job_id)
        starts = {_asked(table, name) for name in table if "." in name}
        return len(starts) == len({name.partition(".")[0] for name in starts})

    def newest(self, job_id: str) -> int:
        """Return the newest attempt that was begun or requested; 0 before the first."""
        return self._newest(job_id, self.store.staging(job_id))

    def _newest(self, job_id: str, staging: Staging | None) -> int:
        return max((0 if staging is None else staging.attempt, *self._table(job_id).values()))

    def current(self, job_id: str, attempt: int) -> Staging:
        """Return the staging of an attempt.

        :raises Conflict: it is not the current one, or the next was requested.
        """
        staging = self.store.staging(job_id)
        newest = self._newest(job_id, staging)
        if staging is None or newest != attempt:
            now = f"the current one is {newest}" if newest else "there is none yet"
            raise Conflict(f"job {job_id}: attempt {attempt} is fenced, {now}; what it wrote is left aside")
        return staging

    def descends(self, job_id: str, attempt: int, *, submitted: int) -> bool:
        """Whether an attempt is a start of the gang that was submitted as attempt `submitted`."""
        return attempt == submitted or attempt in _starts(self._table(job_id), submitted).values()

    def taken(self, job_id: str, attempt: int) -> bool:
        """Whether a pod has fetched this attempt's bundle; before that, nothing of it can run."""
        return any("." in name and became == attempt for name, became in self._table(job_id).items())

    def note(self, staging: Staging) -> None:
        """Record that a gang runs, once the last of its pods has registered."""
        job_id, spec = staging.job_id, self.store.ledger.spec(staging.job_id)
        there = sum(1 for _ in (staging.root / PODS).iterdir())
        if there < staging.as_begun(spec).replicas:
            return
        with self.committer.alone(job_id):
            self._note_running(job_id)

    def _note_running(self, job_id: str) -> None:
        status = self.store.ledger.status(job_id)
        if not status.state.ended and status.state is not JobState.COMMITTING:
            started = status.started or time.time()
            again = self.restarts(job_id)
            self.store.ledger.update(replace(status, state=JobState.RUNNING, started=started, restarts=again))

    def _told(self, job_id: str, name: str) -> str:
        """Record the attempt that `name` begins, if new; this fences the one before."""
        with self.committer.alone(job_id), translated(f"begin an attempt of job {job_id}"):
            table, staging = self._table(job_id), self.store.staging(job_id)
            current = 0 if staging is None else staging.attempt
            if name not in table:
                self.committer.check_going_on(job_id)
                # drop a recorded attempt that was never begun: its request will be refused
                begun = {each: attempt for each, attempt in table.items() if attempt <= current}
                following = _following(job_id, name, begun, current)
                write_whole(self._path(job_id), json.dumps({**begun, name: following}))
        return name

    def _begin(self, job_id: str, name: str, *, copy: bool = True, replicas: int | None = None) -> Staging:
        """Begin the recorded attempt, unless it is begun already.

        :param copy: otherwise copy checkpoints that processes of the attempt before may still write.
        """
        with translated(f"begin an attempt of job {job_id}"), self.store.attempts.alone(job_id):
            staging = self.store.staging(job_id)
            current = 0 if staging is None else staging.attempt
            wanted = self._table(job_id).get(name, 0)
            if wanted < current:
                raise Conflict(
                    f"job {job_id}: {name.partition(':')[0]} is fenced, the current attempt is {current}"
                )
            if staging is None or wanted > current:
                staging = self.store.attempts.begin(job_id, copy=copy, replicas=replicas)
                if copy:  # these are other pods
                    remove(staging.root / PODS)
            if link_text(staging.root / _MADE) != str(staging.attempt):
                _make_folders(staging, self.store.ledger.spec(job_id))
            return staging

    def _table(self, job_id: str) -> dict[str, int]:
        path = self._path(job_id)
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def _path(self, job_id: str) -> Path:
        return self.store.ledger.check(job_id) / "starts.json"


def _following(job_id: str, name: str, begun: dict[str, int], current: int) -> int:
    """Return the attempt that a new name begins."""
    submitted, dot, restart = name.partition(".")
    if not dot:
        return current + 1
    starts = _starts(begun, int(submitted))
    if max([int(submitted), *starts.values()]) != current:
        raise Conflict(f"job {job_id} was started again under another attempt: start {name} is fenced")
    if starts and _count(restart) <= max(map(_count, starts)):
        raise Conflict(f"job {job_id}: its gang was started again since, and start {name} is fenced")
    return current + 1 if starts else current


def _name(table: dict[str, int], attempt: int) -> str | None:
    """Return the start of a gang that an attempt is; None where no pod has asked for it yet."""
    return next((name for name, became in table.items() if "." in name and became == attempt), None)


def _asked(table: dict[str, int], name: str) -> str:
    """Return the start of the cluster's that a start goes on with."""
    for suffix in _GOES_ON:
        if name.endswith(suffix) and name.removesuffix(suffix) in table:
            return _asked(table, name.removesuffix(suffix))
    return name


def _is_in_place(table: dict[str, int], name: str) -> bool:
    return any(
        name.endswith(suffix) and name.removesuffix(suffix) in table for suffix in (IN_PLACE, AS_IT_WAS)
    )


def _last(table: dict[str, int], name: str) -> str:
    """Return the last start that went on with a start of the cluster's."""
    for suffix in _GOES_ON:
        if f"{name}{suffix}" in table:
            return _last(table, f"{name}{suffix}")
    return name


def _lead_to(staging: Staging, link: Path) -> None:
    """Have the link by which a start's pods were given their folders lead to its attempt."""
    if link_text(link) != str(staging.attempt):
        new = temporary(link)
        symlink(str(staging.attempt), new)
        rename(new, link)


def _starts(table: dict[str, int], submitted: int) -> dict[str, int]:
    """Return the attempts of a gang's starts by number of restarts."""
    prefix = f"{submitted}."
    return {name.removeprefix(prefix): attempt for name, attempt in table.items() if name.startswith(prefix)}


def _restarts(table: dict[str, int]) -> int:
    """Return the restarts of a job over all its submissions."""
    starts = [name.partition(".")[0] for name in table if "." in name and not name.endswith(AS_IT_WAS)]
    return len(starts) - len(set(starts))


def _count(restart: str) -> int:
    return sum(map(int, restart.split("-")))


def _make_folders(staging: Staging, spec: JobSpec) -> None:
    """Create the folders that pods mount: a kubelet would make them root's, and no pod could write there."""
    for role in spec.roles:
        for index in range(role.replicas):
            for output in spec.staged or ("",):
                staging.output(role.name, index, output).mkdir(parents=True, exist_ok=True)
    for name in (GANG, PODS):
        (staging.root / name).mkdir(exist_ok=True)
    symlink(str(staging.attempt), staging.root / _MADE)


def _takes_place(staging: Staging, replica: str, pod: str) -> bool:
    """Register a pod as this replica of this attempt; False where another pod is registered."""
    try:
        symlink(pod, staging.root / PODS / replica)  # created in one step, with its text
    except FileExistsError:
        return False
    return True
