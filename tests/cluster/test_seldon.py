"""Deployments where Seldon Core keeps the model servers, under its definition and a stand-in for its operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import deploying, kubectl, seldon, serving
from tests.cluster.accounts import NAMESPACE
from tests.cluster.deploying import Served
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.contract.test_deployments import finish, smoke, tensor
from tests.serving import onnx_graph, python_model
from tests.serving.load import Load
from tests.unit.backends.kubernetes.serving import golden
from tests.waiting import eventually

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import SELDON_DEPLOYMENT, Document
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases.decision import Ending
from muster.backends.releases.driver import begin
from muster.backends.releases.manual import roll_back
from muster.backends.releases.plan import Plan, Rules
from muster.core.deployment import DeploymentSpec, Workers
from muster.core.errors import SpecError
from muster.core.shipped import shipped
from muster.images.folders import put_image

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

NAME = "line"
STEPS = Plan(steps=(20, 100), hold_seconds=(1.0,), rules=Rules(max_p95_ratio=None))
MODELS = ("onnx", "wrapped", "python")  # the last two: by Seldon's own server, and in workers
Write = Callable[..., DeploymentSpec]


def found(of: Layout) -> list[Document]:
    """The SeldonDeployments that there are."""
    items: list[Document] = kubectl.get(of, SELDON_DEPLOYMENT.resource, f"--namespace={NAMESPACE}")["items"]
    return sorted(items, key=lambda each: str(each["metadata"]["name"]))


class TestAsItIsWritten:
    @pytest.fixture
    def defined(self) -> Iterator[Layout]:
        of = layout()
        with deploying.seldon_defined(of):
            yield of

    @pytest.mark.parametrize("example", ["seldon", "seldon-scaled", "seldon-workers"])
    def test_it_is_accepted_and_its_pods_would_be(self, defined: Layout, example: str) -> None:
        wanted: Any = golden.examples()[example]
        wanted["metadata"]["namespace"] = NAMESPACE
        admin = Client(deploying.administrator(defined), patience_seconds=10)
        admin.create(wanted, dry_run=True)
        made = admin.create(wanted)
        assert made["spec"] == wanted["spec"]
        (predictor,) = made["spec"]["predictors"]
        (component,) = predictor["componentSpecs"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": predictor["name"], "namespace": NAMESPACE},
            "spec": component["spec"],
        }
        admin.create(pod, dry_run=True)
        assert admin.delete(SELDON_DEPLOYMENT, wanted["metadata"]["name"], namespace=NAMESPACE)
        eventually(lambda: found(defined) == [])

    def test_what_seldon_does_not_know_is_refused(self, defined: Layout) -> None:
        wanted: Any = golden.examples()["seldon"]
        wanted["metadata"]["namespace"] = NAMESPACE
        wanted["spec"]["predictors"][0]["share"] = 20
        with pytest.raises(SpecError, match="share"):
            Client(deploying.administrator(defined), patience_seconds=10).create(wanted)


class TestReleases:
    """The same steps, route and counts as with KServe; only who makes the pods is another."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[Served]:
        of = layout()
        with deploying.served(of, tmp_path) as made, deploying.seldon_defined(of), seldon.operator(of):
            served = replace(made, site=replace(made.site, serving=PlatformOwner.SELDON))
            try:
                yield served
            finally:
                served.deployments().retire(NAME)

    @pytest.fixture(params=MODELS)
    def write(self, served: Served, tmp_path: Path, request: pytest.FixtureRequest) -> Write:
        """Writes a spec of a new version, which answers 2 with 2 * slope; `bins` are those of its training rows."""
        image = "seldon" if request.param == "wrapped" else "serve"
        digest = put_image(served.store, shipped("images") / image)
        python = request.param == "python"
        write_line = python_model.write_line if python else onnx_graph.write_line

        def write(slope: float, *, of_two: float, bins: Any = None) -> DeploymentSpec:
            folder = write_line(tmp_path / "line", slope=slope)
            if bins:
                histograms = {"format": 1, "inputs": {"x": bins}}
                (folder / "histograms.json").write_text(json.dumps(histograms))
            model = served.store.add("lines/model", folder)
            return DeploymentSpec(
                name=NAME,
                model=model.pinned,
                image=image,
                image_digest=digest,
                server=image,
                workers=Workers(image=image, image_digest=digest) if python else None,
                smoke=smoke(of_two=of_two),
            )

        return write

    def test_a_release_with_shares_and_back_again(self, served: Served, write: Write) -> None:
        deployments = served.deployments()
        assert finish(begin(deployments, write(2, of_two=4), Plan(), by="test")).ending is Ending.DONE
        eventually(lambda: _answer() == ("r1", 6.0))
        with Load(serving.PORT, f"/v2/models/{NAME}/infer", tensor(3), host="localhost") as load:
            eventually(lambda: load.answers["revision r1"] > 20)
            assert finish(begin(deployments, write(3, of_two=6), STEPS, by="test")).ending is Ending.DONE
            eventually(lambda: _answer() == ("r2", 9.0))
            status = deployments.deployment(NAME)
            assert (status.shares, status.ready, status.release) == ({"r2": 100}, True, None)
            counts = deployments.counts(NAME)
            assert min(counts[each].requests for each in ("r1", "r2")) > 0
            assert roll_back(deployments, NAME, by="ann") == "r1"
            eventually(lambda: _answer() == ("r1", 6.0))
        assert load.failed == {}
        eventually(lambda: [_about(each) for each in found(served.of)] == [("line-r1", 1)])
        deployments.retire(NAME)
        assert found(served.of) == []

    def test_a_version_that_was_trained_on_other_rows_gives_the_traffic_back(
        self, served: Served, write: Write
    ) -> None:
        deployments = served.deployments()
        assert finish(begin(deployments, write(2, of_two=4), Plan(), by="test")).ending is Ending.DONE
        eventually(lambda: _answer() == ("r1", 6.0))
        strange = write(2, of_two=4, bins={"edges": [2.5], "counts": [900, 100]})  # and users ask for 3
        rules = Rules(fewest_requests=20, max_psi=0.2, max_p95_ratio=None)
        plan = Plan(steps=(50, 100), hold_seconds=(30.0,), rules=rules)
        with Load(serving.PORT, f"/v2/models/{NAME}/infer", tensor(3), host="localhost"):
            outcome = finish(begin(deployments, strange, plan, by="test"))
        assert outcome.ending is Ending.ROLLED_BACK
        assert "input 'x' has drifted from the training rows" in outcome.reason
        assert deployments.deployment(NAME).shares == {"r1": 100}

    def test_what_answers_wrongly_gets_nobody_and_goes(self, served: Served, write: Write) -> None:
        deployments = served.deployments()
        outcome = finish(begin(deployments, write(3, of_two=4), Plan(), by="test"))
        assert outcome.ending is Ending.ROLLED_BACK
        assert outcome.reason == "smoke request 'two': output 'y' is 6.0, expected min 4 and max 4"
        eventually(lambda: found(served.of) == [])
        assert deployments.deployment(NAME).shares == {}


def _answer() -> tuple[str, float] | None:
    """The revision that answers a user, and its answer; None where none does yet."""
    try:
        return deploying.infer(NAME, 3)
    except OSError:
        return None


def _about(document: Document) -> tuple[str, int]:
    """Name and generation: one that was never edited is of the first."""
    return document["metadata"]["name"], document["metadata"]["generation"]
