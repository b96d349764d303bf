"""``muster metrics``: a page of this machine or of a cluster, and the files for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.backends.kubernetes.site_api import SiteApi, kubeconfig, site_api
from tests.unit.ext.metrics.conftest import values

from muster.backends import base
from muster.core.job import JobSpec, Role
from muster.ext.metrics.table import NAMED, MetricsPart
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]
ALL = {part.value for part in MetricsPart} - {"airflow", "keepers"}  # these are named where they are
SPEC = JobSpec(
    name="a.b", image="i", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a.b:c"),), queue="q"
)


@pytest.fixture
def site(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteApi]:
    """A cluster that MUSTER_CLUSTER names, whose store service is away."""
    with site_api() as (site, server):
        kubeconfig(tmp_path / "config", server.host)
        (tmp_path / "token").write_text("x.y\n")
        (tmp_path / "cluster.toml").write_text(
            'namespace = "muster-jobs"\nclaim = "muster-store"\nstore_url = "http://127.0.0.1:9"\n'
            'token_file = "token"\nkubeconfig = "config"\n'
        )
        monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "cluster.toml"))
        monkeypatch.setattr(base, "LOOK_SECONDS", 0.1)
        yield site


def read(text: str) -> tuple[set[str], dict[tuple[str, ...], float]]:
    """Return the parts that could be read, and every value."""
    found = dict(values(text))
    parts = {key[1] for key, number in found.items() if key[0] == "muster_scrape_success" and number == 1}
    return parts, found


def test_a_machine_tells_every_part(muster: Run, store: FolderStore) -> None:
    store.ledger.create("one", SPEC)
    parts, found = read(muster("metrics").out)
    assert parts == ALL
    assert found["muster_jobs", "queued"] == 1
    assert found["muster_queue_jobs", "local", "waiting"] == 0


def test_where_nothing_is_kept_nothing_is_made(muster: Run, home: Path) -> None:
    refused = muster("metrics")
    assert (refused.code, home.exists()) == (1, False)
    assert "nothing is kept in" in refused.err


def test_a_store_that_cannot_be_opened_is_said_on_the_page(muster: Run, store: FolderStore) -> None:
    (store.layout.root / "VOLUME.json").write_text("{")
    answer = muster("metrics")
    parts, found = read(answer.out)
    assert parts == {"gpus"}
    assert re.search(
        r"^# muster: the store cannot be read: .* cannot be opened as a store", answer.out, re.MULTILINE
    )
    assert not [
        key
        for key in found
        if key[0] in NAMED and NAMED[key[0]].part in (MetricsPart.STORE, MetricsPart.JOBS)
    ]


def test_a_cluster_whose_store_service_is_away_tells_its_queues_all_the_same(
    muster: Run, site: SiteApi
) -> None:
    site.refused.add(("list", "nodes!"))
    answer = muster("metrics")
    parts, found = read(answer.out)
    assert parts == {"queues", "deployments"}
    assert ("muster_build_info", "cluster", "0.1.0") in found
    assert "# muster: the store cannot be read:" in answer.out
    assert re.search(r"^# muster: the gpus cannot be read: .*nodes", answer.out, re.MULTILINE)
    assert found["muster_queue_jobs", "team-a", "waiting"] == 0


def test_the_files_are_printed_as_they_are(muster: Run) -> None:
    assert {group["name"] for group in yaml.safe_load(muster("metrics", "--alerts").out)["groups"]}
    assert json.loads(muster("metrics", "--dashboard").out)["uid"] == "muster"
