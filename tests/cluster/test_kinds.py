"""The contract of the kinds of models on a real cluster: workers in the container image of each kind."""

from __future__ import annotations

import pytest
from tests.cluster.test_deployments import OnTheCluster
from tests.contract.test_kinds import KindsContract

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]


class TestClusterKinds(OnTheCluster, KindsContract):
    """Their images are links to the environments that :func:`tests.cluster.serving.build_kinds` builds."""
