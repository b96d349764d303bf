"""The reference pipeline, unchanged, triggered in Airflow on the cluster: it learns what it learns on one machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import author, kubectl, left
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.places import places, ran
from tests.e2e.author import MUSTER, Author, stages
from tests.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

DAGS = Path(__file__).parents[2] / "dags"
SECONDS = 1800  # a training on a machine that other things share
LEARNED = ("features", "validate", "train", "gate")


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def site(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with author.served(here):
        file = author.write_file(here, folder)
        with Site(folder, MUSTER_CLUSTER=str(file)) as site:
            site.up(seconds=300)
            yield site


def alone(folder: Path) -> dict[str, Any]:
    """The stages of the same Dag on this machine."""
    shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with Author(folder) as person:
        words = [MUSTER, "run", "flights", "--json"]
        done = subprocess.run(
            words,
            cwd=folder,
            env=person.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
        return stages(json.loads(done.stdout))


def test_flights_on_the_cluster_learn_what_they_learn_on_one_machine(
    here: Layout, site: Site, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with places(here, tmp_path / "places") as file:
        run_id = site.trigger("flights")
        state = site.wait("flights", run_id, seconds=SECONDS)
    logs = {name: site.task_log("flights", run_id, name) for name in LEARNED} if state != "success" else {}
    assert state == "success", "\n".join(f"{name}:\n{text}" for name, text in logs.items())
    done = {name: site.xcom("flights", run_id, name) for name in LEARNED}
    on = ran(file)
    where = {name: on.get(result.get("job_id", ""), set()) for name, result in done.items()}
    for name, result in done.items():
        record_property(
            "flights on the cluster: where each stage ran, its versions, its metrics",
            f"{name}: {', '.join(sorted(where[name])) or 'no pod'}; {result.get('versions')}; {result['metrics']}",
        )
    assert where["features"] == where["validate"] == {"cpu-0"}
    assert where["train"] <= {"a100-0", "a100-1", "k80-0"}
    assert where["train"]
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))
    same = alone(tmp_path)
    for name in LEARNED:
        assert same[name]["metrics"] == done[name]["metrics"], name
