"""The chart is upgraded from the release before, and goes back, while a gang runs and a canary has a quarter of the users; and its
Airflow from 3.3 to 3.4 while tasks are deferred.

That release runs in this one's environment, as in tests/e2e/releases. Upgrades within a release are in test_chart.py.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import chart, chart_airflow, deploying, images, kubectl, serving, store
from tests.cluster.chart import CHART, NAME, VALUES, Release
from tests.cluster.deploying import Served, administrator
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.lines import QUIET, Line
from tests.cluster.runtime import CHECKOUT, SOURCE
from tests.cluster.test_chart import a_gang
from tests.e2e.releases.conftest import earlier, git
from tests.waiting import eventually

from muster.backends.kubernetes.api.client import Client
from muster.backends.releases.manual import promote
from muster.backends.releases.plan import Plan

__all__ = ["earlier"]

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

PLACE = f"--namespace={NAME}"
QUARTER = Plan(steps=(25, 100), hold_seconds=(3600.0, 0.0), rules=QUIET)
WAIT = ("--wait", "--timeout=480s")
TITLE = "the chart, from the release before and back, under a gang and a canary"


@pytest.fixture
def installed(earlier: Path, tmp_path: Path) -> Iterator[Release]:
    """The chart of the release before, with that release in its pods."""
    of = layout()
    serving.up(of)
    images.give(of, images.earlier(earlier))
    subprocess.run(
        ["tar", "-x", "-C", tmp_path], input=git("archive", earlier.name, "helm").stdout, check=True
    )
    with chart.place(of, tmp_path, release=NAME, namespace=NAME):
        metadata = {"name": NAME, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
        kubectl.apply(of, [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
        release = Release(of, tmp_path)
        helm(release, "install", tmp_path / "helm" / "muster", image="localhost/muster:earlier")
        yield release


def helm(release: Release, command: str, folder: Path, **changes: Any) -> None:
    path = release.folder / f"{command}.yaml"
    served = {"enabled": True, "gateway": serving.GATEWAY, "url": serving.GATEWAY_URL}
    network = {"enabled": False}  # nothing enforces them here
    path.write_text(yaml.safe_dump({**VALUES, "serving": served, "networkPolicy": network, **changes}))
    done = release.helm(command, NAME, str(folder), f"--values={path}", *WAIT)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def a_canary(release: Release, folder: Path) -> Iterator[tuple[Line, str]]:
    """Have a deployment whose second revision has a quarter of the users, and no process that drives it further."""
    site = replace(
        deploying.SITE,
        namespace=NAME,
        claim=f"{NAME}-store",
        store_url=release.url(),
        folder=store.FOLDER,
        service_account=f"{NAME}-job",
    )
    with release.store() as opened:
        client = Client(administrator(release.layout), patience_seconds=20)
        line = Line(Served(of=release.layout, site=site, store=opened, client=client), folder)
        try:
            line.settle()
            driver = line.begin(line.spec(), QUARTER)
            line.has(driver, 25)
            yield line, driver.revision
        finally:
            line.deployments.retire(line.name)


def running(of: Layout) -> dict[str, tuple[str, int]]:
    """The pods of jobs and of model servers: who each is, and how often a container of it was started again."""
    pods = kubectl.get(of, "pods", PLACE)["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ())),
        )
        for pod in pods
        if not pod["metadata"]["labels"].get("app", "").startswith(f"{NAME}-")
    }


def test_upgraded_from_the_release_before_and_back_nothing_restarts_and_nothing_is_lost(
    installed: Release, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    of, keys = installed.layout, installed.secret()
    (tmp_path / "code").mkdir()
    with (
        a_canary(installed, tmp_path) as (line, canary),
        installed.backend() as backend,
        a_gang(backend, installed, tmp_path / "code"),
        line.users() as users,
    ):
        before, shares = running(of), line.deployments.deployment(line.name).shares
        assert sorted(shares.values()) == [25, 75]
        assert len(before) == 4, before  # two ranks, two revisions

        def unchanged(step: str) -> None:
            status = line.deployments.deployment(line.name)
            assert (status.shares, status.drift) == (shares, ""), step
            assert running(of) == before, step
            assert installed.secret() == keys, step
            record_property(TITLE, f"{step}: {users.sent} predictions, {sum(users.failed.values())} lost")

        helm(installed, "upgrade", CHART)
        unchanged("upgraded")
        done = installed.helm("rollback", NAME, "1", *WAIT)
        assert done.returncode == 0, done.stdout + done.stderr
        unchanged("back")
        helm(installed, "upgrade", CHART)
        unchanged("upgraded again")
        promote(line.deployments, line.name, canary, by="test")
    assert users.failed == {}


AIRFLOW_PARTS = ("api-server", "scheduler", "triggerer", "dag-processor")
NEWER = "localhost/airflow:3.4"
DEFERRED = {"while it is down": 10, "after the upgrade": 600}
"""For how many seconds a gang goes on: it ends while no Airflow runs, or under the newer one."""


def test_airflow_is_upgraded_from_3_3_to_3_4_while_tasks_are_deferred(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """As the page on Airflow in the cluster says: all of it ends first, and the upgrade brings it up again."""
    of = layout()
    assert (CHECKOUT / ".venv-3.4").is_dir(), "this test needs the other Airflow: make setup AIRFLOW=3.4"
    images.give(of, images.airflow(NEWER, SOURCE / ".venv-3.4" / "bin"))
    with chart_airflow.empty(of, tmp_path) as release:
        values = chart_airflow.three(SOURCE / "tests" / "cluster" / "dags")
        release.install(*values, airflow=chart_airflow.SITE)
        with chart_airflow.Airflow(of) as airflow:
            assert airflow.ask("GET", "version")["version"].startswith("3.3.")
            runs = [airflow.trigger(rows=10 + n, seconds=n) for n in DEFERRED.values()]
            deferred = lambda run: airflow.tasks(run)["train"]["state"] == "deferred"  # noqa: E731
            eventually(lambda: all(map(deferred, runs)), seconds=chart_airflow.SECONDS)
            eventually(lambda: chart_airflow.running(of, 4), seconds=chart_airflow.SECONDS)
            names = [f"{NAME}-airflow-{part}" for part in AIRFLOW_PARTS]
            kubectl.run(of, "scale", "deployment", *names, PLACE, "--replicas=0")
            pods = ("get", "pods", PLACE, f"--selector=app in ({','.join(names)})", "--output=name")
            eventually(lambda: kubectl.run(of, *pods) == "", seconds=chart_airflow.SECONDS)
            eventually(lambda: chart_airflow.running(of, 2), seconds=chart_airflow.SECONDS)
            began = time.monotonic()
            newer = {**chart_airflow.SITE, "image": NEWER}
            release.install(*values, command="upgrade", airflow=newer)
            record_property(
                TITLE, f"Airflow 3.3 to 3.4: {time.monotonic() - began:.0f} s until the newer one is ready"
            )
            airflow.log_in()
            assert airflow.ask("GET", "version")["version"].startswith("3.4.")
            for run, when in zip(runs, DEFERRED, strict=True):
                state = airflow.ended(run, seconds=1800)
                record_property(TITLE, f"a deferred task whose gang ended {when}: {state}")
                assert state == "success", airflow.tasks(run)
            made = dict.fromkeys(("two/table", "two/model"), len(runs))
            assert chart_airflow.versions(release, *made) == made
            again = airflow.trigger(rows=50)
            assert airflow.ended(again) == "success", airflow.tasks(again)
            assert "wrote 50 rows" in airflow.log(again, "rows")
