"""What the last run of a Dag came to where it succeeded whole, so that a resume that keeps all of it needs no Airflow.

It counts while nothing below the folder of Dags was touched since that run began, and while the same muster asks.
What a deployment answers with by now only its backend knows, so a run that deployed is not remembered.
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

    :param file: where it is.
    """

    file: Path
    dags: Path

    def begin(self) -> str:
        """Forget, since a run begins; return what :meth:`end` needs: how the Dags stand now, and which run it is."""
        begun = f"{self._standing()} {os.urandom(8).hex()}"
        self.file.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk: the run itself says so, and nothing is remembered
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
        with suppress(OSError, SpecError):  # what cannot be kept, Airflow is asked
            if self._read().get("begun") == begun:
                text = dumps(replace(result, stages=stages, seconds=0.0))
                found = {"standing": begun.partition(" ")[0], "result": text}
                write_whole(self.file, json.dumps(found), durable=False)

    def recall(self) -> RunResult | None:
        """Return how the last run ended, every stage kept; None where that has to be looked at anew."""
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
        except (FileNotFoundError, ValueError):  # the power went while it was written
            return {}

    def _standing(self) -> str:
        """Names, sizes and times of all files below the folder of Dags, with who looks, as one digest.

        Airflow reads Dags behind links too. What a link to a folder leads to is not looked at here, so that no two
        looks agree where there is one.
        """
        found = [__version__, str(self.dags)]
        for folder, folders, files in os.walk(self.dags):
            found += [os.urandom(8).hex() for name in folders if Path(folder, name).is_symlink()]
            folders[:] = sorted(name for name in folders if name not in _PASSED_OVER)
            for name in sorted(files):
                with suppress(FileNotFoundError):  # an editor's own
                    stat = Path(folder, name).stat()
                    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
                    found.append(f"{folder}/{name} {stat.st_size} {times} {stat.st_ino}")
        return hashlib.blake2b("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()
