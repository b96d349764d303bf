"""Gangs that each fail in a way of their own on the cluster, and what their logs end with.

``python -m tests.cluster exec python -m tests.cluster.faulty`` prints the last 20 lines of each log. What the
gangs run is what :mod:`tests.e2e.faulty` runs on one machine.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import kubectl
from tests.cluster.backend import backend
from tests.cluster.inside import layout
from tests.e2e.faulty import BAD, told

from muster.backends.base import Backend
from muster.core.errors import MusterError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.images.folders import find_image, put_image

SECONDS = 400.0  # a registry that is away is asked for three minutes
SMALL = Resources(cpus=0.1, memory_gib=0.25)
CARDS = Resources(cpus=0.1, memory_gib=0.25, gpus=8, gpu_class=("gpu-a100",))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is asked for, and the verdict on it.

    :param entrypoint: of ``bad.py``. :param refused: nothing is started at all.
    :param held: it has all the new cards and is cancelled, when those that want them have given up.
    """

    cause: Cause
    entrypoint: str = "sleeps"
    resources: Resources = SMALL
    image: str = "python"
    refused: bool = False
    held: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


FAULTS = {
    "cancelled": Fault(cause=Cause.CANCELLED, resources=CARDS, held=True),
    "waits": Fault(cause=Cause.QUEUE_TIMEOUT, resources=CARDS, changes={"queue_timeout_seconds": 1.0}),
    "user_error": Fault(cause=Cause.USER_ERROR, entrypoint="user_error"),
    "spec_error": Fault(cause=Cause.SPEC_ERROR, entrypoint="spec_error", changes={"params": {"epoch": 3}}),
    "killed": Fault(cause=Cause.RANK_LOST, entrypoint="killed", changes={"max_restarts": 1}),
    "grows": Fault(cause=Cause.OUT_OF_MEMORY, entrypoint="grows"),
    "hangs": Fault(
        cause=Cause.HANG, entrypoint="hangs", changes={"hang_timeout_seconds": 8.0, "max_restarts": 1}
    ),
    "too_slow": Fault(cause=Cause.RUN_TIMEOUT, changes={"run_timeout_seconds": 5.0}),
    "too_big": Fault(cause=Cause.UNSCHEDULABLE, resources=Resources(memory_gib=100_000), refused=True),
    "no_image": Fault(cause=Cause.IMAGE_UNAVAILABLE, image="elsewhere"),
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one of them ended. :param lines: of its log; where nothing was started, what was said instead."""

    job_id: str
    status: JobStatus | None
    lines: list[str]


class Faulty:
    """Submits them, and waits for their ends."""

    def __init__(self, there: Backend, folder: Path) -> None:
        self._there, self._folder, self._run = there, folder, secrets.token_hex(3)
        (folder / "faults").mkdir(parents=True)
        (folder / "faults" / "bad.py").write_text(BAD)
        self._code = there.store.put(folder, ["faults/bad.py"])

    def run(self, faults: Mapping[str, Fault]) -> dict[str, Ended]:
        """Return how each ended; they run side by side."""
        ids = {name: f"{name.replace('_', '-')}-{self._run}" for name in faults}
        refused = {
            name: said for name in faults if (said := self._begin(faults[name], ids[name])) is not None
        }
        held = [name for name in faults if faults[name].held]
        for name in sorted(faults.keys() - refused.keys(), key=lambda name: faults[name].held):
            if name in held:
                self._there.cancel(ids[name])
            kubectl.until(
                f"{name} has ended",
                lambda name=name: self._there.status(ids[name]).state.ended,
                seconds=SECONDS,
            )
        return {name: self._ended(ids[name], refused.get(name)) for name in faults}

    def _begin(self, fault: Fault, job_id: str) -> list[str] | None:
        try:
            self._there.submit(self._spec(fault, job_id), job_id=job_id)
        except MusterError as error:
            if not fault.refused:
                raise
            return [f"{type(error).__name__}: {error}"]
        if fault.held:
            kubectl.until(
                f"{job_id} runs",
                lambda: self._there.status(job_id).state is JobState.RUNNING,
                seconds=SECONDS,
            )
        return None

    def _spec(self, fault: Fault, job_id: str) -> JobSpec:
        role = Role(replicas=2, entrypoint=f"faults.bad:{fault.entrypoint}", resources=fault.resources)
        return JobSpec(
            name=f"faults.{job_id}",
            image=fault.image,
            image_digest=put_image(self._there.store, self._image(fault.image)),
            code=self._code,
            roles=(role,),
            launcher=Launcher.TORCHRUN,
            **{"grace_seconds": 2.0, **fault.changes},
        )

    def _image(self, name: str) -> Path:
        """The folder of an image; one that is not shipped is known to the store, and no registry has it."""
        if name == "python":
            return find_image(name, [shipped("images")])
        folder = self._folder / "images" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requirements.txt").write_text("# an environment that is not built\n")
        return folder

    def _ended(self, job_id: str, refused: list[str] | None) -> Ended:
        if refused is not None:
            return Ended(job_id=job_id, status=None, lines=refused)
        return Ended(job_id=job_id, status=self._there.status(job_id), lines=self._log(job_id))

    def _log(self, job_id: str) -> list[str]:
        text, after = b"", 0
        while True:
            more, after = self._there.store.ledger.read(job_id, after=after)
            if not more:
                return text.decode().splitlines()
            text += more


def main() -> None:
    """Print the last 20 lines of each log."""
    with tempfile.TemporaryDirectory() as folder, backend(layout(), Path(folder)) as there:
        for name, ended in Faulty(there, Path(folder) / "work").run(FAULTS).items():
            print(told(f"{name} ({FAULTS[name].cause.value})", ended.lines))


if __name__ == "__main__":
    main()
