"""The example of every way to write a task under a whole Airflow: its scheduler maps, its triggerer waits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.site import Site

from muster.volumes.folder import FolderStore

EXAMPLE = Path(__file__).parents[1] / "airflow" / "authored"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.set("muster", inline_wait=0)
        shutil.copytree(
            EXAMPLE, site.folder / "dags" / "authored", ignore=shutil.ignore_patterns("__pycache__")
        )
        site.up()
        yield site


def rows(site: Site, address: str, file: str = "rows.json") -> Any:
    store = FolderStore(site.home / "store")
    return json.loads((store.path(address) / file).read_text())


def test_decorated_mapped_gathered_and_a_gang_of_two(site: Site) -> None:
    run_id = site.trigger("authored", {"epochs": 5, "note": "from the form"})
    assert site.wait("authored", run_id) == "success"
    assert "the triggerer waits for it" in site.task_log("authored", run_id, "train")
    written = [f"2024-{month}-{row}" for month in ("01", "02", "03") for row in range(2)]
    assert rows(site, "volume://authored/all@1") == written
    given = [rows(site, "volume://authored/model@1", f"rank-{rank}.json") for rank in range(2)]
    assert [(each["epochs"], each["note"], each["rows"]) for each in given] == [(5, "from the form", 6)] * 2
