"""Notes of requested ``muster run`` runs, written before Airflow is even imported.

If a process is killed before its run is in Airflow's database, only this note is left. It tells a resume
that the newest run in the database is not the one that was meant.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from muster.core import wire
from muster.core.errors import MusterError, SpecError
from muster.core.locks import is_locked, locked_if_free
from muster.core.origin import MUSTER_RUN
from muster.volumes.durability import write_whole


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run that was requested and has not begun.

    :param params: as the user gave them.
    """

    run_id: str
    dag_id: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class RequestNotes:
    """The notes of one home, and the locks that show which processes are alive."""

    folder: Path

    @contextmanager
    def announced(self, dag_id: str, params: Mapping[str, Any]) -> Iterator[None]:
        """Keep a note of a run while a command has it run: a kill before Airflow is there leaves it for ``--resume``.

        :raises SpecError: the home cannot be written.
        """
        with self.asking(dag_id, params) as run_id:
            try:
                yield
            finally:
                self.forget(run_id)

    @contextmanager
    def asking(self, dag_id: str, params: Mapping[str, Any]) -> Iterator[str]:
        """Write the note of a run, hold the run for this process, and yield its id.

        If the run is refused, the note is deleted: the user got the error, and nothing was begun.

        :raises SpecError: the home cannot be written.
        """
        run_id = _new_id()
        with self.own(run_id):
            for left in self.left(dag_id):
                if not self.held(left.run_id):
                    self.forget(left.run_id)
            asked = wire.written(Asked(run_id=run_id, dag_id=dag_id, params=params))
            with self._writing():
                write_whole(self._note(run_id), json.dumps(asked, default=str))
            try:
                yield run_id
            except MusterError:
                self.forget(run_id)
                raise

    def left(self, dag_id: str) -> list[Asked]:
        """Return the requested runs of a Dag that may not have begun, oldest first.

        :raises SpecError: another release of muster wrote a note that this one cannot read.
        """
        found = []
        for path in sorted(self.folder.glob("*.asked")):
            with suppress(FileNotFoundError):  # its run has begun meanwhile, in another process
                found.append(_read(path))
        return [asked for asked in found if asked.dag_id == dag_id]

    def forget(self, run_id: str) -> None:
        """Delete a note: its run has begun, or never will."""
        self._note(run_id).unlink(missing_ok=True)

    @contextmanager
    def own(self, run_id: str) -> Iterator[None]:
        """Hold a run for this process. :raises MusterError: another process holds it."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock(run_id).touch()
        with locked_if_free(self._lock(run_id)) as mine:
            if not mine:
                pid = self._lock(run_id).read_text() or "that has just begun"
                raise MusterError(
                    f"run {run_id} is still going on in process {pid}: wait for it, or end it, kill {pid}, and resume it here"
                )
            with self._writing():
                self._lock(run_id).write_text(str(os.getpid()))
            try:
                yield
            finally:
                self._lock(run_id).write_text("")

    def unended(self) -> dict[str, bool]:
        """Return the runs that have begun and not come to their end, and whether the process of each has died."""
        runs = (path.stem for path in self.folder.glob("*.lock") if path.stat().st_size)
        return {run_id: not self.held(run_id) for run_id in runs}

    def held(self, run_id: str) -> bool:
        """Whether a process holds a run."""
        return is_locked(self._lock(run_id))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        home = self.folder.parent.parent
        try:
            yield
        except OSError as error:
            room = f"; its disk has {shutil.disk_usage(home).free >> 20} MiB free: make room there, then run again"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SpecError(f"MUSTER_HOME {home} cannot be written: {error}{room if full else ''}") from error

    def _lock(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.lock"

    def _note(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.asked"


def _new_id() -> str:
    """Return a unique run id that sorts by time."""
    now = datetime.now().astimezone()
    return f"{MUSTER_RUN}{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06d}-{os.getpid()}"


def _read(path: Path) -> Asked:
    try:
        return wire.build(Asked, json.loads(path.read_bytes()))
    except SpecError as error:
        raise SpecError(
            f"{path}: {error}; run the release of muster that requested this run, or delete the file"
        ) from error
