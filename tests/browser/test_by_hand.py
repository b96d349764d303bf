"""What a person does in a browser: triggers a Dag from the form, watches it, follows every link, reads a failure."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.airflow.careful import WAITS, answer
from tests.browser.person import frame, keep, see_canary
from tests.browser.small import NAME, REQUEST
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.site import Site

from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

TEN_MINUTES = 600
EPOCHS = 5
PARAMS = {"epochs": str(EPOCHS), "month": "2013-02", "test_from": "2013-02"}
LINKS = {
    "features": {"Versions and lineage": "small/features"},
    "validate": {"Data Docs": "Expectations"},
    "train": {"Job": "small.train", "Versions and lineage": "auc"},
    "deploy": {"Deployment": "small/model"},
}


@pytest.fixture(scope="module")
def run(site: Site, session: BrowserContext) -> str:
    """The run that was triggered from the form, with other epochs and months, and ended well.

    A page that shows how it goes would keep a core busy for minutes.
    """
    page = session.new_page()
    page.goto(f"{site.url}/dags/{NAME}")
    page.get_by_test_id("trigger-dag-button").first.click()
    form = page.get_by_role("dialog")
    expect(form.locator("[name=element_test_from]")).to_have_value("2013-10")
    for name, value in PARAMS.items():
        form.locator(f"[name=element_{name}]").fill(value)
    keep(page, "form.png")
    form.get_by_test_id("trigger-dag-submit").click()
    page.wait_for_url(re.compile(rf"/dags/{NAME}/runs/[^/]+$"))
    run_id = unquote(page.url.rpartition("/")[2])
    page.goto("about:blank")
    assert site.wait(NAME, run_id, seconds=TEN_MINUTES) == "success"
    page.go_back()
    badges = page.get_by_test_id("state-badge")  # the first of Airflow 3.4 is an icon
    expect(badges.filter(has_text="Success").first).to_be_visible()
    keep(page, "run.png")
    page.close()
    return run_id


def task(site: Site, dag_id: str, run_id: str, task_id: str) -> str:
    return f"{site.url}/dags/{dag_id}/runs/{quote(run_id)}/tasks/{task_id}"


def test_the_params_of_the_form_reached_the_job_and_its_links_open_within_airflow_s_page(
    page: Page, site: Site, run: str
) -> None:
    page.goto(task(site, NAME, run, "train"))
    log = page.get_by_test_id("virtualized-list")
    expect(log).to_contain_text(f"epoch={EPOCHS}/{EPOCHS}")
    expect(log).to_contain_text("[rank 0]")
    page.get_by_role("link", name="Details", exact=True).click()
    for name, address in links(site, run, "train").items():
        shown = page.get_by_role("link", name=name, exact=True)
        expect(shown).to_be_visible()
        assert shown.get_attribute("href") == address
    page.get_by_role("link", name="Job", exact=True).click()
    expect(frame(page).locator("body")).to_contain_text(LINKS["train"]["Job"])


def links(site: Site, run: str, task_id: str) -> dict[str, str]:
    """The links that a task's details show, and where each leads."""
    told = site.ask_api("GET", f"dags/{NAME}/dagRuns/{run}/taskInstances/{task_id}/links")
    return {name: address for name, address in told["extra_links"].items() if address}


def test_every_link_of_a_task_leads_to_what_it_says(page: Page, site: Site, run: str) -> None:
    """The places are opened without Airflow's page around them, which takes seconds to load."""
    for task_id, places in LINKS.items():
        addresses = links(site, run, task_id)
        if endpoint := addresses.pop("Endpoint", ""):
            page.goto(endpoint)
            expect(page.locator("body")).to_contain_text('"y"')
        assert bool(endpoint) == (task_id == "deploy")
        for name, shows in places.items():
            assert addresses[name].startswith("/plugin/muster/"), "it opens within Airflow's page"
            page.goto(f"{site.url}{addresses[name].removeprefix('/plugin/muster')}")
            inside = page.frame_locator("iframe") if name == "Data Docs" else page
            expect(inside.locator("body")).to_contain_text(shows)
            keep(page, f"{task_id}-{name.lower().replace(' ', '-')}.png")


def test_the_page_shows_what_there_is(page: Page, site: Site, run: str) -> None:
    page.goto(site.url)
    page.get_by_text("Muster", exact=True).click()
    inside = frame(page)
    expect(inside.get_by_role("heading", name="Newest runs")).to_be_visible()
    expect(inside.get_by_role("table", name="Deployments")).to_contain_text("serving")
    keep(page, "now.png")
    inside.get_by_role("link", name="Runs", exact=True).click()
    inside.get_by_title(run).first.click()
    expect(inside.get_by_role("table", name="Stages over time")).to_contain_text("train")
    keep(page, "run-of-muster.png")
    inside.get_by_role("link", name="Jobs", exact=True).click()
    expect(inside.get_by_text(f"{NAME}-train-")).to_be_visible()
    keep(page, "jobs.png")
    inside.get_by_role("link", name="Queue", exact=True).click()
    expect(inside.get_by_text("Nothing waits.")).to_be_visible()
    inside.get_by_role("link", name="Volumes", exact=True).click()
    inside.get_by_role("link", name=f"{NAME}/model", exact=True).click()
    keep(page, "volume.png")
    inside.get_by_role("link", name="Deployments", exact=True).click()
    expect(inside.get_by_role("link", name=NAME, exact=True)).to_be_visible()
    keep(page, "deployments.png")


def test_a_canary_is_seen_while_users_ask_and_a_person_is_waited_for(
    page: Page, site: Site, run: str, tmp_path: Path
) -> None:
    other = onnx_graph.write_line(tmp_path / "model", slope=3.0)
    model = FolderStore(site.home / "store").add(f"{NAME}/model", other, partition=PARAMS["month"]).address
    port = int(site.xcom(NAME, run, "deploy")["url"].rpartition(":")[2])
    with Load(port, f"/v1/models/{NAME}:predict", {"inputs": REQUEST}) as users:
        careful = site.trigger("careful", {"model": model})
        site.wait_task("careful", careful, "approve", WAITS)
        says = f"{model.removeprefix('volume://')} is held at 5 %"
        see_canary(page, site, NAME, says=says, name="canary.png")
        answer(site, careful, "Reject")
        assert site.wait("careful", careful) == "failed"
    assert users.failed == {}


@pytest.mark.nightly  # e2e/test_task_log.py reads the log of each fault
def test_a_failed_task_says_why_in_its_last_lines(page: Page, site: Site) -> None:
    run_id = site.trigger("broken")
    assert site.wait("broken", run_id) == "failed"
    page.goto(task(site, "broken", run_id, "train"))
    log = page.get_by_test_id("virtualized-list")
    for line in (
        "user error, rank 1",
        "ValueError: no rows for 2013-02 <b>",
        "full log: muster jobs logs broken-train-",
    ):
        expect(log).to_contain_text(line)
    expect(log).to_contain_text("[rank 0] reading rows")
    keep(page, "failed.png")
    page.get_by_role("link", name="Details", exact=True).click()
    page.get_by_role("link", name="Job", exact=True).click()
    expect(frame(page).locator("body")).to_contain_text("no rows for 2013-02 <b>")
    keep(page, "failed-job.png")
