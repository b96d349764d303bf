"""What every backend promises about deployments, kept in memory: the rules without a process, in milliseconds."""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.contract.platform_in_memory import Columns, MemoryPlatform, Refused
from tests.contract.test_deployments import DeploymentsContract
from tests.serving import onnx_graph

from muster.backends.releases.book import BookEntry
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.driver import ReleaseDriver, begin
from muster.backends.releases.plan import Plan, Rules
from muster.backends.releases.platform import Limits
from muster.core.deployment import ByBin, DeploymentSpec, Workers
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

    def __call__(self, entry: BookEntry, inputs: Columns) -> Columns:
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

    def bins(self, entry: BookEntry, inputs: Columns) -> tuple[ByBin, ByBin]:
        """Count a request in the two bins of a version's ``histograms.json``, as the model servers do."""
        bins = json.loads((self._store.path(entry.spec.model.address) / "histograms.json").read_text())
        (edge,), (below, above) = bins["inputs"]["x"]["edges"], bins["inputs"]["x"]["counts"]
        low, high = f"up to {edge}", f"above {edge}"
        (x,) = inputs["x"]
        return {"x": {low: int(x <= edge), high: int(x > edge)}}, {"x": {low: below, high: above}}


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
        line = Line(store)
        return Deployments(MemoryPlatform(line, bins=line.bins), lambda: store)

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        try:
            revision, answer = deployments.platform.predict(name, {"x": (x,)})
        except NotFound as error:
            raise ConnectionRefusedError(str(error)) from error
        return revision, answer["y"][0]

    def lose(self, deployments: Any, name: str) -> None:
        deployments.platform.lose(name)

    def load(self, deployments: Any, name: str) -> Any:
        self.users.append(Users(deployments.platform, name))
        return self.users[-1]

    def begin(
        self, deployments: Deployments, spec: DeploymentSpec, plan: Plan, *, by: str, **more: Any
    ) -> ReleaseDriver:
        clock = lambda: LOOK_SECONDS * next(self.ticks)  # noqa: E731
        return begin(deployments, spec, plan, by=by, clock=clock, **more)  # type: ignore[arg-type]

    def finish(self, driver: ReleaseDriver) -> Outcome:
        for _ in range(1000):
            for each in self.users:
                each.ask()
            if (outcome := driver.step()) is not None:
                return outcome
        raise AssertionError(driver.order.spec)


def test_what_a_platform_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "signature.json").write_text("{}")
    model = store.add("f/model", tmp_path / "model").pinned
    limits = Limits(place="in memory", servers=("serve", "kserve"), no_grpc="not on this platform")
    platform = MemoryPlatform(Line(store), limits=limits)
    spec = DeploymentSpec(name="f", model=model, image="serve", image_digest="b3:" + "0" * 64, grpc=True)
    with pytest.raises(SpecError, match="grpc: not on this platform"):
        Deployments(platform, lambda: store).prepare(spec, by="test")


def test_a_version_that_cannot_answer_in_parts_is_refused(tmp_path: Path) -> None:
    store, digest = FolderStore(tmp_path / "store"), "b3:" + "0" * 64
    model = store.add("f/model", onnx_graph.write_line(tmp_path / "line")).pinned
    workers = Workers(image="serve", image_digest=digest, stream=True)
    spec = DeploymentSpec(name="f", model=model, image="serve", image_digest=digest, workers=workers)
    with pytest.raises(SpecError, match=r"stream: .*f/model@1 holds no predict\.py"):
        Deployments(MemoryPlatform(Line(store)), lambda: store).prepare(spec, by="test")


TRAINED = {"x": {"up to 2.5": 500, "above 2.5": 500}}
DRIFT = Plan(steps=(50, 100), hold_seconds=(1.0,), rules=Rules(max_psi=0.2, max_p95_ratio=None))


class Drifting:
    """A deployment in memory where a version serves, and the next one's requests are in turn in bins as `turns` says.

    :param turns: the bin of each of ten requests; empty: no server counts them.
    """

    def __init__(self, folder: Path, turns: str) -> None:
        self.store = FolderStore(folder / "store")
        low = itertools.cycle(each == "l" for each in turns)

        def bins(*_: Any) -> tuple[ByBin, ByBin]:
            is_low = next(low)
            return {"x": {"up to 2.5": int(is_low), "above 2.5": int(not is_low)}}, TRAINED

        self.platform = MemoryPlatform(Line(self.store), bins=bins if turns else None)
        self.deployments = Deployments(self.platform, lambda: self.store)
        self.said: list[str] = []
        self.image = put_image(self.store, shipped("images") / "serve")
        onnx_graph.write_line(folder / "line")
        self.old = self.spec(folder / "line")
        (folder / "line" / "histograms.json").write_text("{}")  # what it holds is for servers to read
        self.new = self.spec(folder / "line")
        assert self.release(self.old, Plan()).ending is Ending.DONE

    def spec(self, folder: Path) -> DeploymentSpec:
        model = self.store.add("line/model", folder).pinned
        return DeploymentSpec(name="line", model=model, image="serve", image_digest=self.image)

    def release(self, spec: DeploymentSpec, plan: Plan) -> Outcome:
        ticks = itertools.count()
        clock = lambda: LOOK_SECONDS * next(ticks)  # noqa: E731
        driver = begin(self.deployments, spec, plan, by=spec.model.address, say=self.said.append, clock=clock)
        users = Users(self.platform, "line")
        for _ in range(100):
            if self.deployments.deployment("line").champion:
                users.ask()
            if (outcome := driver.step()) is not None:
                return outcome
        raise AssertionError(spec)


def test_a_version_whose_requests_are_unlike_its_training_rows_is_taken_back(tmp_path: Path) -> None:
    line = Drifting(tmp_path, "lhhhhhhhhh")
    outcome = line.release(line.new, DRIFT)
    assert outcome.ending is Ending.ROLLED_BACK
    assert "at 50 % of the traffic, input 'x' has drifted from the training rows: PSI 0.8" in outcome.reason
    assert line.deployments.deployment("line").shares == {"r1": 100}


def test_a_version_whose_requests_are_like_its_training_rows_gets_all_users(tmp_path: Path) -> None:
    line = Drifting(tmp_path, "lhlhlhlhll")
    assert line.release(line.new, DRIFT).ending is Ending.DONE
    assert "drift at most 0.0" in line.said[-1]
    (there,) = (one for one in line.deployments.deployment("line").revisions if one.percent)
    assert there.model == line.new.model


def test_a_server_that_does_not_count_inputs_breaks_the_rule(tmp_path: Path) -> None:
    line = Drifting(tmp_path, "")
    outcome = line.release(line.new, DRIFT)
    assert outcome.ending is Ending.ROLLED_BACK
    assert "its server does not count requests by the bins of the training rows" in outcome.reason
    assert "it is of an earlier release of muster" in outcome.reason


def test_a_rule_on_drift_needs_a_version_with_histograms(tmp_path: Path) -> None:
    line = Drifting(tmp_path, "lh")
    with pytest.raises(
        SpecError,
        match=r"line/model@1 has no histograms\.json: have the job that makes it write one, muster\.signature",
    ):
        line.release(line.old, DRIFT)
    assert [one.name for one in line.deployments.deployment("line").revisions] == ["r1"]
