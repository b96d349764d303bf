"""From an empty namespace to a prediction: three values bring Airflow up, and a person in a browser triggers ``flights`` there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, expect
from tests.browser import person
from tests.cluster import chart, chart_airflow, serving
from tests.cluster.chart import NAME
from tests.cluster.chart_airflow import SITE, Airflow
from tests.cluster.inside import layout
from tests.cluster.runtime import SOURCE
from tests.docs.page import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 1800  # a training on a machine that other things share
DAG = "flights"
_CONTROL = [{"ipBlock": {"cidr": "10.77.0.0/24"}}]  # where Gateway and API server are
OURS = {  # the site's own values: quotas, and a Gateway
    "queues": {
        **chart.VALUES["queues"],
        "flavors": [
            {"name": f"{NAME}-cpu", "gpuClass": "cpu"},
            {"name": f"{NAME}-gpu", "gpuClass": "gpu-a100"},
        ],
        "teams": [
            {
                "name": NAME,
                "quotas": [
                    {"flavor": f"{NAME}-cpu", "cpu": 16, "memory": "16Gi"},
                    {"flavor": f"{NAME}-gpu", "cpu": 16, "memory": "16Gi", "gpus": 4},
                ],
            }
        ],
    },
    "serving": {"enabled": True, "gateway": serving.GATEWAY, "url": serving.GATEWAY_URL},
    "networkPolicy": {
        **chart.VALUES["networkPolicy"],
        "gateway": _CONTROL,
        "apiServer": {"from": _CONTROL},
    },
}


def test_flights_triggered_in_a_browser_answers(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    of = layout()
    serving.up(of)
    with chart_airflow.empty(of, tmp_path) as release:
        began = time.monotonic()
        release.install(*chart_airflow.three(SOURCE / "dags"), airflow=SITE, **OURS)
        there = time.monotonic()
        with Airflow(of, dag=DAG) as airflow, person.browser() as browser:
            airflow.known()
            page = person.log_in(browser, airflow).new_page()
            run_id = triggered(page, airflow.url)
            state = airflow.ended(run_id, seconds=SECONDS)
            logs = {
                name: airflow.log(run_id, name)
                for name, task in airflow.tasks(run_id).items()
                if task["state"] == "failed"
            }
            assert state == "success", logs
            page.go_back()
            expect(page.get_by_test_id("state-badge").filter(has_text="Success").first).to_be_visible()
            said = ask(airflow.result(run_id, "deploy")["curl"])
            answered = time.monotonic()
            page.goto(f"{airflow.url}/plugin/muster/muster/#/deployments/{DAG}")
            expect(person.frame(page).locator("main")).to_contain_text("flights/model@1")
            person.keep(page, "flights-in-the-cluster.png")
        request = json.loads((ROOT / "dags" / "flights" / "smoke.json").read_text())[0]
        bounds = request["expect"]["probability"]
        assert bounds["min"] <= said <= bounds["max"]
        record_property(
            "flights in Airflow of the chart's own, three values: seconds from the empty namespace",
            f"{there - began:.0f} until all of it is ready, {answered - began:.0f} until a prediction, {said:.4f}",
        )


def triggered(page: Page, url: str) -> str:
    """Switch the Dag on and trigger it, as a person does; return the run."""
    page.goto(f"{url}/dags/{DAG}")
    page.get_by_test_id("trigger-dag-button").first.click()
    form = page.get_by_role("dialog")
    expect(form.locator("[name=element_test_from]")).to_have_value("2013-10")
    form.get_by_test_id("trigger-dag-submit").click()
    page.wait_for_url(re.compile(rf"/dags/{DAG}/runs/[^/]+$"))
    run_id = unquote(page.url.rpartition("/")[2])
    page.goto("about:blank")  # a page that shows how it goes keeps a core busy
    return run_id


def ask(curl: str) -> float:
    """What a user is answered by the command that the deploy task names."""
    answered = subprocess.run(shlex.split(curl), capture_output=True, text=True, check=True)
    (probability,) = json.loads(answered.stdout.partition("\n\n")[2])["outputs"]["probability"]
    return float(probability)
