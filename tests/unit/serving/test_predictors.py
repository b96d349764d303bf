"""The files of a version that workers load: what muster knows of them, and what the model servers do."""

from __future__ import annotations

from muster.core.deployment import PREDICTED
from muster_serving.predictors import KNOWN


def test_muster_and_its_servers_know_the_same_files_in_the_same_order() -> None:
    assert tuple(KNOWN) == PREDICTED
