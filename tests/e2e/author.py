"""A person with a folder of Dags and the installed command: everything real, everything in one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.waiting import until

from muster.airflow.site import INSTANCE
from muster.cli.warm.place import FOLDER, waiting
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore
from muster.volumes.ledger import FolderLedger
from muster.volumes.tree import remove

MUSTER = Path(sys.executable).with_name("muster")
WARM = {"MUSTER_NO_WARM": ""}
"""An author's variables for several runs: a process waits for the next ``muster run``, and ends with the author."""


class Author:
    """One folder with Dags and a home of its own, and every process that has to do with it.

    As a context it leaves nothing running, whatever happened in it.

    :ivar log: what runs that were begun by :meth:`start` have said.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.home = folder / ".muster"
        self.log = folder / "run.log"
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "PYTEST", "MUSTER_HOME", "MUSTER_IMAGES"))
        } | {"MUSTER_HOME": str(self.home), **environment}

    def __enter__(self) -> Author:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_everything()
        for process in self._started:
            process.wait()

    def write(self, dag: str, text: str, **modules: str) -> Path:
        """Write ``dags/DAG/dag.py``, and the modules beside it."""
        folder = self.folder / "dags" / dag
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in {"dag": text, **modules}.items():
            (folder / f"{name}.py").write_text(dedent(source))
        return folder

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin ``muster WORDS`` in a session of its own; it writes to :attr:`log`."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [MUSTER, *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def muster(self, *words: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run ``muster WORDS`` to its end. :param seconds: how long that may take."""
        return subprocess.run(
            [MUSTER, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def ask(self, *words: str) -> Any:
        """Return the JSON document of ``muster WORDS``, which succeeds."""
        ran = self.muster(*words, "--json")
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        return json.loads(ran.stdout)

    def jobs(self) -> list[str]:
        """Every job of the ledger; none where nothing was ever run."""
        return [status.job_id for status in self._statuses()]

    def running(self, name: str = "") -> list[str]:
        """The jobs that run now, or those of one name: a command that says so, asked over and over, keeps a core busy."""
        ids = [status.job_id for status in self._statuses() if status.state is JobState.RUNNING]
        return [job_id for job_id in ids if not name or self._ledger.spec(job_id).name == name]

    @property
    def _ledger(self) -> FolderLedger:
        return FolderStore(self.home / "store").ledger

    def _statuses(self) -> Sequence[JobStatus]:
        return self._ledger.statuses(self._ledger.jobs()) if (self.home / "store").is_dir() else ()

    def is_clean(self) -> bool:
        """Whether nothing in the store is half-written."""
        return bool(self.ask("volumes", "fsck", "--deep")["clean"])

    def processes(self) -> dict[int, str]:
        """Everything that runs in, for or with this folder, found by what the kernel knows of it."""
        mark, found = str(self.folder).encode(), {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if mark in known and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or not ours
                continue
        return found

    def is_quiet(self) -> bool:
        """Whether nothing of this folder runs any more, or within ten seconds."""
        return until(lambda: not self.processes())

    def begin_anew(self) -> None:
        """Leave nothing but the process that waits for the next ``muster run``, and the name of the home, which it has."""
        self.kill_everything(but={note.pid for note in waiting(self.home)})
        self._started.clear()
        kept = (self.home, self.home / FOLDER, self.home / INSTANCE)
        for entry in {*self.folder.iterdir(), *self.home.glob("*")} - {*kept}:
            remove(entry)

    def kill_everything(self, *, but: Collection[int] = ()) -> None:
        """Kill -9 of everything that runs in this folder."""
        while processes := self.processes().keys() - but:
            for pid in processes:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def stages(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The stages of ``muster run --json`` by name."""
    return {stage["task_id"]: stage for stage in document["stages"]}
