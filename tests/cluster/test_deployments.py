"""The contract of deployments on a real cluster: KServe, a Gateway, and replicas in pods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster import deploying, kubectl, serving
from tests.cluster.accounts import NAMESPACE, REAPER
from tests.cluster.deploying import Served
from tests.cluster.inside import layout
from tests.cluster.scripted import SITE, connection
from tests.contract.test_deployments import DeploymentsContract, Lines
from tests.waiting import eventually

from muster.backends.kubernetes import trial
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import repair
from muster.core.shipped import shipped
from muster.images.folders import put_image
from muster.volumes.service.client import ServiceStore

pytestmark = pytest.mark.cluster


class OnTheCluster(Lines):
    """Revisions as InferenceServices behind an HTTPRoute, by the server that a cluster with KServe runs by default."""

    server = "kserve"

    @pytest.fixture
    def deployments(self, served: Served) -> Iterator[Deployments]:
        deployments = served.deployments()
        yield deployments
        for name in deployments.names():
            deployments.retire(name)
        eventually(lambda: deploying.left(served.of) == "")

    @pytest.fixture
    def store(self, served: Served) -> ServiceStore:
        return served.store

    @pytest.fixture
    def image(self, store: ServiceStore) -> str:
        return put_image(store, shipped("images") / self.server)

    def door(self, deployments: Any, name: str) -> tuple[int, str]:
        return serving.PORT, "localhost"

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        return deploying.infer(name, x, seconds=seconds)


class TestClusterDeployments(OnTheCluster, DeploymentsContract):
    """What a cluster promises, and what of it is its own."""

    test_no_request_fails_over_a_series_of_releases = None  # with five times as many in test_releases.py

    def lose(self, deployments: Any, name: str) -> None:
        (one,) = deployments.deployment(name).shares
        words = ("delete", "inferenceservice", f"{name}-{one}", f"--namespace={NAMESPACE}")
        kubectl.run(layout(), *words)

    def test_every_replica_is_asked_and_none_runs_beside_a_card(
        self, served: Served, deployments: Any, spec: Any, name: str
    ) -> None:
        made = self.bring_up(deployments, spec(2, replicas=3))
        answers = deployments.ask(name, made.name, spec(2).smoke[0])
        assert [answer.outputs["y"] for answer in answers] == [(4.0,)] * 3
        assert len({answer.replica for answer in answers}) == 3
        found = deploying.pods(served.of, name, made.name)
        assert {pod["spec"]["nodeName"] for pod in found} == {"cpu-0"}
        for pod in found:
            mounts = {each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
            assert "/var/run/secrets/kubernetes.io/serviceaccount" not in mounts

    def test_a_replica_that_died_takes_no_counts_back(
        self, served: Served, deployments: Any, spec: Any, name: str
    ) -> None:
        champion = self.serve(deployments, spec(2, replicas=2)).champion
        assert champion is not None
        for _ in range(100):
            self.infer(deployments, name, 3)
        before = deployments.counts(name)[champion.name].requests
        assert before >= 100
        pod, *_ = deploying.pods(served.of, name, champion.name)
        kubectl.run(served.of, "delete", "pod", pod["metadata"]["name"], f"--namespace={NAMESPACE}")
        assert deployments.counts(name)[champion.name].requests >= before
        eventually(lambda: deployments.deployment(name).champion.ready == 2)
        assert deployments.counts(name)[champion.name].requests >= before

    def test_what_somebody_changed_is_told_and_one_command_brings_it_back(
        self, served: Served, deployments: Any, spec: Any, name: str, record_property: Any
    ) -> None:
        """An edited route, a lost InferenceService of who serves, and a missing one of who is kept."""
        for one in (spec(2), spec(3)):
            status = self.serve(deployments, one)
        assert (status.shares, status.drift) == ({"r2": 100}, "")
        place, told = f"--namespace={NAMESPACE}", []

        def edit() -> None:
            (rule,) = kubectl.get(served.of, "httproute", name, place)["spec"]["rules"]
            rule["backendRefs"] = [{**each, "weight": 50} for each in rule["backendRefs"]]
            change = json.dumps({"spec": {"rules": [rule]}})
            kubectl.run(served.of, "patch", "httproute", name, place, "--type=merge", f"--patch={change}")

        def delete(revision: str) -> None:
            kubectl.run(served.of, "delete", "inferenceservice", f"{name}-{revision}", place)

        for change in (edit, lambda: delete("r2"), lambda: delete("r1")):
            change()
            (seen,) = deployments.look_at([name])
            told.append(seen.status.drift)
            assert f"`muster deployments repair {name}` brings it back" in told[-1]
            began = time.monotonic()
            done = "; ".join(repair(deployments, name))
            record_property(told[-1], f"{time.monotonic() - began:.1f} s: {done}")
            status = deployments.deployment(name)
            assert (status.ready, status.drift, status.shares) == (True, "", {"r2": 100})
            eventually(lambda: self.answers(deployments, name) == "r2")
        assert "r1 50 %, r2 50 %, where muster wrote r2 100 %, r1 kept" in told[0]
        assert "r2's InferenceService is gone" in told[1]
        assert "r1's InferenceService is gone" in told[2]

    def test_no_account_reaches_the_store_or_another_account_through_a_model_server(
        self, served: Served
    ) -> None:
        site = replace(SITE, images={"trial": "trial"}, serving=PlatformOwner.KSERVE)
        place = trial.TrialPlace(site=site, keys="muster-store", account=REAPER)
        asking = Client(connection(served.of), patience_seconds=10)
        assert trial.refusal(asking, trial.server(place)) == ""
        tried = dict(trial.attempts_of(trial.server(place), place))
        found = {what: trial.refusal(asking, document) for what, document in tried.items()}
        assert {what for what, said in found.items() if trial.POLICY not in said} == set()
        assert "a InferenceService with a storage URI" in found

    def test_without_a_gateway_a_service_moves_as_a_whole(self, served: Served, spec: Any, name: str) -> None:
        deployments = served.deployments(gateway="", serving_url="", gateway_metrics="")
        with deploying.may_write_services(served.of):
            try:
                for one in (spec(2), spec(3)):
                    made = self.bring_up(deployments, one)
                    status = deployments.deployment(name)
                    kept = {status.champion.name: 0} if status.champion else {}
                    deployments.shift(name, kept | {made.name: 100}, token=status.token, release=None)
                    eventually(lambda made=made: deploying.selected(served.of, name) == made.name)
                status = deployments.deployment(name)
                assert (status.shares, status.ready) == ({"r2": 100}, True)
                assert [(one.name, one.kept) for one in status.revisions] == [("r2", False), ("r1", True)]
            finally:
                deployments.retire(name)
