"""A deployment of the line ``y = 2 x`` on the test cluster, users who ask it all the while, and what they saw."""

from __future__ import annotations

import http.client
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import deploying, serving
from tests.cluster.deploying import Served, infer
from tests.contract.test_deployments import finish
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.waiting import eventually

from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.driver import ReleaseDriver, begin
from muster.backends.releases.plan import Plan, Rules
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.core.errors import NotFound
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.images.folders import put_image

SMALL = Resources(cpus=0.5, memory_gib=0.5)
TWO = SmokeRequest(name="two", inputs={"x": (2.0,)}, expect={"y": {"min": 4.0, "max": 4.0}})
QUIET = Rules(max_p95_ratio=None)  # of a machine that others use, too
CANARY = Plan(steps=(20, 100), hold_seconds=(2.0, 0.0), rules=QUIET)
STEPS = Plan(steps=(5, 25, 60, 100), hold_seconds=(2.0,), rules=QUIET)


@dataclass
class Line:
    """One deployment, whose every version that will do answers 4 for 2.

    :param folder: an empty one.
    :param said: what the release that is driven last has said: the lines of a task's log.
    """

    served: Served
    folder: Path
    name: str = field(default_factory=lambda: f"line-{secrets.token_hex(3)}")
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deployments: Deployments = self.served.deployments()
        self.image = put_image(self.served.store, shipped("images") / "serve")

    @property
    def champion(self) -> str:
        """The revision that has all traffic."""
        ((revision, _),) = self.deployments.deployment(self.name).shares.items()
        return revision

    def settle(self) -> None:
        """Have a champion that answers, and nothing under way, whatever a test before left."""
        if not self._settled():
            self.deployments.retire(self.name)
            assert self.release(self.spec(), Plan()).ending is Ending.DONE
            eventually(lambda: self.answers() == (self.champion, 4.0))

    def _settled(self) -> bool:
        try:
            status = self.deployments.deployment(self.name)
        except NotFound:
            return False
        whole = status.release is None and len(status.shares) == 1
        return whole and self.answers() == (self.champion, 4.0)

    def spec(self, folder: Path | None = None, **changes: Any) -> DeploymentSpec:
        """A spec of a new version. :param folder: what it holds; the good line if it is not given."""
        content = folder or onnx_graph.write_line(self.folder / "line", slope=2.0)
        (content / "note.txt").write_text(secrets.token_hex())  # no version is another one's copy
        fields: dict[str, Any] = {
            "name": self.name,
            "model": self.served.store.add(f"lines/{self.name}", content).pinned,
            "image": "serve",
            "image_digest": self.image,
            "server": "serve",
            "smoke": (TWO,),
            "resources": SMALL,
        }
        return DeploymentSpec(**{**fields, **changes})

    def begin(self, spec: DeploymentSpec, plan: Plan = CANARY, *, by: str = "test") -> ReleaseDriver:
        """Begin a release as another one of us would."""
        self.said.clear()
        return begin(self.served.deployments(), spec, plan, by=by, say=self.said.append)

    def release(self, spec: DeploymentSpec, plan: Plan = CANARY) -> Outcome:
        """Release a version, to the end."""
        return finish(self.begin(spec, plan))

    def has(self, driver: ReleaseDriver, percent: int) -> None:
        """Drive a release until its revision has a share."""

        def there() -> bool:
            assert driver.step() is None
            return self.deployments.deployment(self.name).shares.get(driver.revision) == percent

        eventually(there)

    @contextmanager
    def users(self, *, rows: int = 1) -> Iterator[Load]:
        """Eight users who ask over and over, a hundred times before and after. :param rows: of each request."""
        with Load(serving.PORT, f"/v2/models/{self.name}/infer", body(rows)) as load:
            eventually(lambda: load.sent > 100)
            yield load
            sent = load.sent
            eventually(lambda: load.sent > sent + 100)

    def answers(self) -> tuple[str, float] | None:
        """The revision that answers a user, and its answer; None where none does."""
        try:
            return infer(self.name, 2.0)
        except (OSError, http.client.HTTPException):
            return None


def body(rows: int) -> dict[str, Any]:
    """Return a request for the answer to 2, so many times over."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows], "data": [2.0] * rows}]}


@contextmanager
def standing(served: Served, folder: Path) -> Iterator[Line]:
    """Have a line, and leave nothing of it."""
    line = Line(served=served, folder=folder)
    try:
        yield line
    finally:
        line.deployments.retire(line.name)
    eventually(lambda: deploying.left(served.of) == "")


def last_change(look: Callable[[], int], *, quiet_seconds: float = 2.0) -> float:
    """Return after how many seconds a number changed last, when it has not done so for a while."""
    began = time.monotonic()
    seen, changed = look(), began

    def quiet() -> bool:
        nonlocal seen, changed
        now = look()
        if now != seen:
            seen, changed = now, time.monotonic()
        return time.monotonic() - changed > quiet_seconds

    eventually(quiet)
    return changed - began
