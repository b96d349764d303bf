"""The example of a search, unchanged, on the cluster: as a person runs it, from the rows to a prediction."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster import author, kubectl, left
from tests.cluster.deploying import Served
from tests.cluster.places import places, ran
from tests.docs.page import ROOT
from tests.e2e.author import MUSTER, Author, stages

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 1800  # 27 trainings on a machine that other things share
FOUND = "flights_search on the cluster: its trials, its best, where it trained"


def test_the_best_network_that_is_found_is_served(
    served: Served, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shutil.copytree(ROOT / "dags", tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    file = author.write_file(served.of, tmp_path, **served.written())
    with (
        Author(tmp_path, MUSTER_CLUSTER=str(file)) as person,
        places(served.of, tmp_path / "places") as seen,
    ):
        done = subprocess.run(
            [MUSTER, "run", "flights_search", "--json"],
            cwd=tmp_path,
            env=person.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        print(done.stderr[-20000:])
        (search_id,) = served.store.searches()
        shown = person.muster("search", "show", search_id).stdout
        print(shown)
    assert done.returncode == 0, done.stderr[-4000:]
    search = stages(json.loads(done.stdout))["search"]
    (model,) = search["versions"]["model"]
    trials = json.loads((served.store.path(search["versions"]["results"][0]) / "trials.json").read_text())
    jobs = {job for trial in trials["trials"] for job in trial.get("jobs", ())}
    nodes = {node for job, on in ran(seen).items() if job in jobs for node in on}
    auc = trials["trials"][trials["best"]]["value"]
    record_property(
        FOUND,
        f"{len(trials['trials'])} trials, {len(jobs)} jobs on {', '.join(sorted(nodes))}; "
        f"trial {trials['best']} is the best, auc_held {auc:.4f}, {model}",
    )
    assert len(trials["trials"]) == 27
    assert served.store.record(model).origin.trial == trials["best"]
    assert auc > 0.75
    kubectl.until("nothing is left", lambda: not left.of_anybody(served.of))
