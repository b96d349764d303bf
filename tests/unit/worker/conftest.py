"""Runs the real worker, as a backend does: a folder of sources, a Replica file, a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import GUARD_SECONDS

from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import PartManifest, Replica, Report
from muster.core.resources import Resources
from muster.core.wire import dumps, loads
from muster.images.worker_archive import worker_folder

DIGEST = "b3:" + "0" * 64
IMPORT_SECONDS = 300.0  # torch, the first time


@dataclass
class Ended:
    """What a worker left."""

    code: int
    log: str
    report: Report | None
    part: PartManifest | None

    @property
    def lines(self) -> list[str]:
        """The log without what a job uses, which a replica tells that a busy machine has for more than 2 seconds."""
        return [line for line in self.log.splitlines() if not line.startswith("[use ")]


@dataclass
class Bench:
    """One replica's folders, and the worker to run in them."""

    worker: Path
    root: Path
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def code(self, **files: str) -> None:
        """Write modules of the author: ``train="def f(): …"``; ``pipe__train`` lies in a folder."""
        for name, text in files.items():
            path = self.root / "code" / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def replica(
        self,
        *,
        entrypoint: str | None = None,
        command: tuple[str, ...] | None = None,
        ranks: int = 1,
        inputs: Mapping[str, tuple[tuple[str, ...], bool]] | None = None,
        outputs: tuple[str, ...] = (),
        params: Mapping[str, Any] | None = None,
        launcher: str = "plain",
        roles: tuple[Role, ...] = (),
        role: str = "main",
        index: int = 0,
        attempt: int = 1,
        gpus: tuple[str, ...] = (),
        cpus: float = 1.0,
        port: int = 29500,
        **spec: Any,
    ) -> Replica:
        inputs = inputs or {}
        if not roles:
            asked = Resources(cpus=cpus)
            roles = (Role(entrypoint=entrypoint, command=command, ranks=ranks, resources=asked),)
        pinned = {
            name: Input(
                versions=tuple(
                    Pinned(address=f"volume://in/{name}@{i + 1}", digest=DIGEST) for i in range(len(paths))
                ),
                many=many,
            )
            for name, (paths, many) in inputs.items()
        }
        job = JobSpec(
            name="flights.train",
            image="train",
            image_digest=DIGEST,
            roles=roles,
            launcher=Launcher(launcher),
            inputs=pinned,
            outputs={name: OutputTarget(volume=f"out/{name.lower()}") for name in outputs},
            params=params or {},
            code=DIGEST,
            **spec,
        )
        for folder in ("code", "scratch", "checkpoints", "sealed", *(f"staging/{name}" for name in outputs)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        return Replica(
            job_id="train-abc-1",
            spec=job,
            attempt=attempt,
            role=role,
            index=index,
            code=str(self.root / "code"),
            inputs={name: paths for name, (paths, _) in inputs.items()},
            staging={name: str(self.root / "staging" / name) for name in outputs},
            checkpoints=str(self.root / "checkpoints"),
            scratch=str(self.root / "scratch"),
            sealed=str(self.root / "sealed" / f"{role}-{index}.json"),
            report=str(self.root / f"report-{role}-{index}.json"),
            master_port=port,
            gpus=gpus,
        )

    def start(self, replica: Replica) -> subprocess.Popen[str]:
        """Start the worker; its log comes through stdout."""
        path = self.root / f"replica-{replica.role}-{replica.index}.json"
        path.write_text(dumps(replica))
        process = subprocess.Popen(
            [self.python, str(self.worker), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **self.environment},
        )
        self.started.append(process)
        return process

    def wait(self, process: subprocess.Popen[str], replica: Replica) -> Ended:
        log, _ = process.communicate(
            timeout=GUARD_SECONDS if self.python == sys.executable else IMPORT_SECONDS
        )
        report, part = Path(replica.report), Path(replica.sealed)
        return Ended(
            code=process.returncode,
            log=log,
            report=loads(Report, report.read_text()) if report.exists() else None,
            part=loads(PartManifest, part.read_text()) if part.exists() else None,
        )

    def run(self, **wanted: Any) -> Ended:
        """Run one replica to its end."""
        replica = self.replica(**wanted)
        return self.wait(self.start(replica), replica)

    def line(self, process: subprocess.Popen[str], text: str) -> str:
        """Read the log until a line holds `text`."""
        assert process.stdout is not None
        for line in process.stdout:
            if text in line:
                return line.rstrip("\n")
        raise AssertionError(f"the log ended without {text!r}")


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker_folder(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def bench(worker: Path, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(worker=worker, root=tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def image_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The Python of a shipped image, built where the cache does not have it."""

    def build(name: str) -> str:
        from muster.core.settings import Settings
        from muster.images.environment import Environments
        from muster.images.folders import find_image, image_folders, put_image
        from muster.volumes.folder import FolderStore

        settings = Settings.load()
        folder = find_image(name, image_folders(settings))
        digest = put_image(FolderStore(tmp_path_factory.mktemp("store")), folder)
        return str(Environments(settings.cache).ensure(name, folder, digest))

    return build
