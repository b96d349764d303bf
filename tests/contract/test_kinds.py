"""What every platform promises of each kind of model: deployed, asked, released in steps and rolled back, and no request is lost."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import STEPS, Lines, OnThisMachine, finish
from tests.serving.kinds import KINDS, NEAR, Kind, Made
from tests.serving.load import Load, lost
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.driver import ReleaseDriver
from muster.backends.releases.manual import roll_back
from muster.core.deployment import DeploymentSpec, SmokeRequest, Workers, needs_workers
from muster.core.resources import Resources
from muster.images.folders import put_image

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.nightly]

RELEASED = "kinds of models, each released in steps, refused and rolled back under load: requests that were lost, seconds"
LOAD_SECONDS = 300.0  # torch, on a machine that others use, too
BETWEEN = 100  # requests before the first release, and after the last
Spec = Callable[[Made, SmokeRequest], DeploymentSpec]


class KindsContract(Lines):
    """Inherit it as ``Lines``.

    The ONNX model has the shape of that of ``dags/flights``, and random weights: to train that one takes minutes.
    """

    def finish(self, driver: ReleaseDriver) -> Outcome:
        return finish(driver, seconds=2 * LOAD_SECONDS)

    @pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        return request.param  # type: ignore[no-any-return]

    @pytest.fixture
    def spec(self, store: Any, volume: str, name: str, image: str, kind: Kind) -> Spec:
        """Writes a spec of a new version, and of what it is expected to answer."""
        own = put_image(store, kind.image)

        def write(made: Made, expected: SmokeRequest) -> DeploymentSpec:
            inside = needs_workers(path.name for path in made.folder.iterdir())
            return DeploymentSpec(
                name=name,
                model=store.add(volume, made.folder).pinned,
                image=self.server,
                image_digest=image,
                server=self.server,
                smoke=(expected,),
                resources=Resources(memory_gib=kind.memory_gib),
                load_timeout_seconds=LOAD_SECONDS,
                workers=Workers(image=kind.image.name, image_digest=own) if inside else None,
            )

        return write

    def ask(self, deployments: Any, name: str, made: Made) -> tuple[str, dict[str, Any]]:
        """Return who answers the row of a version, and what; empty where none answers yet."""
        port, host = self.door(deployments, name)
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)
        with contextlib.closing(asking), contextlib.suppress(OSError, http.client.HTTPException):
            asking.request("POST", f"/v2/models/{name}/infer", json.dumps(made.request), {"Host": host})
            answer = asking.getresponse()
            found = answer.read()
            if answer.status == http.HTTPStatus.OK:
                told = json.loads(found)
                return told["model_version"], {each["name"]: each["data"][0] for each in told["outputs"]}
        return "", {}

    def answered_by(self, deployments: Any, name: str, made: Made, revision: str) -> dict[str, Any]:
        """Return what a revision answers the row of a version, once it answers users."""
        seen = eventually(
            lambda: (found := self.ask(deployments, name, made)) and found[0] == revision and found
        )
        return seen[1]

    def test_no_request_is_lost_over_a_release_in_steps_a_refusal_and_a_rollback(
        self,
        deployments: Any,
        spec: Spec,
        name: str,
        kind: Kind,
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        old, new = (kind.make(tmp_path / f"seed-{seed}", seed) for seed in (1, 2))
        first = self.release(deployments, spec(old, old.smoke))
        assert first.ending is Ending.DONE, first
        answers = [self.answered_by(deployments, name, old, first.revision)]
        port, host = self.door(deployments, name)
        with Load(port, f"/v2/models/{name}/infer", old.request, host=host) as load:
            began = time.monotonic()
            eventually(lambda: load.sent > BETWEEN)
            second = self.release(deployments, spec(new, new.smoke), STEPS)
            assert second.ending is Ending.DONE, second
            answers.append(self.answered_by(deployments, name, new, second.revision))
            wrong = self.release(deployments, spec(old, new.smoke), STEPS)
            champion = deployments.deployment(name).champion.name
            back = roll_back(deployments, name, by="test")
            answers.append(self.answered_by(deployments, name, old, first.revision))
            sent = load.sent
            eventually(lambda: load.sent > sent + BETWEEN)
            seconds = time.monotonic() - began
        record_property(RELEASED, f"{kind.name:14} {lost(load):20} {seconds:6.1f} s  {wrong.reason}")
        assert (wrong.ending, champion, back) == (Ending.ROLLED_BACK, second.revision, first.revision), wrong
        assert wrong.reason.startswith("smoke request 'row': output '"), wrong
        for made, answer in zip((old, new, old), answers, strict=True):
            assert answer == pytest.approx(made.answer, abs=NEAR)
        assert load.failed == {}
        assert set(load.answers) == {f"revision {one.revision}" for one in (first, second)}


class TestKindsOnThisMachine(OnThisMachine, KindsContract):
    """In the environments of their images."""
