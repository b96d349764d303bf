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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import Conflict, SpecError
from muster.volumes.base import Staging
from muster.volumes.durability import translated, write_whole
from muster.volumes.folder import FolderStore

_RESTART = re.compile(r"\d{1,9}(-\d{1,9}){0,3}\Z", re.ASCII)


@dataclass(frozen=True)
class Starts:
    """The starts of every job of one store. Only one of us may ask for the same job at a time."""

    store: FolderStore

    def asked(self, job_id: str, request: str) -> Staging:
        """The attempt of an operator's request, begun where it is new.

        :raises Conflict: another has begun since, or the job has sealed or ended.
        """
        return self._begin(job_id, f"request:{request}", self._table(job_id))

    def restarted(self, job_id: str, *, submitted: int, restart: str) -> Staging:
        """The attempt of one start of a gang, begun where nobody of that start has asked yet.

        :param submitted: the attempt that the gang was submitted with.
        :param restart: how often the cluster has started it again.
        :raises Conflict: the gang was started again since, under whichever name.
        """
        if not _RESTART.match(restart):
            raise SpecError(
                f"restart {restart!r:.60}: expected how often the gang was started again, such as 1 or 1-0"
            )
        name, table = f"{submitted}.{restart}", self._table(job_id)
        starts = _starts(table, submitted)
        if not starts:
            table[name] = submitted
            self._write(job_id, table)
        elif restart not in starts:
            self._check_newest(job_id, starts, restart)
        staging = self._begin(job_id, name, table)
        with suppress(FileExistsError), translated(f"link the attempt of {job_id}"):
            (staging.root.parent / name).symlink_to(str(staging.attempt))
        return staging

    def descends(self, job_id: str, attempt: int, *, submitted: int) -> bool:
        """Whether an attempt is a start of the gang that was submitted with another."""
        return attempt == submitted or attempt in _starts(self._table(job_id), submitted).values()

    def _check_newest(self, job_id: str, starts: dict[str, int], restart: str) -> None:
        current = self.store.staging(job_id)
        newest = max(starts, key=_count)
        if _count(restart) <= _count(newest):
            raise Conflict(
                f"job {job_id}: start {restart} of its gang comes after start {newest}: it is fenced"
            )
        if current is None or current.attempt > starts[newest]:
            raise Conflict(f"job {job_id} was started again under another attempt: start {restart} is fenced")

    def _begin(self, job_id: str, name: str, table: dict[str, int]) -> Staging:
        with translated(f"begin an attempt of job {job_id}"), self.store.attempts.alone(job_id):
            before = self.store.staging(job_id)
            current = 0 if before is None else before.attempt
            if name not in table:
                begun = {each: attempt for each, attempt in table.items() if attempt <= current}
                table = {**begun, name: current + 1}
                self._write(job_id, table)
            if before is not None and table[name] == current:
                return before
            if table[name] < current:
                raise Conflict(f"job {job_id}: attempt {table[name]} is fenced, the current one is {current}")
            return self.store.attempts.begin(job_id)

    def _table(self, job_id: str) -> dict[str, int]:
        path = self._path(job_id)
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def _write(self, job_id: str, table: dict[str, int]) -> None:
        write_whole(self._path(job_id), json.dumps(table))

    def _path(self, job_id: str) -> Path:
        return self.store.ledger.check(job_id) / "starts.json"


def _starts(table: dict[str, int], submitted: int) -> dict[str, int]:
    """The attempts of a gang's starts, by how often it was started again."""
    prefix = f"{submitted}."
    return {name.removeprefix(prefix): attempt for name, attempt in table.items() if name.startswith(prefix)}


def _count(restart: str) -> int:
    return sum(map(int, restart.split("-")))
