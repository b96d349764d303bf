"""The contract of gRPC on a real cluster: a Gateway that speaks HTTP/2 to the pods, and a host for each deployment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster import deploying, serving
from tests.cluster.deploying import Served
from tests.cluster.test_deployments import OnTheCluster
from tests.contract.test_grpc import GrpcContract, GrpcLines
from tests.waiting import eventually

from muster.backends.releases.deployments import Deployments

pytestmark = pytest.mark.cluster

HOSTS = f"http://{{name}}.models.example.com:{serving.PORT}"


class OnHosts(OnTheCluster, GrpcLines):
    """Deployments with a host each, without which the Gateway cannot tell one from another over gRPC."""

    @pytest.fixture
    def deployments(self, served: Served) -> Iterator[Deployments]:
        deployments = served.deployments(serving_url=HOSTS)
        yield deployments
        for name in deployments.names():
            deployments.retire(name)
        eventually(lambda: deploying.left(served.of) == "")

    def door(self, deployments: Any, name: str) -> tuple[int, str]:
        return serving.PORT, host_of(name)

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        return deploying.infer(name, x, seconds=seconds, host=host_of(name))

    def grpc_door(self, deployments: Any, name: str) -> tuple[int, str]:
        assert deployments.deployment(name).grpc == f"{host_of(name)}:{serving.PORT}"
        return serving.PORT, host_of(name)


class TestClusterGrpc(OnHosts, GrpcContract):
    """Revisions with a Service of their own for gRPC, behind the rule that one HTTPRoute has for it."""

    silent = "UNIMPLEMENTED"  # as a client reads the Gateway's 404


def host_of(name: str) -> str:
    """Return the host of a deployment."""
    return f"{name}.models.example.com"
