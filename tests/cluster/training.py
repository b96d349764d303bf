"""A gang in training on the test cluster, with what the tests of faults ask and do while it trains.

Two replicas of two ranks, on a new card and an old one, so on two nodes: of the new ones there is
another where one is lost.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import kubectl, left
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout, Node, node_called

from muster.backends.base import Backend
from muster.backends.kubernetes.labels import JOB, ROLE
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState, JobStatus
from muster.images.folders import find_image, put_image

CODE = Path(__file__).with_name("code")
NEW, OLD = "new", "old"
STEPS = 28
MANY = 10  # of each fault, in make soak
LONGEST_SECONDS = 300.0

_BEGINS = re.compile(r"begins at step (\d+)")


def spec(backend: Backend, *, volume: str, priority: str = "low", max_restarts: int = 0) -> JobSpec:
    """Return the job, whose model goes to `volume`."""
    return JobSpec(
        name="faults.train",
        image="train",
        image_digest=put_image(backend.store, find_image("train", [shipped("images")])),
        code=backend.store.put(CODE, ["train.py"]),
        roles=(_role(NEW, "gpu-a100"), _role(OLD, "gpu-k80")),
        launcher=Launcher.TORCHRUN,
        outputs={"model": OutputTarget(volume=volume)},
        params={"steps": STEPS, "pause_seconds": 0.4},
        grace_seconds=2.0,
        priority=priority,
        max_restarts=max_restarts,
    )


def _role(name: str, gpu_class: str) -> Role:
    resources = Resources(cpus=0.1, memory_gib=1.5, gpus=1, gpu_class=(gpu_class,))
    return Role(name=name, replicas=1, ranks=2, entrypoint="train:train", resources=resources)


@dataclass
class Training:
    """One job that was submitted, followed to its end as a task's trigger follows it.

    :param max_restarts: how many starts that count it survives; those that are free are no part of them.
    """

    layout: Layout
    backend: Backend
    job_id: str
    volume: str
    max_restarts: int = 0
    lines: list[str] = field(default_factory=list)
    states: list[JobStatus] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self) -> None:
        """Submit it, and follow it from here on."""
        job = spec(self.backend, volume=self.volume, max_restarts=self.max_restarts)
        self.backend.submit(job, job_id=self.job_id)
        threading.Thread(target=self._followed, daemon=True).start()

    def _followed(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            with self.changed:
                self.broken.append(error)
                self.changed.notify_all()

    async def _follow(self) -> None:
        async for event in self.backend.watch(self.job_id):
            with self.changed:
                self.lines += event.lines
                if event.status is not None:
                    self.states.append(event.status)
                self.changed.notify_all()

    def until(self, what: str, condition: Callable[[JobStatus], bool]) -> JobStatus:
        """Return its status as soon as that is so."""
        with self.changed:
            self.changed.wait_for(lambda: self.broken or self._holds(condition), LONGEST_SECONDS)
            for error in self.broken:
                raise error
            if self._holds(condition):
                return self.states[-1]
        last = self.states[-1] if self.states else None
        raise AssertionError(
            f"{self.job_id} is not {what} after {LONGEST_SECONDS:g} s: {last}\n" + "\n".join(self.lines[-20:])
        )

    def _holds(self, condition: Callable[[JobStatus], bool]) -> bool:
        return bool(self.states) and condition(self.states[-1])

    def until_step(self, step: int) -> None:
        """Return when it has done so many steps."""
        self.until(f"at step {step}", lambda status: _step(status) >= step or status.state.ended)
        assert not self.states[-1].state.ended, self.states[-1]

    def until_ended(self) -> JobStatus:
        return self.until("at its end", lambda status: status.state.ended)

    def until_runs_again(self, since: float, *, restarts: int) -> float:
        """Return after how many seconds the whole gang ran, started again so often; or went on, if it was not."""
        step = _step(self.states[-1])

        def runs(status: JobStatus) -> bool:
            on = status.restarts >= restarts if restarts else _step(status) > step
            return (status.state is JobState.RUNNING and on) or status.state.ended

        self.until("running again", runs)
        return time.monotonic() - since

    def began_at(self) -> list[int]:
        """From which step each of its starts went on."""
        return [int(step) for line in self.lines for step in _BEGINS.findall(line)]

    def pod(self, role: str) -> str:
        """Return the name of a role's pod that is not about to end."""
        return self._of_pod(role, "{.items[0].metadata.name}")

    def pods(self) -> set[str]:
        """Return the uids of its pods that run."""
        path = "jsonpath={.items[?(@.status.phase=='Running')].metadata.uid}"
        selector = f"--selector={JOB}={self.job_id}"
        words = ("get", "pods", selector, f"--namespace={NAMESPACE}", f"--output={path}")
        return set(kubectl.run(self.layout, *words).split())

    def node(self, role: str) -> Node:
        """Return the node that a role runs on."""
        return node_called(self._of_pod(role, "{.items[0].spec.nodeName}"))

    def digest(self) -> str:
        """Return the digest of the only version of its model."""
        (version,) = self.backend.store.versions(self.volume)
        return version.digest

    def leaked(self) -> list[str]:
        """Return what there is of it on the cluster: objects, and processes on any node."""
        return [*left.objects(self.layout, [self.job_id]), *left.processes(self.layout, b"worker.pyz")]

    def _of_pod(self, role: str, path: str) -> str:
        selector = f"--selector={JOB}={self.job_id},{ROLE}={role}"
        return kubectl.run(
            self.layout, "get", "pods", selector, f"--namespace={NAMESPACE}", f"--output=jsonpath={path}"
        )


def _step(status: JobStatus) -> float:
    told = status.progress.get("step")
    return 0 if told is None else told.value
