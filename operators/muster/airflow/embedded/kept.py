"""The result of a Dag's last run, if all of it succeeded: a resume that keeps everything then needs no Airflow.

It is valid while no file below the folder of Dags has changed since that run began, and for the same muster.
Only a backend knows a deployment's present state, so a run that deployed is not remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from muster import __version__
from muster.airflow.embedded.result import RunResult
from muster.core.errors import SpecError
from muster.core.wire import dumps, loads
from muster.volumes.durability import write_whole

_PASSED_OVER = frozenset({"__pycache__", ".git"})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The memory of one Dag.

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
