"""Every view of the page under axe-core, light and dark: nothing serious or critical is wrong for who cannot see or point."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests import npm
from tests.browser import test_page as seen
from tests.browser.person import keep
from tests.browser.test_page import HOST, JOB_ID, Server

from muster.ext.usage.table import UsageRow, document

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parent / "axe_core"
BAD = ("serious", "critical")
COLOURS = ["color-contrast", "link-in-text-block"]
RUN = (
    "async only => (await axe.run(document, { resultTypes: ['violations'], ...(only && { runOnly: only }) }))"
    ".violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map(({ html }) => html) }))"
)
WIDTHS = (420, 1400, 1920)

page, server = seen.page, seen.server


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core."""
    if shutil.which("npm") is None and os.environ.get("MUSTER_REQUIRE_BROWSER") != "1":
        pytest.skip("axe-core comes with npm: install npm")
    return (npm.installed(PACKAGE) / "axe-core" / "axe.min.js").read_text()


def node(number: int, column: int, **more: Any) -> dict[str, Any]:
    address = f"volume://flights/model@{number}"
    known = {"volume": "flights/model", "label": f"@{number} · 2013-10", "title": "flights.train"}
    return {"id": address, "column": column, "row": 0, "count": 1} | known | more


def a_version() -> dict[str, Any]:
    origin = {"dag_id": "flights", "run_id": seen.RUN_ID, "task_id": "train", "map_index": -1, "trial": -1}
    record = {
        "job_id": JOB_ID,
        "job_known": True,
        "search": None,
        "job_name": "flights.train",
        "output": "model",
        "origin": origin,
        "task": "flights · train",
        "task_url": "../dags/flights",
        "inputs": {},
        "params": {"epochs": 5, "words": "x" * 300},
        "metrics": {"auc": 0.7512345678, "rows": 123456789.12},
        "image": "train",
        "image_digest": "b3:0",
        "entrypoint": "flights.train:train",
        "code": "b3:" + "0" * 64,
        "siblings": [],
        "note": "",
    }
    edge = {"from": "volume://flights/model@6", "to": "volume://flights/model@7", "by": [], "names": ["rows"]}
    lineage = {
        "nodes": [node(7, 0), node(6, 1, volume="flights/a-volume-with-a-very-long-name")],
        "edges": [edge],
    }
    document = {"title": "Data Docs", "address": "volume://flights/docs@1", "path": "index.html"}
    return seen.the_version(
        record=record,
        files=[{"path": name, "size_bytes": 1234} for name in ("README.md", "data/rows.csv", "card.html")],
        total_files=3,
        lineage=lineage | {"rows": 1, "complete": True},
        documents=[document | {"says": "the data failed: 1 of 3 expectations", "job_id": "v-1"}],
        used_by=[seen.busy_job() | {"input": "model", "failed_expectations": ""}],
        served_by=["flights"],
    )


def a_job() -> dict[str, Any]:
    verdict = {"cause": "user error", "rank": 1, "message": "ValueError: no rows", "advice": "mend it"}
    role = {"name": "main", "entrypoint": "a.b:c", "command": [], "replicas": 2, "ranks": 1}
    resources = {"cpus": 1, "memory_gib": 2, "gpus": 1}
    return seen.busy_job() | {
        "state": "failed",
        "started": 5.0,
        "ended": 60.0,
        "verdict": verdict,
        "metrics": {"auc": 0.5},
        "may": {"log": True, "cancel": True},
        "image": "train",
        "launcher": "torchrun",
        "roles": [role | {"resources": resources}],
        "inputs": {"rows": ["volume://flights/rows@1"]},
        "outputs": {"model": []},
        "writes": {"model": "a/model"},
        "params": {"epochs": 4},
        "parts": [],
    }


def a_run() -> dict[str, Any]:
    times = {"submitted": 1.0, "started": 1.0, "ended": 4.0}
    gate = {
        "stage": "gate",
        "state": "failed",
        "line": "auc is 0.5",
        "kept_of": "",
        "outputs": {},
        "search_id": "",
    }
    job = seen.busy_job() | {
        "stage": "train",
        "outputs": {},
        "inputs": {},
        "params": {"a": 1},
        "metrics": {"b": 2},
    }
    stages = [
        {"stage": "train", "state": "succeeded", "job_id": JOB_ID},
        {"stage": "gate", "state": "failed", "job_id": ""},
    ]
    known = {"dag_id": "flights", "run_id": seen.RUN_ID, "run_url": "../dags/x", "state": "failed"}
    more = {"jobs": [job | {"submitted": 2.0, "started": 3.0, "ended": 9.0}], "ends": [gate | times]}
    return known | more | {"began": 1.0, "ended": 9.0, "stages": stages, "searching": []}


def everything(server: Server, folder: Path) -> dict[str, str]:
    """Have the server answer for every view; return each view's address and a text that it shows at last."""
    run, job, version = a_run(), a_job(), a_version()
    said = server.answers
    searched = seen.Seen(server, folder)
    seen.a_hostile_search(searched)
    searched.answer()
    api = "/muster/api"
    failed = [
        seen.failed("new", mended=True),
        seen.failed("gate") | {"job_id": "", "verdict": None, "error": "auc is 0.5"},
    ]
    first = {
        "running": [job | {"state": "running", "ended": None}],
        "waiting": [seen.busy_job()],
        "in_all": {"running": 1, "waiting": 1, "failed": 12},
        "failed": failed,
        "runs": [run],
        "airflow": [{"dag_id": "flights", "waiting": 3, "running": 1, "most": 1, "paused": False}],
    }
    said[f"{api}/first"] = (200, seen.NOTHING | first)
    deployment = seen.canary() | {"may": {"change": True}, "curl": "curl -si x"}
    deployment |= {"back": {"revision": "r3", "serves": "r2", "why": ""}}
    deployment |= {
        "report": {
            "address": "volume://flights/drift@1",
            "rows": 900,
            "at": 1.0,
            "drifted": 2,
            "columns": 5,
        }
    }
    said[f"{api}/deployments"] = (200, {"deployments": [deployment]})
    said[f"{api}/deployments/flights"] = (200, deployment)
    figures = {"r2": {"requests": 5, "failed": 1, "p95_seconds": 0.1, "outside": {"month": 2}}}
    intervals = [{"at": float(n), "seconds": 15.0, "figures": figures} for n in range(3)]
    said[f"{api}/deployments/flights/history"] = (200, {"intervals": intervals})
    said[f"{api}/runs"] = (200, {"runs": [run], "total": 1, "dags": ["a", "flights"]})
    said[f"{api}/run"] = (200, run)
    stage = {"stage": "train", "only": "", "facts": [{"name": "state", "old": "failed", "new": "succeeded"}]}
    stage |= {"seconds": [1.0, 2.0], "code": []}
    said[f"{api}/run_diff"] = (200, {"old": run, "new": run, "stages": [stage]})
    jobs = {
        "jobs": [job, seen.busy_job()],
        "total": 2,
        "states": {"failed": 1, "queued": 1},
        "dags": ["a", "b"],
    }
    said[f"{api}/jobs"] = (200, jobs | {"trials": 23, "warning": ""})
    said[f"{api}/jobs/{JOB_ID}"] = (200, job)
    numbers = [seen.curve("loss", "0", 3.0, 2.0), seen.curve("epoch", "0", 1.0, 2.0)]
    use = [seen.curve("memory_gib", "main-0", 0.0044, 0.005)]
    said[f"{api}/jobs/{JOB_ID}/series"] = (200, {"numbers": numbers, "use": use})
    log = {"text": "[rank 0] one\n", "next": 13, "bytes": 13, "skipped_bytes": 0, "times": [[0, 1.0]]}
    said[f"{api}/jobs/{JOB_ID}/log"] = (200, log | {"ended": True})
    search = said[f"{api}/searches/s-1"]
    assert search
    brief = {"search_id": "s-1", "state": "running", "error": "", "task": "flights.search", "task_url": None}
    brief |= {"run_id": seen.RUN_ID, "began": 1.0, "ended": None, "trials": 3, "most": 9, "running": 1}
    brief |= {"best": None, "reason": "", "waits": "for a GPU", "metric": "auc"}
    said[f"{api}/searches"] = (200, {"searches": [brief], "total": 1, "dags": ["a", "b"]})
    line = {"name": "default", "team": "", "waiting": 1, "running": 1, "stopped": ""}
    waiting = {
        "queue": "default",
        "place": {"number": 1, "of": 1},
        "job_id": JOB_ID,
        "name": "x",
        "title": "y",
    }
    cards = {"name": "a100", "gpu_class": "a100", "total": 8, "used": 4, "free": 4, "ready": True}
    gpus = {"by_class": [cards], "by_node": [cards], "by_team": [], "shares": [], "unseen": ""}
    waiting |= {"needs": {"cpu": 2, "memory": 2**30}, "since": 1.0, "why": "behind another"}
    said[f"{api}/queue"] = (
        200,
        {"queues": [line], "waiting": [waiting], "gpus": gpus, "warning": "", "airflow": first["airflow"]},
    )
    newest = {
        "address": "volume://flights/model@7",
        "number": 7,
        "partition": "2013-10",
        "size_bytes": 9,
        "created": 1.0,
    }
    said[f"{api}/volumes"] = (
        200,
        {"volumes": [{"volume": "flights/model", "versions": 7, "newest": newest}]},
    )
    said[f"{api}/volumes/flights/model"] = (200, seen.volume(seen.a_version(2), seen.a_version(1)))
    said[f"{api}/version"] = (200, version)
    files = {
        "total": 3,
        "under": "",
        "folders": [["data", 1, 1234]],
        "files": [["README.md", 99], ["card.html", 9]],
    }
    said[f"{api}/version_files"] = (200, files)
    table = {
        "columns": [{"name": "a", "type": "int64", "nullable": True}],
        "total": 1,
        "rows": [["1"]],
        "note": "",
    }
    said[f"{api}/rows"] = (200, table)
    said[f"{api}/code"] = (200, {"files": [{"path": "train.py"}], "text": "import os\n"})
    compared = [
        {"address": f"volume://flights/model@{n}", "volume": "flights/model", "number": n, "partition": None}
        for n in (1, 2)
    ]
    compared = [each | {"created": 1.0, "digest": "b3:0", "job_id": JOB_ID} for each in compared]
    difference = {
        "address": "volume://flights/model@2",
        "code": [],
        "files": {"changed": [["a", 1, 2]], "in_all": 1, "same": 2},
    }
    said[f"{api}/compare"] = (
        200,
        {
            "versions": compared,
            "metrics": [["auc", [0.1, 0.2]]],
            "params": [],
            "inputs": [],
            "made": [],
            "differences": [difference | {"schemas": []}],
        },
    )
    room = {"text": "9.1 GiB of 80 GiB are free", "comfortable": True}
    held = [{"job_id": "j-1", "ended": 1.0, "outputs_bytes": 7_000, "checkpoints_bytes": 0}]
    said[f"{api}/upkeep"] = (200, {"room": room, "checked": None, "held": held, "held_by_others_bytes": 0})
    image = {"name": "train", "digest": "b3:0123456789", "folder": "images/train", "built": False}
    images = [image | {"size_bytes": None, "trouble": "its lock is older", "path": None}]
    said[f"{api}/images"] = (200, {"here": True, "images": images})
    said[f"{api}/dags"] = (200, {"dags": ["flights"], "why_not": ""})
    said[f"{api}/plan"] = (200, seen.a_plan())
    wasted = UsageRow(keys=("flights",), jobs=3, gpu=(41.2, 32.0, 9.2, 0.0), cpu=(8.0, 1.5, 2.5, 4.0))
    said[f"{api}/usage"] = (200, {"rows": [document(("dag",), wasted)]})
    said[f"{api}/usage/version"] = (200, {"rows": [document(("model",), wasted)]})
    token = {"id": "0" * 16, "user": "ana", "name": "laptop", "made": 1.0, "expires": 9e9, "used": 2.0}
    token |= {"ended": None, "ended_by": "", "counts": True, "teams": ["vision"], "changes": True}
    over = token | {
        "id": "1" * 16,
        "name": "an old notebook",
        "ended": 3.0,
        "ended_by": "root",
        "counts": False,
    }
    rights = {"teams": ["vision"], "reads": True, "changes": True}
    may = {"tokens": [token, over], "rights": rights, "most_days": 90, "may": {"everyone": True}}
    said[f"{api}/tokens"] = (200, may)
    return {
        "now": "auc is 0.5",
        "runs": "train",
        "runs/flights/" + seen.RUN_ID: "What each made",
        "diff?old_dag=a&old=b&new_dag=a&new=c": "2 runs compared",
        "jobs": "ValueError: no rows",
        f"jobs/{JOB_ID}": "one",
        "jobs/gone-1": "Jobs that there are",
        "searches": "for a GPU",
        "searches/s-1": "user error",
        "queue": "behind another",
        "volumes": "flights/model",
        "volumes/flights/model": "@2",
        "volumes/flights/model@7": "9.20 wasted",
        "volumes/flights/model@7?tab=files": "card.html",
        "volumes/flights/model@7?tab=code": "import os",
        "compare?v=flights/model@1,flights/model@2": "2 versions compared",
        "files/flights/model@7/card.html": "card.html",
        "deployments": "serving",
        "deployments/flights": "An example request",
        "usage": "9.20",
        "tokens": "an old notebook",
        "store": "80 GiB are free",
        "store?part=images": "older",
        "plan": "flights",
        "plan/flights": "would serve",
        "nonsense": "nothing at",
    }


LONG = "flights_" + "d" * 232


def long_named(told: Any) -> Any:
    """The same of a Dag with an id of 240 characters."""
    if isinstance(told, dict):
        return {key: long_named(value) for key, value in told.items()}
    if isinstance(told, list):
        return [long_named(each) for each in told]
    is_name = isinstance(told, str) and (told == "flights" or told.startswith(("flights.", "flights ·")))
    return told.replace("flights", LONG, 1) if is_name else told


def test_nothing_serious_is_wrong_for_those_who_use_it_otherwise(
    page: Page, server: Server, axe: str, tmp_path: Path
) -> None:
    """Also of a Dag with an id of 240 characters, which leaves every view on the screen."""
    wrong: dict[str, Any] = {}
    wide: dict[str, int] = {}
    views = everything(server, tmp_path)
    server.answers = {path: (code, long_named(told)) for path, (code, told) in server.answers.items()}
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    for place, shows in views.items():
        page.emulate_media(color_scheme="light")
        page.goto("about:blank")
        page.goto(f"{HOST}/muster/#/{place}")
        expect(page.locator("main")).to_contain_text(shows)
        name = "".join(c if c.isalnum() else "-" for c in place)[:40]
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if (over := seen.overflow(page)) > 0:
                wide[f"{place} {width}"] = over
            keep(page, f"{name}-{width}-light.png", full_page=True)
        page.evaluate(axe)
        for scheme, rules in (("light", None), ("dark", COLOURS)):  # the scheme changes no more
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            if found := [each for each in page.evaluate(RUN, rules) if each["impact"] in BAD]:
                wrong[f"{place} {scheme}"] = found
        keep(page, f"{name}-{WIDTHS[-1]}-dark.png", full_page=True)
    assert not wrong, json.dumps(wrong, indent=1)
    assert not wide, json.dumps(wide, indent=1)
