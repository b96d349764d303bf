"""Turns this process into an Airflow: its home, its settings, its migrated database.

Everything here happens before Airflow is imported, because it reads its configuration then. So are runs noted that
``muster run`` was asked for: of a process that is killed before its run is in Airflow's database, only this note is left.
It tells a resume that the newest run in the database is not the one that was meant.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from muster import __version__
from muster.airflow.embedded import cleaning
from muster.airflow.embedded.database import DATABASE, migrate
from muster.airflow.embedded.result import RunResult
from muster.airflow.site import kept_name
from muster.core import wire
from muster.core.errors import MusterError, SpecError
from muster.core.interpreters import python_command
from muster.core.locks import is_locked, locked_if_free
from muster.core.origin import MUSTER_RUN
from muster.core.settings import Settings
from muster.core.wire import dumps, loads
from muster.volumes.durability import write_whole

LOG_BYTES = 50 << 20
ABSENCES = "muster.volumes.service.connection"
_PASSED_OVER = frozenset({"__pycache__", ".git"})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The result of a Dag's last run, if all of it succeeded: a resume that keeps everything then needs no Airflow.

    It is valid while no file below the folder of Dags has changed since that run began, and for the same muster.
    Only a backend knows a deployment's present state, so a run that deployed is not remembered.

    :param file: its path.
    """

    file: Path
    dags: Path

    def begin(self) -> str:
        """Forget the last result, since a run begins; return a token for :meth:`end`: the Dags' present state and a name."""
        begun = f"{self._standing()} {os.urandom(8).hex()}"
        self.file.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk: the run itself reports it, and nothing is remembered
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps({"begun": begun}), durable=False)
        return begun

    def end(self, result: RunResult, begun: str) -> None:
        """Remember how a run ended, unless another has begun since."""
        if not result.succeeded or result.only or result.warnings or result.deployments:
            return
        stages = tuple(
            replace(stage, kept=True, seconds=None, overhead_seconds=None) for stage in result.stages
        )
        with suppress(OSError, SpecError):  # without the file, Airflow is asked
            if self._read().get("begun") == begun:
                text = dumps(replace(result, stages=stages, seconds=0.0))
                found = {"standing": begun.partition(" ")[0], "result": text}
                write_whole(self.file, json.dumps(found), durable=False)

    def recall(self) -> RunResult | None:
        """Return the last run's result, with every stage kept; None if Airflow must be asked."""
        kept = self._read()
        if kept.get("standing") != self._standing():
            return None
        try:
            return loads(RunResult, kept["result"])
        except SpecError:  # of another release
            return None

    def _read(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.file.read_bytes()))
        except (FileNotFoundError, ValueError):  # a power cut hit while it was written
            return {}

    def _standing(self) -> str:
        """Return one digest of the names, sizes and times of all files below the folder of Dags, and of this muster.

        Airflow reads Dags behind links too. The target of a link to a folder is not read here, so with one no
        two digests agree.
        """
        found = [__version__, str(self.dags)]
        for folder, folders, files in os.walk(self.dags):
            found += [os.urandom(8).hex() for name in folders if Path(folder, name).is_symlink()]
            folders[:] = sorted(name for name in folders if name not in _PASSED_OVER)
            for name in sorted(files):
                with suppress(FileNotFoundError):  # an editor's temporary file
                    stat = Path(folder, name).stat()
                    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
                    found.append(f"{folder}/{name} {stat.st_size} {times} {stat.st_ino}")
        return hashlib.blake2b("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class EmbeddedHome:
    """One AIRFLOW_HOME below MUSTER_HOME.

    :param dags: the folder of its Dags.
    """

    settings: Settings
    dags: Path

    @property
    def root(self) -> Path:
        """AIRFLOW_HOME."""
        return self.settings.home / "airflow"

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        return self.root / DATABASE

    @property
    def notes(self) -> RequestNotes:
        """The notes of requested runs, and the locks of running ones."""
        return RequestNotes(self.root / "runs")

    def kept(self, dag_id: str) -> Kept:
        """The result of a Dag's last run, if all of it succeeded."""
        return Kept(file=self.root / "runs" / f"{dag_id}.kept", dags=self.dags)

    @property
    def log(self) -> Path:
        """The log of Airflow and its tasks."""
        return self.root / "logs" / "muster-run.log"

    def environment(self) -> dict[str, str]:
        """Airflow's configuration: quiet, local, without settings of another Airflow on this machine."""
        return {
            "AIRFLOW_HOME": str(self.root),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__DAGBAG_IMPORT_ERROR_TRACEBACK_DEPTH": "50",  # so that a message names the Dag's own line
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # The run and its tasks are processes of their own: each waits this many seconds for the others' writes.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.database}?timeout=30",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.root / "logs"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__LOGGING__SECRET_MASK_ADAPTER": "muster.core.masking.forms",
            "AIRFLOW__METRICS__LEGACY_NAMES_ON": "False",  # else each process reads a table of them, for 0.3 s
            # The provider would ask the operator in a fork, which has no thread that answers Airflow's API.
            "AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD": "True",
            "AIRFLOW__MUSTER__INSTANCE": f"{kept_name(self.settings)}-run",  # `muster up` is another Airflow
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "MUSTER_HOME": str(self.settings.home),
            "MUSTER_CACHE": str(self.settings.cache),
        }

    def check(self) -> None:
        """Refuse a home without Dags. :raises SpecError: there is no folder of Dags."""
        if not self.dags.is_dir():
            raise SpecError(
                f"no folder of Dags at {self.dags}: go to the folder that holds dags/, or name it with --dags"
            )

    def enter(self) -> None:
        """Make this process the home's Airflow, for good, and ensure that the database is migrated.

        :raises SpecError: there is no folder of Dags, or the home cannot be written.
        :raises MusterError: Airflow was imported already with another home.
        """
        self.check()
        before = getattr(sys.modules.get("airflow.configuration"), "AIRFLOW_HOME", None)
        if before not in (None, str(self.root)):
            raise MusterError(f"Airflow was imported with AIRFLOW_HOME={before}; this run needs {self.root}")
        forget_airflow(os.environ)
        try:
            self.settings.make_home()
            (self.root / "logs").mkdir(parents=True, exist_ok=True)
            os.environ.update(self.environment())
            migrate(self.root, cache=self.settings.cache, environment=os.environ)
            self._keep_clean()
        except OSError as error:
            raise SpecError(f"MUSTER_HOME {self.settings.home} cannot be written: {error}") from error

    def _keep_clean(self) -> None:
        """Once a day, begin a process that deletes rows and logs of old runs; no run waits for it."""
        if cleaning.due_in(self.root) <= 0:
            (self.root / cleaning.MARKER).touch()
            with (self.root / "logs" / "cleaning.log").open("wb") as log:
                subprocess.Popen(
                    python_command("-m", cleaning.__name__),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )


@cache
def quieten(log: Path) -> None:
    """Redirect the logs of Airflow and its tasks to a file, so that the terminal is the listener's.

    That the store does not answer is told on both. The file is open until the process ends. A large one is first moved to ``.old``.
    """
    from muster.airflow.upstream.internals import configure_logging

    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".old"))
    configure_logging(log_level="INFO", colors=False, output=log.open("a", encoding="utf-8", buffering=1))
    logging.getLogger(ABSENCES).addHandler(Terminal(logging.WARNING))


class Terminal(logging.Handler):
    """Tells a person who waits, too: a store that does not answer is nowhere else to be seen."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        sys.stderr.write(f"[muster] {record.getMessage()}\n")
        sys.stderr.flush()


def forget_airflow(environment: MutableMapping[str, str]) -> None:
    """Drop the settings of another Airflow and its tasks; secrets and connections of this shell stay."""
    for name in list(environment):
        if name.startswith(("AIRFLOW__", "AIRFLOW_CTX_")) or name == "AIRFLOW_CONFIG":
            del environment[name]


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
