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


def revision(name: str, number: int, state: str, percent: int, **more: Any) -> dict[str, Any]:
    model = {"address": f"volume://flights/model@{number}", "digest": "b3:0", "partition": f"2013-0{number}"}
    known = {"kept": False, "ready": 1, "wanted": 1, "restarts": 0, "since": 1.0, "reason": ""}
    return {"name": name, "model": model, "state": state, "percent": percent} | known | more


def canary(*, percent: int = 20, **release: Any) -> dict[str, Any]:
    """Where @3 is on its way, @2 serves, and @1 was refused in words of markup."""
    under_way = {"revision": "r3", "champion": "r2", "by": "flights.deploy, manual", "since": 1.0}
    figures = {
        "r3": {"requests": 1200, "failed": 7, "p95_seconds": 0.0123},
        "r2": {"requests": 51000, "failed": 0, "p95_seconds": 0.011},
    }
    return {
        "name": "flights",
        "url": "http://127.0.0.1:8081",
        "ready": True,
        "token": "1",
        "reason": "",
        "revisions": [
            revision("r3", 3, "serving", percent),
            revision("r2", 2, "serving", 100 - percent),
            revision("r1", 1, "refused", 0, ready=0, reason="<b>p is 7</b>"),
        ],
        "release": under_way | {"failed": "", "held": False} | release,
        "figures": figures,
        "lately": {"r3": {"requests": 50, "failed": 1, "p95_seconds": 0.02}},
        "lately_seconds": 10.0,
    }


def test_a_canary_is_seen_with_its_share_and_its_figures(page: Page, server: Server) -> None:
    server.answers["/muster/api/deployments"] = (200, {"deployments": [canary()]})
    page.goto(f"{HOST}/muster/#/deployments")
    expect(page.get_by_role("img", name="r2 80 %, r3 20 %")).to_be_visible()
    (wide,) = page.locator("svg.shares rect.coming").evaluate_all(
        "all => all.map(r => r.getAttribute('width'))"
    )
    assert wide == "20"
    row = page.get_by_role("row").nth(1)
    for text in ("serving", "52,200", "12.3 ms", "flights/model@3 is on its way at 20 %"):
        expect(row).to_contain_text(text)
    server.answers["/muster/api/deployments"] = (200, {"deployments": [canary(percent=60)]})
    page.clock.run_for(5_000)
    expect(page.get_by_role("img", name="r2 40 %, r3 60 %")).to_be_visible()


def test_one_deployment_shows_what_each_revision_answered_and_what_is_under_way(
    page: Page, server: Server
) -> None:
    server.answers["/muster/api/deployments/flights"] = (200, canary())
    page.goto(f"{HOST}/muster/#/deployments/flights")
    main = page.locator("main")
    expect(main).to_contain_text("asked for by")
    expect(main).to_contain_text("flights.deploy, manual")
    rows = page.get_by_role("table", name="Revisions of flights, newest first").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("20 %1 of 11,200712.3 ms")
    expect(rows.nth(3)).to_contain_text("<b>p is 7</b>")
    expect(page.get_by_role("table", name="What was answered lately")).to_contain_text("r3505120 ms")
    server.answers["/muster/api/deployments/flights"] = (200, canary(held=True) | {"figures": None})
    page.clock.run_for(3_000)
    expect(main).to_contain_text("flights/model@3 is held at 20 %")
    expect(main).to_contain_text("its servers do not say now what they answered")
    server.answers["/muster/api/deployments/flights"] = (200, canary(failed="7 of 90 requests failed"))
    page.clock.run_for(3_000)
    expect(main).to_contain_text("is taken back")
    expect(main).to_contain_text("7 of 90 requests failed")


def test_what_nobody_looks_at_is_not_asked_for(page: Page, server: Server) -> None:
    server.answers["/muster/api/deployments"] = (200, {"deployments": []})
    page.goto(f"{HOST}/muster/#/deployments")
    expect(page.get_by_text("No deployments yet")).to_be_visible()
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    asked = server.asked.count("/muster/api/deployments")
    page.clock.run_for(60_000)
    assert server.asked.count("/muster/api/deployments") == asked
