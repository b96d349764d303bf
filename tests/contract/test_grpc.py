"""What is promised of gRPC: it comes and goes with the revision that leads, and no request is lost meanwhile."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import STEPS, WHOLE, Lines, OnThisMachine, servers
from tests.contract.test_deployments_of_python import PythonLines
from tests.contract.test_predictions import find
from tests.serving.grpc_users import Asker, asking, raw, typed, users, values
from tests.serving.kinds import python_of
from tests.waiting import GUARD_SECONDS, eventually, promptly

from muster.backends.releases.decision import Ending
from muster.backends.releases.manual import roll_back
from muster.backends.request_log import Predictions
from muster.core.deployment import RequestLog
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow


class GrpcLines(Lines):
    """Deployments that are asked over gRPC, too."""

    def grpc_door(self, deployments: Any, name: str) -> tuple[int, str]:
        """Return the port of 127.0.0.1 at which users ask, and the host that they name; empty: the address."""
        return grpc_port(deployments, name), ""


class GrpcContract(GrpcLines):
    """Releases that are asked over gRPC, on one machine and on a cluster.

    :cvar silent: the status of a call where no gRPC is answered.
    """

    silent = "UNAVAILABLE"

    @pytest.fixture
    def python(self) -> Path:
        """An environment that has the protocol's messages, KServe's own, for clients."""
        return python_of(shipped("images") / "kserve")

    @pytest.fixture
    def ask(self, deployments: Any, name: str, python: Path) -> Iterator[Callable[[], Asker]]:
        """Gives a client, once the deployment is there."""
        with ExitStack() as opened:

            def client() -> Asker:
                port, host = self.grpc_door(deployments, name)
                return opened.enter_context(asking(python, port, host=host))

            yield cache(client)

    @pytest.mark.data
    def test_no_request_is_lost_over_a_series_of_releases(
        self, deployments: Any, spec: Any, name: str, python: Path
    ) -> None:
        first = self.serve(deployments, spec(2, grpc=True)).champion
        assert first is not None
        port, host = self.grpc_door(deployments, name)
        with users(python, port, raw(name, [3]), host=host) as answers:
            driver = self.begin(deployments, spec(3, grpc=True), STEPS, by="test")
            assert self.finish(driver).ending is Ending.DONE
            refused = spec(4, grpc=True, of_two=0)
            assert self.release(deployments, refused).ending is Ending.ROLLED_BACK
            roll_back(deployments, name, by="test")
            eventually(lambda: not deployments.deployment(name).release)
        assert self.grpc_door(deployments, name) == (port, host)
        assert set(answers) == {f"revision {first.name}", f"revision {driver.revision}"}

    def test_the_revision_that_leads_says_whether_grpc_is_answered(
        self, deployments: Any, spec: Any, name: str, ask: Any
    ) -> None:
        def answered() -> Any:
            answer = ask().ask("ModelInfer", raw(name, [3]))
            return answer["status"] == "OK" and answer

        self.serve(deployments, spec(2))
        assert deployments.deployment(name).grpc == ""
        self.serve(deployments, spec(3, grpc=True))
        assert values(eventually(answered)) == [9.0]
        place = deployments.deployment(name).grpc
        self.serve(deployments, spec(4))
        assert deployments.deployment(name).grpc == ""
        eventually(lambda: ask().ask("ServerLive")["status"] == self.silent)
        roll_back(deployments, name, by="test")
        assert deployments.deployment(name).grpc == place
        assert values(eventually(answered)) == [9.0]


class Grpc(OnThisMachine, GrpcContract):
    """What one machine promises beside that."""

    @pytest.mark.data
    def test_requests_are_kept_and_a_server_that_is_killed_comes_back(
        self, deployments: Any, spec: Any, name: str, ask: Any, settings: Settings, store: FolderStore
    ) -> None:
        self.serve(deployments, spec(2, grpc=True, log=RequestLog()))
        predictions = Predictions(settings, store)
        for form in (typed, raw):
            answer = ask().ask("ModelInfer", form(name, [3], id="mine"))
            rows, _ = eventually(lambda answer=answer: find(predictions, answer["told"]["muster-prediction"]))
            assert [(row["input_x"], row["output_y"], row["request_id"]) for row in rows] == [
                (3.0, 6.0, "mine")
            ]
        for pid in servers(name):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: ask().ask("ModelInfer", raw(name, [3]))["status"] == "OK")

    @pytest.mark.data
    def test_others_reach_it_with_a_token_and_are_named_in_the_log(
        self, deployments: Any, spec: Any, name: str, ask: Any, settings: Settings, store: FolderStore
    ) -> None:
        wanted = spec(2, grpc=True, host="0.0.0.0", tokens=True, log=RequestLog())
        assert self.release(deployments, wanted, WHOLE).ending is Ending.DONE
        token = deployments.make_token(name, "shop")

        def answered(**more: Any) -> Any:
            return ask().ask("ModelInfer", raw(name, [3]), **more)

        assert eventually(lambda: (found := answered())["status"] != "UNAVAILABLE" and found)["status"] == (
            "UNAUTHENTICATED"
        )
        metadata = [["authorization", f"Bearer {token}"]]
        answer = eventually(lambda: (found := answered(metadata=metadata))["status"] == "OK" and found)
        predictions = Predictions(settings, store)
        (row,), _ = eventually(lambda: find(predictions, answer["told"]["muster-prediction"]))
        assert row["client"] == "shop"
        # an address that only 0.0.0.0 listens on
        socket.create_connection(("127.0.0.2", grpc_port(deployments, name)), timeout=GUARD_SECONDS).close()
        deployments.end_token(name, "shop")
        promptly(lambda: answered(metadata=metadata)["status"] == "UNAUTHENTICATED", seconds=2)


class TestGrpcOnThisMachine(Grpc):
    """Of ONNX models."""


@pytest.mark.data
@pytest.mark.nightly  # the contract that ONNX models keep above
class TestGrpcOfPython(PythonLines, Grpc):
    """Of models in workers."""


def grpc_port(deployments: Any, name: str) -> int:
    """Return the port at which a deployment answers gRPC."""
    return int(deployments.deployment(name).grpc.rpartition(":")[2])
