"""The contract of deployments on a real cluster: KServe, a Gateway, and replicas in pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster import deploying, kubectl, serving
from tests.cluster.accounts import NAMESPACE
from tests.cluster.deploying import Served
from tests.contract.test_deployments import DeploymentsContract
from tests.waiting import eventually

from muster.backends.kubernetes.serving.deployments import ClusterDeployments
from muster.backends.local.environments import put_image
from muster.core.shipped import shipped
from muster.volumes.service.client import ServiceStore

pytestmark = pytest.mark.cluster


class TestClusterDeployments(DeploymentsContract):
    """Revisions as InferenceServices behind an HTTPRoute."""

    test_no_request_fails_over_a_series_of_releases = None  # with five times as many in test_releases.py

    @pytest.fixture
    def deployments(self, served: Served) -> Iterator[ClusterDeployments]:
        deployments = served.deployments()
        yield deployments
        for name in deployments.deployments():
            deployments.retire(name)
        eventually(lambda: deploying.left(served.of) == "")

    @pytest.fixture
    def store(self, served: Served) -> ServiceStore:
        return served.store

    @pytest.fixture
    def image(self, store: ServiceStore) -> str:
        return put_image(store, shipped("images") / "serve")

    def door(self, deployments: Any, name: str) -> tuple[int, str]:
        return serving.PORT, "localhost"

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        return deploying.infer(name, x, seconds=seconds)

    def test_every_replica_is_asked_and_none_runs_beside_a_card(
        self, served: Served, deployments: Any, spec: Any, name: str
    ) -> None:
        made = self.bring_up(deployments, spec(2, replicas=3))
        answers = deployments.ask(name, made.name, spec(2).smoke[0])
        assert [answer.outputs for answer in answers] == [{"y": (4.0,)}] * 3
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
