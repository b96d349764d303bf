"""The page's own modules in a browser, before a server that answers what a test wants: no Airflow."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests import searched
from tests.browser.chromium import PATIENCE
from tests.browser.person import keep
from tests.outsider.install import install

from muster.core import extensions
from muster.core.series import Series
from muster.ext.page.app import document, files
from muster.ext.search import trials
from muster.ext.search.routes import KnownSearches, TrialCurves, described
from muster.ext.search.space import choice, integers
from muster.ext.search.spec import Event, EventKind
from muster.ext.usage.table import UsageRow, document as document_of_usage
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

HOST = "http://airflow.test"
SCRIPT = "<script>document.title = 'mine'</script><b>"
NO_JOBS: dict[str, Any] = {"jobs": [], "total": 0, "states": {}, "dags": [], "warning": ""}
NOTHING: dict[str, Any] = {
    "running": [],
    "waiting": [],
    "in_all": {"running": 0, "waiting": 0, "failed": 0},
    "failed": [],
    "runs": [],
    "states": {},
    "warning": "",
}


class Server:
    """What the page asks; `answers` is what its API says, by path: a status and a document, or None for no answer."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any] | None] = {}
        self.asked: list[str] = []
        self.queries: list[str] = []

    def answer(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        self.asked.append(path)
        self.queries.append(f"{path}?{urlsplit(route.request.url).query}")
        if path == "/muster/":
            route.fulfill(body=document(), content_type="text/html")
        elif path.startswith("/muster/static/"):
            route.fulfill(path=files()[path.removeprefix("/muster/static/")])
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
    expect(alert).to_contain_text("Airflow's api-server does not answer. This page tries again by itself.")
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.clock.run_for(10_000)
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    expect(alert).to_have_count(0)


def test_a_server_that_hangs_is_said_after_ten_seconds_and_asked_when_a_person_wants(
    page: Page, server: Server
) -> None:
    hung: list[Route] = []
    page.route("**/muster/api/jobs?*", lambda route: hung.append(route))
    page.goto(f"{HOST}/muster/#/jobs")
    expect(page.get_by_text("Loading")).to_be_visible()
    page.clock.run_for(11_000)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("has not answered for 10 seconds")
    page.unroute("**/muster/api/jobs?*")
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.get_by_role("button", name="try now").click()
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    expect(alert).to_have_count(0)
    server.answers["/muster/api/volumes"] = None
    page.goto(f"{HOST}/muster/#/volumes")
    expect(alert).to_contain_text("does not answer")
    server.answers["/muster/api/volumes"] = (200, {"volumes": []})
    page.get_by_role("button", name="try now").click()
    expect(page.get_by_text("No volumes yet")).to_be_visible()


def test_numbers_are_exact_or_honestly_rounded(page: Page, server: Server) -> None:
    page.goto(f"{HOST}/muster/#/nonsense")
    ask = "async text => { const f = await import('/muster/static/format.js'); return eval(text); }"
    for text, shown in (
        ("f.number(123456789.12)", "123,456,789.12"),
        ("f.number(0.123456789)", "0.12346"),
        ("f.number(1e300)", "1e+300"),
        ("f.number(20000)", "20,000"),
        ("f.gib(4713000)", "4.49 MiB"),
        ("f.gib(64 * 2 ** 30)", "64 GiB"),
        ("f.milliseconds(3.04)", "3,040 ms"),
        ("f.milliseconds(61)", "1 min 1 s"),
    ):
        assert page.evaluate(ask, text) == shown, text


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
    expect(page.get_by_role("alert")).to_have_text("not there Jobs that there are")
    page.clock.run_for(100_000)
    assert server.asked.count("/muster/api/jobs/gone-1") == 1


def test_no_address_leads_out_of_what_the_page_may_ask(page: Page, server: Server) -> None:
    for place in (
        "volumes/../../../api/v2/auth/logout",
        "volumes/..%2F..%2F..%2Fapi%2Fv2%2Fauth%2Flogout",
        "volumes/./..",
        "files/a@1/../../../../api/v2/auth/logout",
        "files/a@1/%2e%2e/%2e%2e/%2e%2e/index.html",
        "deployments/..",
        "jobs/..",
    ):
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/#/{place}")
        expect(page.get_by_role("heading", name="There is no such place"), place).to_be_visible()
        assert not [path for path in server.asked if not re.match(r"/muster/(static/.*)?$", path)], place


def test_jobs_that_cannot_be_read_have_a_list_of_their_own(page: Page, server: Server) -> None:
    torn = {"job_id": "torn-1", "state": "unreadable", "error": "its spec cannot be read"}
    server.answers["/muster/api/jobs"] = (200, {"jobs": [torn], "total": 1, "states": {"unreadable": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    page.get_by_role("link", name="unreadable 1").click()
    expect(page).to_have_url(f"{HOST}/muster/#/jobs?state=unreadable")
    expect(page.get_by_text("its spec cannot be read")).to_be_visible()


def test_a_disk_that_is_nearly_full_is_said_above_the_jobs(page: Page, server: Server) -> None:
    warning = "the disk at /mnt has 1.0 MiB free of 10.0 GiB: jobs fail when it is full"
    server.answers["/muster/api/jobs"] = (200, {**NO_JOBS, "warning": warning})
    page.goto(f"{HOST}/muster/#/jobs")
    expect(page.get_by_text(warning)).to_be_visible()


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
    page.goto(f"{HOST}/muster/#/volumes/x/y@1?tab=files")
    expect(
        page.get_by_text("Airflow does not let you see what the tasks of this Dag left behind.")
    ).to_be_visible()
    page.get_by_role("link", name="overview").click()
    expect(page.get_by_text("a Dag that Airflow does not let you see", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_it_is_light_or_dark_as_the_person_or_airflow_says(page: Page, server: Server) -> None:
    server.answers["/muster/api/first"] = (200, NOTHING)
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
    for wanted, chosen, shown in (
        ("light", "", light),
        ("dark", "", dark),
        ("dark", "light", light),
        ("light", "dark", dark),
    ):
        page.emulate_media(color_scheme=wanted)  # type: ignore[arg-type]
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/")
        if chosen:
            page.evaluate("name => { document.documentElement.dataset.theme = name; }", chosen)
        expect(page.locator("body"), f"{wanted} {chosen}").to_have_css("background-color", shown)


def revision(name: str, number: int, state: str, percent: int, **more: Any) -> dict[str, Any]:
    model = {"address": f"volume://flights/model@{number}", "digest": "b3:0", "partition": f"2013-0{number}"}
    known = {"kept": False, "ready": 1, "wanted": 1, "restarts": 0, "since": 1.0, "reason": ""}
    return {"name": name, "model": model, "state": state, "percent": percent} | known | more


def canary(*, percent: int = 20, **release: Any) -> dict[str, Any]:
    """Where @3 is on its way, @2 serves, and @1 was refused in words of markup."""
    under_way = {"revision": "r3", "champion": "r2", "by": "flights.deploy, manual", "since": 1.0}
    figures = {
        "r3": {"requests": 1200, "failed": 7, "p95_seconds": 0.0123, "outside": {"month": 12}},
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
    quiet = {"r2": {"requests": 0, "failed": 0, "p95_seconds": None}}
    for text in ("serving", "52,200", "12.3 ms", "flights/model@3 is on its way at 20 %"):
        expect(row).to_contain_text(text)
    server.answers["/muster/api/deployments"] = (200, {"deployments": [canary(percent=60)]})
    page.clock.run_for(5_000)
    expect(page.get_by_role("img", name="r2 40 %, r3 60 %")).to_be_visible()
    server.answers["/muster/api/deployments"] = (200, {"deployments": [canary() | {"figures": quiet}]})
    page.clock.run_for(5_000)
    expect(row).not_to_contain_text("52,200")
    expect(row).not_to_contain_text(" ms")


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
    expect(main).to_contain_text("r3: month in 12 of 1,200 requests")
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


RUN_ID = "asset_triggered__2026-11-23T18:45:06.123456+00:00_r4nd0mch"
JOB_ID = "pipeline-with-a-long-name-train-6f2a1b3c4d5e-1"
EVIL = "m" * 120


def busy_job() -> dict[str, Any]:
    return {
        "job_id": JOB_ID,
        "state": "queued",
        "error": "",
        "name": "pipeline_with_a_long_name.train_the_model",
        "origin": {"dag_id": "pipeline", "run_id": RUN_ID, "task_id": "train", "map_index": -1},
        "task": "pipeline_with_a_long_name.train_the_model",
        "task_url": None,
        "queue": "team-blue",
        "priority": "high",
        "ranks": 16,
        "gpus": 16,
        "submitted": 1.0,
        "started": None,
        "ended": None,
        "reason": "waiting for 16 GPUs of gpu-a100: 4 of 16 are free, and 12 are another gang's",
        "restarts": 0,
        "alive": True,
        "verdict": None,
        "progress": {},
        "links": {},
        "made": [],
        "made_in_all": 0,
    }


def a_version(number: int, **more: Any) -> dict[str, Any]:
    address = f"volume://team/pipeline-with-a-long-name/model@{number}"
    made = {"number": number, "partition": "2013-10", "digest": "b3:0", "created": 1.0, "files": 5}
    values = {"learning_rate": 0.00094363 * number, "auc": 0.7476, EVIL: 1e300}
    known = {"size_bytes": 123_456, "retired": None, "pins": ["champion"], "job_id": JOB_ID, "note": ""}
    return {"address": address, "volume": "m", "values": values} | made | known | more


def volume(*versions: dict[str, Any]) -> dict[str, Any]:
    """A page of versions; every value is a column."""
    names = list(versions[0]["values"])
    return {
        "volume": "m",
        "total": len(versions),
        "looked_at": len(versions),
        "names": {"metrics": names, "params": ["epochs"]},
        "columns": names,
        "versions": list(versions),
    }


def overflow(page: Page) -> int:
    """By how many pixels the page itself is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def test_what_a_job_says_is_seen_at_every_width(page: Page, server: Server) -> None:
    found = {"jobs": [busy_job()], "total": 1, "states": {"queued": 1}}
    server.answers["/muster/api/jobs"] = (200, found)
    for width in (420, 1400, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/#/jobs")
        says = page.locator("td.says")
        expect(says).to_contain_text("12 are another gang's")
        box = says.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        assert box["width"] >= 240
        assert overflow(page) <= 0
        assert page.locator("td.name small").get_attribute("title") == RUN_ID


@pytest.mark.parametrize("queue", ["team-blue", None])
def test_a_list_of_jobs_without_queues_has_no_column_for_them(
    page: Page, server: Server, queue: str | None
) -> None:
    job = busy_job() | {"queue": queue, "priority": None}
    server.answers["/muster/api/jobs"] = (200, {"jobs": [job], "total": 1, "states": {"queued": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    titles = ["State", "Job", "Task", "Queue", "Ranks", "Since", "Took", "What it says"]
    expect(page.get_by_role("columnheader")).to_have_text(
        [each for each in titles if queue or each != "Queue"]
    )


def test_a_job_that_succeeded_says_beside_its_versions_what_it_survived(page: Page, server: Server) -> None:
    survived = "the worker of replica 2 was lost at 2026-11-26 14:03:22 UTC (killed by SIGKILL), and the driver went on without it"
    job = busy_job() | {"state": "succeeded", "started": 2.0, "ended": 3.0, "reason": survived}
    job |= {"made": ["volume://team/rows@3"], "made_in_all": 1}
    server.answers["/muster/api/jobs"] = (200, {"jobs": [job], "total": 1, "states": {"succeeded": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    expect(page.locator("td.says")).to_contain_text("team/rows@3")
    expect(page.locator("td.says")).to_contain_text(survived)


def test_versions_of_long_names_stay_readable(page: Page, server: Server) -> None:
    found = volume(a_version(2), a_version(1))
    server.answers["/muster/api/volumes/m"] = (200, found)
    for width in (420, 1400, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/#/volumes/m")
        row = page.get_by_role("row", name="@2", exact=False).first
        link = row.get_by_role("link", name=JOB_ID)
        box = link.bounding_box()
        assert box is not None
        assert box["width"] >= 60  # not one letter a line
        assert box["height"] <= 110
        assert overflow(page) <= 0
        for text in page.locator("svg text").all():
            place, drawn = text.bounding_box(), page.locator("svg").first.bounding_box()
            assert place is not None
            assert drawn is not None
            assert place["x"] >= drawn["x"]  # no digit of the scale is cut off
        assert "1e+300" in row.inner_text()
        below = page.locator("svg").first.locator("text", has_text="@").all_text_contents()
        assert len(below) == len(set(below)), "each version is named once"


def test_a_long_name_of_a_metric_leaves_its_value_on_the_page(page: Page, server: Server) -> None:
    metrics = {EVIL: 1e300, "auc": 0.5}
    job = busy_job() | {
        "state": "running",
        "metrics": metrics,
        "may": {"log": False, "cancel": False},
        "image": "train",
        "launcher": "torchrun",
        "roles": [],
        "inputs": {},
        "outputs": {"model": []},
        "writes": {"model": "a/model"},
        "params": {},
    }
    server.answers[f"/muster/api/jobs/{JOB_ID}"] = (200, job)
    for width in (420, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/#/jobs/{JOB_ID}")
        value = page.get_by_text("1e+300")
        box = value.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        assert overflow(page) <= 0
        expect(page.locator("main")).to_contain_text("committed at its end")


def test_times_say_their_zone(page: Page, server: Server) -> None:
    server.answers["/muster/api/jobs"] = (200, {"jobs": [busy_job()], "total": 1, "states": {"queued": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    assert str(page.locator("time").first.get_attribute("title")).endswith("1970-01-01 00:00:01 UTC")


def test_no_second_header_is_seen_before_the_scripts_have_loaded(page: Page, server: Server) -> None:
    page.route("**/app.js", lambda route: route.abort())
    page.goto(f"{HOST}/muster/")
    expect(page.get_by_text("Loading")).to_be_visible()
    expect(page.locator(".brand")).to_be_hidden()
    page.unroute("**/app.js")
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.goto(f"{HOST}/muster/#/jobs")
    page.reload()
    expect(page.locator(".brand")).to_be_visible()


def failed(job_id: str, **more: Any) -> dict[str, Any]:
    verdict = {"cause": "user error", "rank": 1, "message": "ValueError: no rows <b>", "advice": "mend it"}
    ended = {"state": "failed", "started": 5.0, "ended": 60.0, "verdict": verdict, "mended": False}
    return busy_job() | {"job_id": job_id, "name": f"flights.{job_id}"} | ended | more


def test_the_first_screen_says_what_runs_waits_failed_and_serves(page: Page, server: Server) -> None:
    gate = failed("gate") | {"job_id": "", "verdict": None, "error": "gate closed: auc is 0.5"}
    found = NOTHING | {
        "waiting": [busy_job()],
        "in_all": {"running": 0, "waiting": 41, "failed": 9},
        "failed": [failed("old", mended=True), failed("new"), gate],
        "airflow": [{"dag_id": "hills", "waiting": 3, "running": 1, "most": 1, "paused": False}],
        "warning": "the disk has 1.0 MiB free",
    }
    server.answers["/muster/api/first"] = (200, found)
    server.answers["/muster/api/deployments"] = (200, {"deployments": [canary()]})
    page.goto(f"{HOST}/muster/")
    main = page.locator("main")
    for text in (
        "Nothing runs.",
        "44",
        "and 6 more",
        "max_active_runs is 1",
        "gate closed",
        "12 are another gang's",
        "ValueError: no rows <b>",
        "1.0 MiB free",
    ):
        expect(main).to_contain_text(text)
    expect(page.get_by_text("mended since")).to_have_count(1)
    expect(main.get_by_role("link", name="flights.gate")).to_have_attribute(
        "href", re.compile("^#/runs/pipeline/")
    )
    expect(page).to_have_title("Now · muster")
    expect(page.get_by_role("table", name="Deployments")).to_contain_text("52,200")


def test_deployments_that_are_away_take_nothing_else_from_the_first_screen(
    page: Page, server: Server
) -> None:
    server.answers["/muster/api/first"] = (200, NOTHING)
    server.answers["/muster/api/deployments"] = (503, {"detail": "the cluster does not answer"})
    page.goto(f"{HOST}/muster/")
    expect(page.get_by_text("Nothing waits.")).to_be_visible()
    expect(page.get_by_text("the cluster does not answer")).to_be_visible()


def test_columns_are_chosen_sorted_and_remembered_and_versions_are_compared(
    page: Page, server: Server
) -> None:
    one, two = (a_version(n, values={"auc": 0.7 + n / 100, "loss": 1 / n}) for n in (1, 2))
    server.answers["/muster/api/volumes/m"] = (200, volume(two, one))
    page.goto(f"{HOST}/muster/#/volumes/m")
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("@2")
    page.get_by_role("button", name="loss", exact=True).click()
    expect(rows.nth(1)).to_contain_text("@1")
    page.get_by_label("Compare @1").check()
    page.get_by_label("Compare @2").check()
    compare = page.get_by_role("link", name="compare 2")
    address = compare.get_attribute("href") or ""
    assert address.startswith("#/compare?v=team%2Fpipeline")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("epochs").check()
    page.get_by_role("button", name="show these").click()
    expect(page).to_have_url(re.compile("columns=auc%2Closs%2Cepochs"))
    page.goto(f"{HOST}/muster/#/jobs/x")
    expect(page.get_by_role("alert")).to_contain_text("not there")  # the table of before is gone
    server.queries.clear()
    page.goto(f"{HOST}/muster/#/volumes/m")
    expect(rows.nth(1)).to_be_visible()
    assert any("columns=auc%2Closs%2Cepochs" in each for each in server.queries)


def test_a_person_is_asked_twice_before_a_release_is_taken_back(page: Page, server: Server) -> None:
    found = canary() | {"may": {"change": True}, "curl": "curl -si x"}
    found |= {"back": {"revision": "r3", "serves": "r2", "why": ""}}
    server.answers["/muster/api/deployments/flights"] = (200, found)
    server.answers["/muster/api/deployments/flights/rollback"] = (200, {"serves": "r2"})
    page.goto(f"{HOST}/muster/#/deployments/flights")
    page.get_by_role("button", name="Roll back").click()
    question = "Take r3 (@3) back? r2 (@2) has all traffic then, and r3 is refused."
    expect(page.get_by_text(question)).to_be_visible()
    page.get_by_role("button", name="no").click()
    assert not [each for each in server.asked if each.endswith("rollback")]
    page.get_by_role("button", name="Roll back").click()
    with page.expect_response("**/rollback?revision=r3"):
        page.get_by_role("button", name="take it back").click()
    expect(page.get_by_text("asked for …")).to_be_visible()
    assert "/muster/api/deployments/flights/rollback?revision=r3" in server.queries
    expect(page.get_by_text("curl -si x")).to_be_visible()


def test_who_may_not_change_a_release_sees_no_button(page: Page, server: Server) -> None:
    found = canary() | {"may": {"change": False}, "back": {"revision": "r3", "why": ""}}
    server.answers["/muster/api/deployments/flights"] = (200, found)
    page.goto(f"{HOST}/muster/#/deployments/flights")
    expect(page.get_by_role("table", name="Revisions of flights, newest first")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Roll back|promote"))).to_have_count(0)


def curve(name: str, source: str, *values: float) -> dict[str, Any]:
    seconds = list(range(len(values)))
    return {"name": name, "source": source, "seconds": seconds, "values": list(values)}


def test_a_jobs_curves_and_the_lines_of_one_rank_are_seen(page: Page, server: Server) -> None:
    job = failed(JOB_ID, metrics={}, params={}, inputs={}, outputs={}, roles=[], parts=[], image="train")
    where = f"/muster/api/jobs/{JOB_ID}"
    server.answers[where] = (200, job | {"may": {"log": True, "cancel": False}, "launcher": "plain"})
    server.answers[f"{where}/log"] = (
        200,
        {
            "text": "[rank 0] hello\n[rank 0] again\n",
            "times": [[0, 7.0], [1, 9.0]],
            "next": 30,
            "bytes": 30,
            "skipped_bytes": 0,
        },
    )
    server.answers[f"{where}/found"] = (
        200,
        {"lines": ["[rank 1] needle"], "times": [8.0], "total": 1, "complete": True},
    )
    numbers = [curve("loss", "0", 0.9, 0.5), curve("loss", "1", 0.8, 0.4)]
    use = [curve("memory_gib", "main-0", 1.0, 2.5)]
    series = {"start": 1.0, "numbers": numbers, "use": use, "lines_left_out": 7}
    server.answers[f"{where}/series"] = (200, series)
    page.goto(f"{HOST}/muster/#/jobs/{JOB_ID}")
    expect(page.get_by_role("img", name="loss: rank 0 0.5, rank 1 0.4")).to_be_visible()
    expect(page.get_by_role("img", name="memory: main-0 2.5 GiB")).to_be_visible()
    expect(page.get_by_text("7 lines came too fast to be read")).to_be_visible()
    expect(page.get_by_label("Log", exact=True)).to_contain_text("[rank 0] hello")
    row = page.get_by_text("[rank 0] again").locator("xpath=ancestor-or-self::*[@data-at]").first
    assert str(row.get_attribute("title")).endswith("1970-01-01 00:00:09 UTC")
    page.get_by_label("Only of this rank").select_option("1")
    expect(page.get_by_label("Lines found")).to_have_text("[rank 1] needle")
    expect(page.get_by_label("Log", exact=True)).to_be_hidden()
    whole = page.get_by_role("link", name="download these lines")
    assert str(whole.get_attribute("href")).endswith("/whole.log?rank=1&times=true")
    page.get_by_label("times").uncheck()
    assert str(whole.get_attribute("href")).endswith("/whole.log?rank=1&times=false")


def test_times_are_in_the_zone_that_airflow_shows(page: Page, server: Server) -> None:
    server.answers["/muster/api/jobs"] = (200, {"jobs": [busy_job()], "total": 1, "states": {"queued": 1}})
    page.goto(f"{HOST}/muster/#/jobs")
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    page.reload()
    title = str(page.locator("time").first.get_attribute("title"))
    assert title == "1970-01-01 09:00:01 GMT+9, 1970-01-01 00:00:01 UTC"


def a_stage(label: str, does: str, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "why": "",
        "image": None,
        "image_built": None,
        "inputs": {},
        "needs": {},
        "start": None,
        "warnings": [],
        "deploys": None,
    }
    return {"task_id": label, "label": label, "does": does} | known | more


def a_plan() -> dict[str, Any]:
    gib = 1 << 30
    waits = {
        "when": "waits",
        "why": "",
        "queue": "team-blue",
        "ahead": ["flights.train", "sparse.fit", "c", "d"],
        "starts": {"p50": 60.0, "p90": 720.0},
        "ends": {"p50": 660.0, "p90": 1500.0},
    }
    never = {"when": "never", "why": "16 GPUs of class h100: the queue has 8", "queue": "", "ahead": []}
    model = "volume://flights/model@3"
    stages = [
        a_stage("etl", "kept", why="kept flights/rows@7 of run r1", image="etl", image_built=True),
        a_stage(
            "train",
            "runs",
            why="epochs 4 → 5",
            image="train",
            image_built=False,
            inputs={"rows": ["volume://flights/rows@7"]},
            needs={"cpu": 16.0, "memory": 64.0 * gib, "gpu": 2.0},
            start=waits,
        ),
        a_stage(
            "huge",
            "runs",
            inputs={"rows": ["what train makes"]},
            needs={"cpu": 1.0, "memory": 1.0 * gib},
            start=never | {"starts": None, "ends": None},
        ),
        a_stage(
            "deploy",
            "deploys",
            deploys={"name": "flights", "model": "what gate passes", "instead_of": model},
        ),
    ]
    return {
        "dag_id": "flights",
        "params": {"epochs": 5, "month": "2013-10"},
        "stages": stages,
        "cpu_hours": 2.6667,
        "gpu_hours": 0.3333,
        "ends": {"p50": 660.0, "p90": 1500.0},
        "warnings": ["dag flights has used 201 of 200 GPU-hours of this month"],
        "unseen": "",
    }


def test_a_plan_is_read_before_the_trigger(page: Page, server: Server) -> None:
    server.answers["/muster/api/dags"] = (200, {"dags": ["flights"], "why_not": ""})
    server.answers["/muster/api/plan"] = (200, a_plan())
    page.goto(f"{HOST}/muster/#/plan")
    page.get_by_role("link", name="flights").click()
    train = page.get_by_role("row", name="train").first
    for text in (
        "epochs 4 → 5",
        "to be built",
        "16 CPUs, 64 GiB",
        "2 GPUs",
        "in 1 min to 12 min",
        "10 min",
        "place 5 of queue team-blue, behind flights.train, sparse.fit, c and 1 more",
    ):
        expect(train).to_contain_text(text)
    expect(page.get_by_role("row", name="huge")).to_contain_text("the queue has 8")
    expect(page.get_by_role("row", name="deploy")).to_contain_text(
        "flights would serve what gate passes, in place of flights/model@3"
    )
    expect(page.locator("main")).to_contain_text("GPU-hours0.333")
    expect(page.get_by_text("dag flights has used 201 of 200 GPU-hours of this month")).to_be_visible()
    page.get_by_label("epochs").fill("9")
    with page.expect_request(lambda request: "params=" in request.url and "/api/plan" in request.url) as sent:
        page.get_by_role("button", name="plan it with these").click()
    asked = parse_qs(urlsplit(sent.value.url).query)
    assert json.loads(asked["params"][0]) == {"epochs": "9", "month": "2013-10"}


def test_a_plan_that_is_refused_says_why_and_leads_back(page: Page, server: Server) -> None:
    server.answers["/muster/api/plan"] = (
        400,
        {"detail": "Dag flights has no param 'x'; its params are epochs"},
    )
    page.goto(f"{HOST}/muster/#/plan/flights?params=%7B%22x%22%3A1%7D")
    expect(page.get_by_role("alert")).to_contain_text("no param 'x'")
    link = page.get_by_role("link", name="Plan it with the Dag's own params")
    assert link.get_attribute("href") == "#/plan/flights"


def test_an_api_server_that_plans_nothing_says_what_to_type(page: Page, server: Server) -> None:
    refused = "This api-server runs no code of Dag authors: type `muster plan DAG`."
    server.answers["/muster/api/dags"] = (200, {"dags": ["flights"], "why_not": refused})
    page.goto(f"{HOST}/muster/#/plan")
    expect(page.get_by_text(refused)).to_be_visible()
    expect(page.get_by_role("link", name="flights")).to_have_count(0)


def test_usage_of_a_period_of_a_version_and_of_a_job(page: Page, server: Server) -> None:
    def row(name: str, held: float, wasted: float) -> dict[str, Any]:
        gpu = (held, held - wasted, wasted, 0.0)
        return document_of_usage(("dag",), UsageRow(keys=(name,), jobs=3, gpu=gpu, cpu=(8.0, 1.5, 2.5, 4.0)))

    server.answers["/muster/api/usage"] = (200, {"rows": [row("flights", 41.2, 9.0), row("<b>", 1.0, 0.5)]})
    page.goto(f"{HOST}/muster/#/usage")
    expect(page.get_by_role("row", name="flights")).to_contain_text("flights341329.008.001.502.50")
    expect(page.get_by_role("row").nth(1)).to_contain_text("flights")
    expect(page.get_by_text("Not measured")).to_contain_text("0.00 GPU-hours, 8.00 CPU-hours")
    page.get_by_role("button", name="CPU-hours wasted").click()
    server.answers["/muster/api/usage"] = (200, {"rows": []})
    page.get_by_role("link", name="90 days").click()
    expect(page.get_by_text("No job held anything in 90 days.")).to_be_visible()
    page.get_by_role("link", name="by model").click()
    expect(page.get_by_text("No job made a model that a deployment serves.")).to_be_visible()
    assert server.queries[-1] == "/muster/api/usage?by=model&days=90"
    server.answers["/muster/api/version"] = (200, the_version())
    page.goto(f"{HOST}/muster/#/volumes/flights/model@7")
    expect(page.get_by_role("heading", name="flights/model@7")).to_be_visible()
    server.answers["/muster/api/usage/version"] = (200, {"rows": [row("flights", 41.2, 9.0)]})
    page.reload()
    expect(page.locator("main")).to_contain_text("41 GPU-hours, 9.00 wasted by 3 jobs that made it")
    job = failed(JOB_ID, metrics={}, params={}, inputs={}, outputs={}, roles=[], parts=[], image="train")
    job |= {"may": {"log": False, "cancel": False}, "launcher": "plain"}
    server.answers[f"/muster/api/jobs/{JOB_ID}"] = (200, job)
    server.answers[f"/muster/api/usage/jobs/{JOB_ID}"] = (200, {"rows": [row("flights", 0.0, 0.0)]})
    page.goto(f"{HOST}/muster/#/jobs/{JOB_ID}")
    expect(page.locator("main")).to_contain_text("8.00 CPU-hours, 2.50 wasted, 4.00 not measured")


def test_two_runs_are_ticked_and_compared(page: Page, server: Server) -> None:
    known = {"dag_id": "flights", "state": "succeeded", "ended": 90.0, "stages": [], "run_url": None}
    runs = [known | {"run_id": f"r{n}", "began": float(n)} for n in (3, 2, 1)]
    server.answers["/muster/api/runs"] = (200, {"runs": runs, "total": 3, "dags": ["flights"]})
    facts = [
        {"name": "params.epochs", "old": 4, "new": 5},
        {"name": "code", "old": "b3:" + "a" * 64, "new": None},
    ]
    change = {"path": "train.py", "change": "changed", "lines": ["@@ -1 +1 @@", "-old", "+new"], "cut": False}
    stages = [
        {"stage": "train", "only": "", "facts": facts, "seconds": [60.0, 90.0], "code": [change]},
        {"stage": "etl", "only": "", "facts": [], "seconds": [1.0, None], "code": []},
        {"stage": "gate", "only": "new", "facts": [], "seconds": [None, None], "code": []},
    ]
    server.answers["/muster/api/run_diff"] = (200, {"old": runs[2], "new": runs[1], "stages": stages})
    page.goto(f"{HOST}/muster/#/runs")
    compare = page.get_by_role("link", name="compare", exact=True)
    page.get_by_label("Compare r2").check()
    expect(compare).to_be_hidden()
    page.get_by_label("Compare r1").check()
    compare.click()
    main = page.locator("main")
    for text in ("1 min → 1 min 30 s", "+new", "the same", "Only the second run has this stage."):
        expect(main).to_contain_text(text)
    expect(page.get_by_role("row", name="params.epochs")).to_contain_text("5")
    assert any(each.endswith("old_dag=flights&old=r1&new_dag=flights&new=r2") for each in server.queries)


def test_stages_are_in_the_order_in_which_they_began(page: Page, server: Server) -> None:
    """A kept one among them, which has no job of the run."""
    times = {"submitted": 1.0, "started": 1.0, "ended": 1.0}
    kept = {
        "stage": "features",
        "state": "kept",
        "line": "",
        "kept_of": "older-1",
        "outputs": {},
        "search_id": "",
    }
    job = busy_job() | {"stage": "train", "outputs": {}, "inputs": {}, "params": {}, "metrics": {}}
    run = {
        "dag_id": "flights",
        "run_id": "r1",
        "run_url": None,
        "state": "succeeded",
        "began": 1.0,
        "ended": 9.0,
        "stages": [{"stage": name, "state": "succeeded", "job_id": ""} for name in ("features", "train")],
        "jobs": [job | {"submitted": 2.0, "started": 3.0, "ended": 9.0}],
        "ends": [kept | times],
        "searching": [],
    }
    server.answers["/muster/api/run"] = (200, run)
    server.answers["/muster/api/runs"] = (200, {"runs": [run], "total": 1, "dags": ["flights"]})
    page.goto(f"{HOST}/muster/#/runs/flights/r1")
    over_time = page.get_by_role("table", name="Stages over time").get_by_role("rowheader")
    expect(over_time).to_have_text(["features", "train"])
    expect(page.get_by_role("table", name="Stages", exact=True).get_by_role("row")).to_contain_text(
        ["Stage", "features", "train"]
    )


def the_version(**more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "address": "volume://flights/model@7",
        "volume": "flights/model",
        "number": 7,
        "digest": "b3:0",
        "partition": None,
        "created": 1.0,
        "deleted": False,
        "size_bytes": 9,
        "retired": None,
        "pins": ["deployment/flights", "in the paper"],
        "record": None,
        "files": [],
        "total_files": 0,
        "lineage": {"nodes": [], "edges": [], "rows": 0, "complete": True},
        "documents": [],
        "used_by": [],
        "served_by": [],
        "may": {"change": True},
    }
    return known | more


def test_a_version_is_pinned_and_hidden_after_a_second_question(page: Page, server: Server) -> None:
    server.answers["/muster/api/version"] = (200, the_version(pins=["in the paper"]))
    for act in ("pin", "unpin", "retire"):
        server.answers[f"/muster/api/version/{act}"] = (200, {"pins": [], "retired": None})
    page.goto(f"{HOST}/muster/#/volumes/flights/model@7")
    page.get_by_label("Why, one line").fill("torn rows")
    page.get_by_role("button", name="retire").click()
    assert not [each for each in server.asked if each.endswith("retire")]
    server.answers["/muster/api/version"] = (200, the_version(pins=["in the paper"], retired="torn rows"))
    page.get_by_role("button", name="hide it").click()
    expect(page.get_by_text("Retired, so no selector finds it: torn rows")).to_be_visible()
    expect(page.get_by_role("button", name="reinstate")).to_be_visible()
    page.get_by_role("button", name="unpin: in the paper").click()
    with page.expect_response("**/version/unpin?*"):
        page.get_by_role("button", name="take the pin away").click()
    expect(page.get_by_role("button", name="unpin: in the paper")).to_be_visible()
    address = "address=volume%3A%2F%2Fflights%2Fmodel%407"
    assert f"/muster/api/version/retire?{address}&reason=torn+rows" in server.queries
    assert f"/muster/api/version/unpin?{address}&reason=in+the+paper" in server.queries


def test_a_version_that_is_served_is_neither_unpinned_nor_hidden(page: Page, server: Server) -> None:
    server.answers["/muster/api/version"] = (200, the_version())
    page.goto(f"{HOST}/muster/#/volumes/flights/model@7")
    expect(page.get_by_text("to retire it, release another version first")).to_be_visible()
    expect(page.get_by_role("button", name="unpin: in the paper")).to_be_visible()
    expect(page.get_by_role("button", name="unpin: deployment/flights")).to_have_count(0)
    expect(page.get_by_role("button", name="retire")).to_have_count(0)


def test_who_may_not_change_a_version_sees_no_button(page: Page, server: Server) -> None:
    server.answers["/muster/api/version"] = (200, the_version(may={"change": False}))
    page.goto(f"{HOST}/muster/#/volumes/flights/model@7")
    expect(page.get_by_role("heading", name="flights/model@7")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("pin|retire"))).to_have_count(0)


def test_a_repair_says_what_it_did(page: Page, server: Server) -> None:
    found = canary() | {"may": {"change": True}, "back": None, "curl": ""}
    server.answers["/muster/api/deployments/flights"] = (200, found)
    server.answers["/muster/api/deployments/flights/repair"] = (200, {"done": []})
    page.goto(f"{HOST}/muster/#/deployments/flights")
    page.get_by_role("button", name="Repair").click()
    page.get_by_role("button", name="repair it").click()
    expect(page.get_by_text("nothing was to be repaired")).to_be_visible()


def test_the_store_says_its_room_its_last_check_and_its_images(page: Page, server: Server) -> None:
    checked = {
        "at": 1.0,
        "deep": True,
        "versions": 12,
        "files": 40,
        "size_bytes": 5_000_000,
        "damaged": 1,
        "damage": ["raw/one@3: missing file: 'y'. retire it"],
        "harmless": 2,
    }
    held = [{"job_id": "j-1", "ended": 1.0, "outputs_bytes": 7_000, "checkpoints_bytes": 0}]
    room = {"text": "9.1 GiB of 80 GiB are free", "comfortable": True}
    answer = {"room": room, "checked": checked, "held": held, "held_by_others_bytes": 1_000}
    server.answers["/muster/api/upkeep"] = (200, answer)
    image = {"name": "train", "digest": "b3:0123456789", "folder": "images/train", "built": False}
    more = {"size_bytes": None, "trouble": "its lock is older than requirements.in", "path": None}
    server.answers["/muster/api/images"] = (200, {"here": True, "images": [image | more]})
    page.goto(f"{HOST}/muster/#/store")
    main = page.locator("main")
    for text in (
        "80 GiB are free",
        "1 problem found",
        "missing file: 'y'",
        "2 harmless findings",
        "7.0 kB",
    ):
        expect(main).to_contain_text(text)
    page.get_by_role("link", name="images").click()
    row = page.get_by_role("row", name="train")
    for text in ("b3:01234567", "no", "older than requirements.in"):
        expect(row).to_contain_text(text)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install an outsider's extension, with a tab."""
    monkeypatch.syspath_prepend(install(tmp_path))
    extensions.find.cache_clear()
    yield tmp_path / "counts"
    extensions.find.cache_clear()
    del sys.modules["counts"]


def test_a_tab_of_an_outsiders_is_drawn_by_its_script_and_one_that_is_broken_ends_no_other(
    page: Page, server: Server, outside: Path
) -> None:
    server.answers["/muster/api/counts"] = (200, {"some/volume": 3})
    server.answers["/muster/api/jobs"] = (200, NO_JOBS)
    page.goto(f"{HOST}/muster/#/counts")
    expect(page.get_by_text("some/volume: 3")).to_be_visible()
    expect(page.get_by_role("link", name="Counts")).to_have_attribute("aria-current", "page")
    (outside / "static" / "counts.js").write_text("throw new Error('no such thing')")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("no such thing")
    run = {
        "dag_id": "flights",
        "run_id": "r1",
        "run_url": None,
        "state": "succeeded",
        "began": 1.0,
        "ended": 2.0,
    }
    run |= {"stages": [], "jobs": [], "ends": [], "searching": []}
    server.answers["/muster/api/run"] = (200, run)
    server.answers["/muster/api/runs"] = (200, {"runs": [run], "total": 1, "dags": ["flights"]})
    page.goto(f"{HOST}/muster/#/runs/flights/r1")
    expect(page.get_by_role("heading", name="flights")).to_be_visible()
    with page.expect_request("**/muster/api/searches?*"):
        page.reload()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_is_not_there_is_named_and_what_there_is_is_linked(page: Page, server: Server) -> None:
    page.goto(f"{HOST}/muster/#/nonsense/x")
    main = page.locator("main")
    expect(main).to_contain_text("This page has nothing at #/nonsense/x.")
    expect(main.get_by_role("link", name="Deployments")).to_be_visible()
    server.answers["/muster/api/jobs/gone"] = (404, {"detail": "no job gone in this store"})
    page.goto(f"{HOST}/muster/#/jobs/gone")
    expect(page.get_by_role("alert")).to_contain_text("no job gone in this store")
    assert page.get_by_role("link", name="Jobs that there are").get_attribute("href") == "#/jobs"


class Seen:
    """The answers of one search of a store, as the server makes them."""

    def __init__(self, server: Server, folder: Path, search_id: str = "s-1") -> None:
        self.server, self.search_id, self.store = server, search_id, FolderStore(folder / "store")
        self.where = f"/muster/api/searches/{search_id}"

    def answer(self, *, may: bool = True, held: Mapping[int, Any] | None = None, **more: Any) -> None:
        """Have the server say how the search stands. :param more: of its trials, instead of what is there."""
        known = KnownSearches(self.store).of(self.search_id)
        spec, found = known.search.spec, known.overview
        best = found.best_row
        made = {"job_id": best.jobs[-1] if best else "", "metrics": {"auc": 0.5}, "outputs": {}}
        kept = {"model": ["volume://flights/model@7"]} if found.ended and best else {}
        rights = {"cancel": may and found.ended is None, "log": True}
        rows, counts = trials.page(found, offset=0, limit=50)
        now = {"state": "running", "reason": "", "alive": True, "progress": {}}
        lines = [
            {
                **trials.row(each),
                "now": now if each.phase.value == "running" else None,
                "held": (held or {}).get(each.trial, []),
            }
            for each in rows
        ]
        said = self.server.answers
        said[self.where] = (200, described(known) | {"made": made | {"kept": kept}, "may": rights})
        said[f"{self.where}/trials"] = (200, {"trials": lines, "unseen": "", **counts, **more})
        many = {"of": more["total"]} if more else {}
        points = trials.points(found, spec.space, [each.param for each in known.importance])
        said[f"{self.where}/points"] = (200, points | many)
        curves = TrialCurves(NoJobs()).of(found, told=True)  # type: ignore[arg-type]
        said[f"{self.where}/curves"] = (200, curves | many)


class NoJobs:
    """A ledger without a job: of a trial its rungs are known."""

    def series(self, job_id: str) -> Series:
        return Series()


def a_hostile_search(seen: Seen) -> int:
    """A search that runs, of 12 trials, with markup wherever a person may write; return where its events end."""
    space = searched.SPACE | {"notes": choice(SCRIPT, "x" * 3000, None), "depth": integers(1, 4)}
    searched.begin(seen.store, seen.search_id, searched.of(space=space, trials=40), dag_id="hills")
    events: list[Event] = []
    for n in range(12):
        kind = {"optimizer": "sgd", "momentum": n / 12} if n % 2 else {"optimizer": "adam"}
        params = {
            "rate": 0.001 * (n + 1),
            "notes": (SCRIPT, "x" * 3000, None)[n % 3],
            "depth": n % 4 + 1,
            **kind,
        }
        events += searched.running(params, trial=n)
        if n == 3:
            events.append(searched.event(EventKind.FAILED, n, reason=f"user error {SCRIPT}", final=True))
        if n not in (3, 11):
            value = None if n == 4 else 1e30 if n == 5 else n / 20
            events.append(
                searched.event(EventKind.REACHED, n, rung=0, value=-(value or 0) if n == 5 else value)
            )
        if n < 9 and n != 3:
            events.append(searched.event(EventKind.PAUSED, n, rung=0))
    return searched.tell(seen.store, seen.search_id, events)


def test_a_search_is_watched_sorted_and_ended(page: Page, server: Server, tmp_path: Path) -> None:
    seen = Seen(server, tmp_path)
    end = a_hostile_search(seen)
    cards = [{"node": "gpu-box", "gpus": 2, "which": ["0", "1"]}]
    seen.answer(held={11: cards})
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{HOST}/muster/#/searches/s-1")
    main = page.locator("main")
    for text in (
        "12 of at most 40 trials",
        "asynchronous successive halving (asha)",
        'uniform(0, 1).when(optimizer="sgd")',
        "3 running",
        "1 failed",
        f"user error {SCRIPT}",
    ):
        expect(main).to_contain_text(text)
    expect(page.get_by_role("img", name="at 1: 2 went on, 8 paused")).to_be_visible()
    expect(page.get_by_role("img", name="Learning curves: auc of 9 trials, the best 0.5")).to_be_visible()
    expect(page.get_by_text("1 trial told values that are not drawn")).to_be_visible()
    drawn = page.get_by_role("img", name="Params and auc of 12 trials")
    expect(drawn.locator("polyline")).to_have_count(12)
    drawn.hover(position={"x": 50, "y": 100})
    rows = page.get_by_role("table", name="Trials", exact=True).get_by_role("row")
    expect(rows.nth(1)).to_contain_text("best")
    expect(rows.nth(1)).to_contain_text("\N{EN DASH}")  # the best one has no momentum
    expect(page.get_by_role("row", name="GPU 0, 1 of gpu-box")).to_contain_text("trial-11-1")
    for what in ("script", "b"):
        assert main.locator(what).count() == 0
    seen.answer(held={11: cards})
    for _ in range(2):
        page.get_by_role("button", name=re.compile("^momentum")).click()
    with page.expect_response(re.compile("phase=paused")):
        page.get_by_role("button", name="paused 8").click()
    expect(page.get_by_role("button", name="paused 8")).to_have_attribute("aria-pressed", "true")
    asked = [each.partition("?")[2] for each in server.queries if each.startswith(f"{seen.where}/trials")]
    assert "sort=param.momentum&down=true&offset=0&limit=50" in asked
    assert asked[-1] == "sort=param.momentum&down=true&phase=paused&offset=0&limit=50"
    for width, scheme in ((420, "dark"), (1920, "light"), (1400, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(drawn).to_be_visible()
        assert overflow(page) <= 0
        keep(page, f"search-{width}-{scheme}.png", full_page=True)
    page.get_by_role("button", name="Cancel search").click()
    expect(page.get_by_text("End this search and its trials?")).to_be_visible()
    server.answers[f"{seen.where}/cancel"] = (200, {})
    with page.expect_response(f"**{seen.where}/cancel"):
        page.get_by_role("button", name="end it").click()
    expect(page.get_by_text("ending: its trials get time to save …")).to_be_visible()
    assert f"{seen.where}/cancel" in server.asked
    over = [searched.event(EventKind.CLOSED, reason=f"me {SCRIPT} cancelled it")]
    over += [searched.event(EventKind.PAUSED, n, rung=0 if n < 11 else -1) for n in (9, 10, 11)]
    searched.tell(seen.store, "s-1", over, after=end)
    seen.answer()
    page.clock.run_for(4_000)
    expect(page.get_by_text(f"me {SCRIPT} cancelled it")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel search")).to_have_count(0)
    asked_before = len(server.asked)
    page.clock.run_for(60_000)
    assert len(server.asked) == asked_before  # it is over


def test_a_search_of_ten_thousand_trials_is_turned_page_by_page(
    page: Page, server: Server, tmp_path: Path
) -> None:
    seen = Seen(server, tmp_path)
    searched.played(seen.store, "s-1")
    seen.answer(total=10_000, phases={"paused": 9_613, "ended": 387})
    page.goto(f"{HOST}/muster/#/searches/s-1")
    expect(page.get_by_text("27 trials of 10,000 are drawn")).to_have_count(2)
    expect(page.get_by_text("1 to 27 of 10,000 trials")).to_be_visible()
    with page.expect_response(re.compile("offset=50&limit=50")):
        page.get_by_role("button", name="further").click()
    expect(page.get_by_role("button", name="back")).to_be_visible()
    assert any("offset=50&limit=50" in each for each in server.queries)
    expect(page.get_by_role("link", name="flights/model@7")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel search")).to_have_count(0)


def test_searches_that_know_little_are_shown_all_the_same(page: Page, server: Server, tmp_path: Path) -> None:
    params = {"rate": 0.01, "optimizer": "adam"}
    failed = [*searched.failed(params), searched.event(EventKind.CLOSED, reason="1 of 1 trials failed")]
    nan = [*searched.running(params), searched.event(EventKind.REACHED, 0, rung=0, value=None)]
    known: list[tuple[str, list[Event], tuple[str, ...]]] = [
        (
            "none-1",
            [],
            ("No trial yet.", "no trial runs: its task begins the next one", "No trial has told auc yet."),
        ),
        ("one-1", searched.running(params), ("1 of at most 27 trials", "Too few trials have been compared")),
        ("failed-1", failed, ("1 of 1 trials failed", "it raises", "No trial has told auc.")),
        ("nan-1", nan, ("NaN", "No trial has told auc yet.")),
    ]
    lines = []
    for search_id, events, said in known:
        seen = Seen(server, tmp_path, search_id)
        searched.begin(seen.store, search_id)
        searched.tell(seen.store, search_id, events)
        seen.answer(may=False)
        page.goto(f"{HOST}/muster/#/searches/{search_id}")
        expect(page.get_by_role("heading", name=search_id)).to_be_visible()
        for text in said:
            expect(page.locator("main")).to_contain_text(text)
        expect(page.get_by_role("button", name="Cancel search")).to_have_count(0)
        searches = KnownSearches(seen.store)
        lines = [
            searches.brief(head) | {"task": "flights.search", "task_url": None} for head in searches.heads()
        ]
    torn = {"search_id": "torn-1", "state": "unreadable", "error": "search.json cannot be read"}
    server.answers["/muster/api/searches"] = (
        200,
        {"searches": [*lines, torn], "total": 5, "dags": ["flights"]},
    )
    page.get_by_role("link", name="Searches").first.click()
    table = page.get_by_role("table", name="Searches for params, newest first")
    expect(table.get_by_role("row")).to_have_count(6)
    expect(page.get_by_role("row", name="torn-1")).to_contain_text("search.json cannot be read")
    page.get_by_role("link", name="one-1", exact=True).click()
    expect(page.get_by_role("heading", name="one-1")).to_be_visible()
    stage = {"stage": "search", "state": "running", "search_id": "one-1", "job_id": ""}
    run = {"dag_id": "flights", "run_id": "manual__1", "run_url": None, "state": "running", "began": 1.0}
    searching = [stage | {"submitted": 1.0, "started": 2.0, "ended": None}]
    more = {"ended": None, "stages": [stage], "jobs": [], "ends": [], "searching": searching}
    server.answers["/muster/api/run"] = (200, run | more)
    server.answers["/muster/api/runs"] = (200, {"runs": [run | more], "total": 1, "dags": ["flights"]})
    page.get_by_role("link", name="manual__1").click()
    stages = page.get_by_role("table", name="Stages over time")
    expect(stages.get_by_role("link", name="search")).to_have_attribute("href", "#/searches/one-1")
    expect(page.get_by_role("table", name="Searches of this run")).to_contain_text("failed-1")
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.get_by_role("link", name="search", exact=True)).to_have_attribute("href", "#/searches/one-1")
    server.answers["/muster/api/searches/gone-1"] = (404, {"detail": "no search gone-1 in this store"})
    page.goto(f"{HOST}/muster/#/searches/gone-1")
    expect(page.get_by_role("alert")).to_contain_text("no search gone-1 in this store")
    expect(page.get_by_role("link", name="Searches that there are")).to_be_visible()
