"""What every platform promises about deployments, kept for models that are Python: the same contract, in workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import DeploymentsContract, Lines, OnThisMachine, commands, smoke
from tests.serving.python_model import write_line
from tests.waiting import eventually

from muster.backends.releases.decision import Ending
from muster.core.data import Pinned
from muster.core.deployment import Batch, DeploymentSpec, Workers

pytestmark = pytest.mark.slow


class PythonLines(Lines):
    """Versions of ``y = slope * x`` that are ``predict.py``; their workers' image is the servers'."""

    @pytest.fixture
    def version(self, store: Any, volume: str, tmp_path: Path) -> Callable[[float], Pinned]:
        def commit(slope: float) -> Pinned:
            pinned: Pinned = store.add(volume, write_line(tmp_path / "line", slope=slope)).pinned
            return pinned

        return commit

    @pytest.fixture
    def workers(self, image: str) -> Workers:
        """How the model runs."""
        return Workers(image=self.server, image_digest=image)

    @pytest.fixture
    def spec(
        self, name: str, image: str, version: Callable[[float], Pinned], workers: Workers
    ) -> Callable[..., DeploymentSpec]:
        def write(slope: float, *, of_two: float | None = None, **more: Any) -> DeploymentSpec:
            expected = smoke(of_two=2 * slope if of_two is None else of_two)
            fields = {"model": version(slope), "smoke": expected, "workers": workers} | more
            return DeploymentSpec(
                name=name, image=self.server, image_digest=image, server=self.server, **fields
            )

        return write


@pytest.mark.data
@pytest.mark.nightly  # all of the contract, which ONNX models keep in `make test`
class TestLocalDeploymentsOfPython(PythonLines, OnThisMachine, DeploymentsContract):
    """The whole contract, with one worker and with a batch."""

    @pytest.fixture
    def workers(self, image: str) -> Workers:
        return Workers(image=self.server, image_digest=image, count=2, batch=Batch(most=8, wait_ms=1))


class TestWorkersOnThisMachine(PythonLines, OnThisMachine):
    """What one machine promises of workers."""

    def test_a_worker_that_ends_is_told_of_and_answers_again(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        revision = self.serve(deployments, spec(2)).champion
        assert revision is not None
        assert self.infer(deployments, name, 3) == (revision.name, 6.0)
        (worker,) = workers_of(name)
        os.kill(worker, signal.SIGKILL)
        seen = eventually(
            lambda: (one := deployments.deployment(name).called(revision.name)).restarts == 1 and one
        )
        assert seen.percent == 100
        eventually(lambda: self.answers(deployments, name) == revision.name)
        eventually(lambda: not deployments.deployment(name).reason)
        assert workers_of(name) != [worker]
        assert self.release(deployments, spec(3, of_two=0)).ending is Ending.ROLLED_BACK
        assert self.infer(deployments, name, 3) == (revision.name, 6.0)


def workers_of(name: str) -> list[int]:
    """Return the workers of a deployment: the children of its model servers."""
    servers = {pid for pid, words in commands() if name.encode() in words and b"muster_serving" in words}
    return [
        pid
        for pid, words in commands()
        if b"muster_serving.process.worker" in words and _parent(pid) in servers
    ]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
