"""The contract of answers in parts on a real cluster: through the Gateway, from workers in a container of their own."""

from __future__ import annotations

import secrets

import pytest
from tests.cluster.test_grpc import OnHosts
from tests.contract.test_streams import StreamsContract

from muster.backends.kubernetes.manifests import wiring

pytestmark = pytest.mark.cluster


class TestClusterStreams(OnHosts, StreamsContract):
    """Events and messages pass the Gateway as they come, and so does that a client has left."""

    @pytest.fixture
    def place(self) -> str:
        return f"{wiring.TEMPORARY}/{secrets.token_hex(8)}"  # of the pod
