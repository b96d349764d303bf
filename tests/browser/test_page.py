"""The page's own modules in a browser, before a server that answers what a test wants: no Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.browser.chromium import PATIENCE

import muster

pytestmark = pytest.mark.slow

STATIC = Path(muster.__file__).parent / "airflow" / "plugin" / "static"
HOST = "http://airflow.test"
NO_JOBS: dict[str, Any] = {"jobs": [], "total": 0, "states": {}}


class Server:
    """What the page asks; `answers` is what its API says, by path: a status and a document, or None for no answer."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any] | None] = {}
        self.asked: list[str] = []

    def answer(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        self.asked.append(path)
        if path == "/muster/":
            route.fulfill(path=STATIC / "index.html")
        elif path.startswith("/muster/static/"):
            route.fulfill(path=STATIC / path.rpartition("/")[2])
        elif (said := self.answers.get(path, (404, {"detail": "not there"}))) is None:
            route.abort()
        else:
            route.fulfill(status=said[0], content_type="application/json", body=json.dumps(said[1]))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """A tab whose clock the test moves. A mistake of the page's own fails the test."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    context.route("**", server.answer)
    page = context.new_page()
    page.clock.install()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    yield page
    context.close()
    assert mistakes == []


def test_a_server_that_does_not_answer_is_asked_again(page: Page, server: Server) -> None:
    server.answers["/muster/api/jobs"] = None
    page.goto(f"{HOST}/muster/#/jobs")
    alert = page.get_by_role("alert")
    expect(alert).to_have_text("Airflow's api-server does not answer. This page tries again by itself.")
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.clock.run_for(10_000)
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    expect(alert).to_have_count(0)


def test_what_fails_later_is_said_above_what_was_known(page: Page, server: Server) -> None:
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.goto(f"{HOST}/muster/#/jobs")
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    server.answers["/muster/api/jobs"] = (401, {"detail": "Not authenticated"})
    page.clock.run_for(4_000)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Your session has ended: log in to Airflow again.")
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.clock.run_for(10_000)
    expect(alert).to_have_count(0)


def test_what_is_not_there_is_not_asked_for_again(page: Page, server: Server) -> None:
    page.goto(f"{HOST}/muster/#/jobs/gone-1")
    expect(page.get_by_role("alert")).to_have_text("not there")
    page.clock.run_for(100_000)
    assert server.asked.count("/muster/api/jobs/gone-1") == 1


@pytest.mark.parametrize(
    "place",
    [
        "volumes/../../../api/v2/auth/logout",
        "volumes/..%2F..%2F..%2Fapi%2Fv2%2Fauth%2Flogout",
        "volumes/./..",
        "files/a@1/../../../../api/v2/auth/logout",
        "files/a@1/%2e%2e/%2e%2e/%2e%2e/index.html",
        "deployments/..",
        "jobs/..",
    ],
)
def test_no_address_leads_out_of_what_the_page_may_ask(page: Page, server: Server, place: str) -> None:
    page.goto(f"{HOST}/muster/#/{place}")
    expect(page.get_by_role("alert")).to_have_text("There is no such place.")
    assert not [path for path in server.asked if not re.match(r"/muster/(static/.*)?$", path)]


def test_jobs_that_cannot_be_read_have_a_list_of_their_own(page: Page, server: Server) -> None:
    torn = {"job_id": "torn-1", "state": "unreadable", "error": "its spec cannot be read"}
    server.answers["/muster/api/jobs"] = (200, {"jobs": [torn], "total": 1, "states": {"unreadable": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    page.get_by_role("link", name="unreadable 1").click()
    expect(page).to_have_url(f"{HOST}/muster/#/jobs?state=unreadable")
    expect(page.get_by_text("its spec cannot be read")).to_be_visible()


def test_files_that_one_may_not_read_are_not_said_to_be_none(page: Page, server: Server) -> None:
    found = {
        "address": "volume://x/y@1",
        "volume": "x/y",
        "number": 1,
        "digest": "b3:0",
        "partition": None,
        "created": 1.0,
        "deleted": False,
        "size_bytes": 1,
        "retired": None,
        "pins": [],
        "record": None,
        "files": None,
        "total_files": 3,
        "lineage": {"nodes": [], "edges": [], "rows": 0, "complete": True},
        "served_by": [],
    }
    server.answers["/muster/api/version"] = (200, found)
    page.goto(f"{HOST}/muster/#/volumes/x/y@1")
    expect(
        page.get_by_text("Airflow does not let you see what the tasks of this Dag left behind.")
    ).to_be_visible()
    expect(page.get_by_text("a Dag that Airflow does not let you see", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    ("wanted", "chosen", "shown"),
    [
        ("light", "", "rgb(255, 255, 255)"),
        ("dark", "", "rgb(20, 23, 27)"),
        ("dark", "light", "rgb(255, 255, 255)"),
        ("light", "dark", "rgb(20, 23, 27)"),
    ],
)
def test_it_is_light_or_dark_as_the_person_or_airflow_says(
    page: Page, server: Server, wanted: Any, chosen: str, shown: str
) -> None:
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.emulate_media(color_scheme=wanted)
    page.goto(f"{HOST}/muster/")
    if chosen:
        page.evaluate("name => { document.documentElement.dataset.theme = name; }", chosen)
    expect(page.locator("body")).to_have_css("background-color", shown)
