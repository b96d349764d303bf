"""Decides how a gang goes on whose replicas end: in the pods that it has, or as the cluster decides by how they end.

Each replica says when none of its processes is left, and how it ended. Once one that was lost has said so, the others
stop. When all have, the next attempt begins in the same pods; where it cannot, all are told that it ends, and nothing is
decided about this attempt again. What was said and decided is in files, so another process of the service goes on::

    staging/<job>/<attempt>/gone/<attempt>/<role>-<index>.json     what a replica said
                                           stop                    when they were last asked to stop for another size
                                           since                   when the first said so
                                           ends                    why it ends in these pods
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.core import wire
from muster.core.job import JobSpec
from muster.core.replica import Going, Gone, Outlook, first_fault, starts_again
from muster.core.status import JobState
from muster.volumes.base import Staging
from muster.volumes.durability import text_of, translated, write_whole
from muster.volumes.handing_over import all_gone, note_gone, replicas_of, said_by
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Bells
from muster.volumes.service.starts import AS_IT_WAS, IN_PLACE, GangStarts

PEERS_SECONDS = 20.0
"""How long the other replicas may take to stop, once one is gone: of ranks that are told to end, :meth:`.Replica.ending_seconds` at most."""

ASKER_SECONDS = 20.0
"""How long a gang that was asked to stop for another size waits for it, before it goes on as it was in the same pods."""

_AS_IT_WAS = (
    "[muster] it was to go on with another number of replicas, and who asked for that is gone: it goes on from its "
    "checkpoint with as many as before"
)

_SINCE, _STOP, _ENDS, _GIVEN_UP = "since", "stop", "ends", "given up: "


@dataclass(frozen=True)
class Regrouping:
    """The gangs of one store whose replicas end."""

    starts: GangStarts
    committer: Committer
    bells: Bells

    def say_gone(self, job_id: str, attempt: int, replica: str, said: Gone) -> Outlook:
        """Note that none of a replica's processes is left, and return how its gang goes on.

        :raises Conflict: the attempt is over, and these pods are not those of the next. :raises Over: the job has ended.
        """
        first = False
        with self.committer.alone(job_id), translated(f"note the end of a replica of job {job_id}"):
            staging = self.starts.store.staging(job_id)
            if (
                staging is not None
                and staging.attempt == attempt
                and self.starts.again(job_id, attempt) is None
            ):
                first = not _gone(staging)
                note_gone(staging, replica, wire.dumps(said).encode(), replace=not said.stays)
        outlook = self.outlook(job_id, attempt, news={replica: said})
        if first or outlook.going is not Going.STOPS:
            self.bells.ring(job_id)
        return outlook

    def outlook(self, job_id: str, attempt: int, *, news: Mapping[str, Gone] | None = None) -> Outlook:
        """Return how an attempt of a gang goes on; an attempt that starts again has begun then.

        :param news: what a replica has just said. What others said was weighed when they said it.
        """
        with self.committer.alone(job_id), translated(f"look how job {job_id} goes on"):
            outlook = self._decided(job_id, attempt, news or {})
        if outlook.going is Going.AGAIN:
            self.starts.begin_again(job_id, outlook.attempt)
        return outlook

    def stop(self, job_id: str, attempt: int) -> bool:
        """Have the replicas of an attempt stop for another size; whether no process of it is left.

        Their pods wait for the attempt of that size. Who does not begin it, and asks no more, has given it up.

        :raises Conflict: it is not the current one. :raises Over: the job has ended.
        """
        with self.committer.alone(job_id), translated(f"stop the gang of job {job_id}"):
            staging = self.starts.current(job_id, attempt)
            self.committer.check_going_on(job_id)
            if staging.attempt != attempt:  # it begins only now, in the pods of the one before
                return False
            staging.gone.mkdir(parents=True, exist_ok=True)
            write_whole(staging.gone / _STOP, str(time.time()), durable=False)
            gone = all_gone(staging, self.starts.store.ledger.spec(job_id))
        self.bells.ring(job_id)
        return gone

    def due_seconds(self, job_id: str, attempt: int) -> float | None:
        """Return in how many seconds an attempt that stops has waited long enough; None where it does not stop."""
        staging = self.starts.store.staging(job_id)
        if staging is None or staging.attempt != attempt or not _gone(staging):
            return None
        asked, now = _asked_to_stop(staging) or 0.0, time.time()
        due = (_stops_since(staging) + PEERS_SECONDS, asked + ASKER_SECONDS)
        return min((each - now for each in due if each > now), default=0.0)

    def _decided(self, job_id: str, attempt: int, news: Mapping[str, Gone]) -> Outlook:
        again = self.starts.again(job_id, attempt)
        if again is not None and self.starts.newest(job_id) == again:
            return Outlook(going=Going.AGAIN, attempt=again)
        staging = self.starts.current(job_id, attempt)
        ends = _why_it_ends(staging)
        if ends is not None:
            return ends
        self.committer.check_going_on(job_id)
        spec = staging.as_begun(self.starts.store.ledger.spec(job_id))
        gone = _gone(staging)
        asked = _asked_to_stop(staging)
        if not gone and asked is None:
            return Outlook(going=Going.RUNS)
        missing = [replica for replica in replicas_of(spec) if replica not in gone]
        said = news if missing else _said(staging, spec)
        why = self._why_not(staging, spec, said, missing, asked=asked is not None)
        if why:
            write_whole(staging.gone / _ENDS, why, durable=False)
            return _ends(why)
        if missing or (asked is not None and time.time() < asked + ASKER_SECONDS):
            return Outlook(going=Going.STOPS)
        # Whose peer was asked first says that it was lost: where all were asked, none was.
        self.starts.tell_again(job_id, attempt, suffix=IN_PLACE if asked is None else AS_IT_WAS)
        line = _AS_IT_WAS if asked is not None else _starts_again(said)
        self.committer.tell(job_id, f"again-{attempt + 1}", line)
        return Outlook(going=Going.AGAIN, attempt=attempt + 1)

    def _why_not(
        self,
        staging: Staging,
        spec: JobSpec,
        said: Mapping[str, Gone],
        missing: Sequence[str],
        *,
        asked: bool,
    ) -> str:
        """Say why the gang cannot go on in its pods; nothing where it can, or may yet."""
        status = self.starts.store.ledger.status(staging.job_id)
        leaving = [replica for replica, gone in said.items() if not gone.stays]
        if leaving:
            return f"the pod of replica {leaving[0]} ends"
        if status.verdict is not None or status.state is JobState.COMMITTING:
            return "the job ends"
        if sealed := _named_in(staging.root / "sealed"):
            return f"replica {min(sealed)} has sealed, and its pod has ended"
        fault = first_fault([gone.report for gone in said.values()])
        if fault is None and not missing and not asked:
            return "its replicas were told to stop"
        if fault is not None and not fault.cause.restarts_gang:
            return f"no gang starts again after this: {fault.cause.value}"
        if fault is not None and not asked and (why := self._spent(staging.job_id, spec)):
            return why
        if missing and time.time() >= _stops_since(staging) + PEERS_SECONDS:
            return f"replica {missing[0]} does not say that it has stopped"
        return ""

    def _spent(self, job_id: str, spec: JobSpec) -> str:
        """Say that a gang that lost a rank was started as often as it may; nothing where it may again."""
        used = self.starts.restarts(job_id)
        if used < spec.max_restarts:
            return ""
        mark = _GIVEN_UP if self.starts.only_in_place(job_id) else ""
        return f"{mark}it was started again {used} times, and max_restarts is {spec.max_restarts}"


def _starts_again(said: Mapping[str, Gone]) -> str:
    fault = first_fault([gone.report for gone in said.values()])
    assert fault is not None  # without one it ends
    return starts_again(fault)


def _asked_to_stop(staging: Staging) -> float | None:
    """When an attempt was last asked to stop for another size, in seconds since the epoch; None where it never was."""
    asked = text_of(staging.gone / _STOP)
    return None if asked is None else float(asked or 0)  # empty if the release before wrote it


def _gone(staging: Staging) -> set[str]:
    return _named_in(staging.gone)


def _named_in(folder: Path) -> set[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError:
        return set()
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def _said(staging: Staging, spec: JobSpec) -> dict[str, Gone]:
    found = {replica: said_by(staging, replica) for replica in replicas_of(spec)}
    return {replica: wire.loads(Gone, said) for replica, said in found.items() if said is not None}


def _why_it_ends(staging: Staging) -> Outlook | None:
    """Return what was decided before: it ends."""
    why = text_of(staging.gone / _ENDS)
    return None if why is None else _ends(why)


def _ends(why: str) -> Outlook:
    return Outlook(going=Going.ENDS, why=why.removeprefix(_GIVEN_UP), given_up=why.startswith(_GIVEN_UP))


def _stops_since(staging: Staging) -> float:
    """When the first replica was gone, by the service's clock; seconds since the epoch."""
    path = staging.gone / _SINCE
    if (since := text_of(path)) is None:
        write_whole(path, since := str(time.time()), durable=False)
    return float(since)
