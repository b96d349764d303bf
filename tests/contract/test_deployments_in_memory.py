"""What every backend promises about deployments, kept in memory: the rules without a process, in milliseconds."""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import DeploymentsContract

from muster.backends.releases.book import Entry
from muster.backends.releases.decision import Outcome
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.driver import Driver, begin
from muster.backends.releases.memory import Columns, MemoryPlatform, Refused
from muster.backends.releases.plan import Plan
from muster.backends.releases.platform import Limits
from muster.core.deployment import DeploymentSpec, RequestLog
from muster.core.errors import DeploymentError, NotFound, SpecError
from muster.core.shipped import shipped
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

LOOK_SECONDS = 0.25
ASKED_AT_ONCE = 200
_SLOPE = b"\x05slope\x4a\x04"  # as onnx_graph.write_line writes it


class Line:
    """Answers as the model servers do with a version that :func:`tests.serving.onnx_graph.write_line` wrote."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._loaded: dict[str, tuple[float, Any, Any]] = {}

    def _load(self, address: str) -> tuple[float, Any, Any]:
        folder = self._store.path(address)
        signature = json.loads((folder / "signature.json").read_text())
        (given,), (output,) = signature["inputs"], signature["outputs"]
        graph = (folder / "model.onnx").read_bytes()
        (slope,) = struct.unpack_from("<f", graph, graph.index(_SLOPE) + len(_SLOPE))
        return slope, given, output

    def __call__(self, entry: Entry, inputs: Columns) -> Columns:
        address = entry.spec.model.address
        if address not in self._loaded:
            self._loaded[address] = self._load(address)
        slope, given, output = self._loaded[address]
        for name in inputs:
            if name != "x":
                raise DeploymentError(f"input {name!r} is unknown; this model takes x")
        if not all(given["min"] <= x <= given["max"] for x in inputs["x"]):
            raise Refused("HTTP 400: x is out of its range")
        found = tuple(slope * x for x in inputs["x"])
        if not all(output["min"] <= y <= output["max"] for y in found):
            raise DeploymentError("HTTP 500: y is out of its range")
        return {"y": found}


class Users:
    """Users whose requests come whenever a test looks at their answers."""

    def __init__(self, platform: MemoryPlatform, name: str) -> None:
        self._platform = platform
        self._name = name
        self._answers: Counter[str] = Counter()

    def __enter__(self) -> Users:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self) -> None:
        for _ in range(ASKED_AT_ONCE):
            try:
                revision, _answer = self._platform.predict(self._name, {"x": (3.0,)})
            except DeploymentError as error:
                self._answers[str(error)] += 1
            else:
                self._answers[f"revision {revision}"] += 1

    @property
    def answers(self) -> Counter[str]:
        self.ask()
        return self._answers

    @property
    def sent(self) -> int:
        return self.answers.total()

    @property
    def failed(self) -> dict[str, int]:
        return {what: n for what, n in self._answers.items() if not what.startswith("revision ")}


class TestMemoryDeployments(DeploymentsContract):
    """Revisions as functions of this process; a release's clock goes with its looks."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path / "store")

    @pytest.fixture
    def image(self, store: FolderStore) -> str:
        return put_image(store, shipped("images") / "serve")

    @pytest.fixture
    def deployments(self, store: FolderStore) -> Deployments:
        self.ticks = itertools.count()
        self.users: list[Users] = []
        return Deployments(MemoryPlatform(Line(store)), lambda: store)

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        try:
            revision, answer = deployments.platform.predict(name, {"x": (x,)})
        except NotFound as error:
            raise ConnectionRefusedError(str(error)) from error
        return revision, answer["y"][0]

    def load(self, deployments: Any, name: str) -> Any:
        self.users.append(Users(deployments.platform, name))
        return self.users[-1]

    def begin(
        self, deployments: Deployments, spec: DeploymentSpec, plan: Plan, *, by: str, **more: Any
    ) -> Driver:
        clock = lambda: LOOK_SECONDS * next(self.ticks)  # noqa: E731
        return begin(deployments, spec, plan, by=by, clock=clock, **more)  # type: ignore[arg-type]

    def finish(self, driver: Driver) -> Outcome:
        for _ in range(1000):
            for each in self.users:
                each.ask()
            if (outcome := driver.step()) is not None:
                return outcome
        raise AssertionError(driver.order.spec)


@pytest.mark.parametrize(
    ("limit", "wanted"), [("no_log", {"log": RequestLog(share=0.5)}), ("no_grpc", {"grpc": True})]
)
def test_what_a_platform_cannot_do_is_refused_by_name(
    tmp_path: Path, limit: str, wanted: dict[str, Any]
) -> None:
    store = FolderStore(tmp_path / "store")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "signature.json").write_text("{}")
    model = store.add("f/model", tmp_path / "model").pinned
    limits: dict[str, Any] = {limit: "not on this platform"}
    platform = MemoryPlatform(Line(store), limits=Limits(place="in memory", servers=("kserve",), **limits))
    spec = DeploymentSpec(name="f", model=model, image="serve", image_digest="b3:" + "0" * 64, **wanted)
    (word,) = wanted
    with pytest.raises(SpecError, match=f"{word}: not on this platform"):
        Deployments(platform, lambda: store).prepare(spec, by="test")
