"""A notebook of a person at a laptop reads and makes versions of the cluster's store, in the cells of one machine."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest
from tests.cli.test_notebook import reads
from tests.cluster import store
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.scripted import CLAIM

pytestmark = pytest.mark.cluster


def test_a_notebook_reads_versions_of_the_cluster(tmp_path: Path) -> None:
    here = layout()
    store.deploy(here)
    (tmp_path / "token").write_text(store.operator_token(here))
    (tmp_path / "cluster.toml").write_text(
        f'namespace = "{NAMESPACE}"\nclaim = "{CLAIM}"\nstore_url = "{store.URL}"\ntoken_file = "token"\n'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"MUSTER_CLUSTER": str(tmp_path / "cluster.toml"), "PATH": path}
    reads(tmp_path, environment, volume=f"lab/notebook-{secrets.token_hex(3)}")
