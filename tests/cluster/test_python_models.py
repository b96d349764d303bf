"""The contract of deployments for models that are Python: workers as a second container of each pod."""

from __future__ import annotations

import pytest
from tests.cluster import test_deployments
from tests.contract.test_deployments_of_python import PythonLines

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]


class TestClusterDeploymentsOfPython(PythonLines, test_deployments.TestClusterDeployments):
    """Revisions as InferenceServices whose models run in the author's image."""
