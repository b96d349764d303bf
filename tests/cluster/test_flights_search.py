"""The example of a search, unchanged, on the cluster: as a person runs it, from the rows to a prediction."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.browser import person
from tests.cluster import author, kubectl, left
from tests.cluster.deploying import Served
from tests.cluster.places import places, ran
from tests.docs.page import ROOT
from tests.e2e.author import Author, stages
from tests.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 1800  # 27 trainings on a machine that other things share
TRIALS, EPOCHS = 27, 9
FOUND = "flights_search on the cluster: its trials, its best, where it trained, what it cost"


@dataclass(frozen=True)
class Ended:
    """The search of a run that has succeeded.

    :param stage: what its task returned.
    :param results: its table of trials.
    :param told: the epochs that each job trained.
    :param nodes: where the pods of each job ran.
    """

    search_id: str
    stage: Mapping[str, Any]
    results: Mapping[str, Any]
    told: Mapping[str, int]
    nodes: Mapping[str, set[str]]

    @property
    def jobs(self) -> list[str]:
        return [job for trial in self.results["trials"] for job in trial.get("jobs", ())]


@pytest.fixture(scope="module")
def ended(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("author")
    copy_dags(folder)
    file = author.write_file(served.of, folder, **served.written())
    with (
        Author(folder, MUSTER_CLUSTER=str(file)) as user,
        places(served.of, folder / "places") as seen,
    ):
        done = user.muster("run", "flights_search", "--json", seconds=SECONDS)
        print(done.stderr[-20000:])
        (search_id,) = served.store.logs("searches")
        print(user.muster("search", "show", search_id, "--trials", str(TRIALS)).stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    stage = stages(json.loads(done.stdout))["search"]
    results = served.store.path(stage["versions"]["results"][0])
    with (results / "curves.csv").open(newline="") as curves:
        rows = [row["job"] for row in csv.DictReader(curves)]
    told = {job: rows.count(job) for job in rows}
    return Ended(search_id, stage, json.loads((results / "trials.json").read_text()), told, ran(seen))


def copy_dags(folder: Path) -> None:
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))


def test_the_best_network_that_is_found_is_served(
    served: Served, ended: Ended, record_property: Callable[[str, object], None]
) -> None:
    trials, best = ended.results["trials"], ended.results["best"]
    (model,) = ended.stage["versions"]["model"]
    auc = trials[best]["value"]
    nodes = {node for job in ended.jobs for node in ended.nodes.get(job, ())}
    epochs = sum(ended.told.values())
    record_property(
        FOUND,
        f"{len(trials)} trials, {len(ended.jobs)} jobs on {', '.join(sorted(nodes))}; "
        f"trial {best} is the best, auc_held {auc:.4f}, {model}",
    )
    record_property(
        FOUND,
        f"{epochs} epochs trained, of {TRIALS * EPOCHS} of the full grid; {held(served, ended):.0f} card-seconds",
    )
    assert len(trials) == TRIALS
    assert served.store.record(model).origin.trial == best
    assert auc > 0.75
    assert epochs <= TRIALS * EPOCHS / 2, "bad trials stop early"
    kubectl.until("nothing is left", lambda: not left.of_anybody(served.of))


def test_the_page_shows_the_search(
    served: Served, ended: Ended, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("site")
    copy_dags(folder)
    with Site(folder) as site, person.browser() as browser:
        site.set("muster", connection="gpus", instance="flights")
        site.up(seconds=300)
        site.airflow_command("connections", "add", "gpus", *author.connection(served.of, **served.written()))
        page = person.log_in(browser, site).new_page()
        page.set_viewport_size({"width": 1400, "height": 2600})
        page.goto(f"{site.url}/plugin/muster/muster/#/searches/{ended.search_id}")
        shown = person.frame(page)
        expect(shown.locator("main")).to_contain_text(f"{TRIALS} of {TRIALS} trials")
        rows = shown.get_by_role("table", name="Trials", exact=True).get_by_role("row")
        expect(rows).to_have_count(TRIALS + 1)
        expect(rows.nth(1)).to_contain_text("best")
        expect(shown.get_by_role("img", name="Learning curves")).to_be_visible()
        person.keep(page, "search-on-the-cluster.png")


def held(served: Served, ended: Ended) -> float:
    """Return the card-seconds of a search: each of its jobs has one card."""
    jobs = [served.store.ledger.status(job) for job in ended.jobs]
    return sum(job.ended - job.started for job in jobs if job.started is not None and job.ended is not None)
