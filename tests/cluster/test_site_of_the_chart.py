"""Airflow of the chart's own with what a site has: its PostgreSQL, a Redis for Celery's workers, Dags of git, FAB's users and roles.

Then the same Airflow with Dags of a claim, and of an image.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.test_fab import CHANGES, MEMBERS, OF_ONE, READS, add_member, add_user, codes, written
from tests.cluster import chart, chart_airflow, environments, images, kubectl, outside
from tests.cluster.chart import NAME, Release
from tests.cluster.chart_airflow import NAMESPACE, SECONDS, Airflow, kill, running, versions
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

DAG = "two_stages"
MADE = ("two/table", "two/model")
DAGS = Path(__file__).with_name("dags")
FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
PLAN = CHANGES[-1]
SECRETS = {"muster-site": outside.CONNECTION, "muster-broker": outside.BROKER}
SITE = {
    "enabled": True,
    "image": "localhost/airflow:1",
    "executor": "CeleryExecutor",
    "celery": {"brokerSecret": "muster-broker"},
    "database": {"secret": "muster-site"},
    "dags": {"git": {"url": outside.DAGS_URL, "subdir": "dags"}, "refreshSeconds": 5},
    "extraEnv": [
        {"name": "AIRFLOW__CORE__AUTH_MANAGER", "value": FAB},
        {"name": "AIRFLOW__FAB__CACHE_TTL", "value": "0"},
    ],
    **{part: {"replicas": 1} for part in ("apiServer", "scheduler", "triggerer", "worker")},
}
TEAMS = {team: {"queue": team, "volumes": prefix} for team, _, prefix in MEMBERS.values()}
OURS: dict[str, Any] = {
    "queues": {
        **chart.VALUES["queues"],
        "teams": [
            {"name": name, "quotas": [{"flavor": f"{NAME}-cpu", "cpu": 4, "memory": "4Gi"}]}
            for name in (NAME, *TEAMS)
        ],
    },
    "teams": {"teams": TEAMS},
    "networkPolicy": {
        **chart.VALUES["networkPolicy"],
        "airflowEgress": [{"to": [{"namespaceSelector": {}}]}],
    },
}
WAIT = f"--timeout={SECONDS}s"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    of = layout()
    images.give(
        of,
        images.airflow("localhost/airflow:1", environments.programs("airflow")),
        images.folder("localhost/dags:1", DAGS, at="opt/dags"),
    )
    with outside.up(of), chart_airflow.empty(of, tmp_path_factory.mktemp("airflow")) as found:
        outside.commit(of, with_teams(tmp_path_factory.mktemp("dags") / "dags"))
        for name, connection in SECRETS.items():
            metadata = {"name": name, "namespace": NAME}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
            kubectl.apply(of, [{**secret, "stringData": {"connection": connection}}])
        found.install(WAIT, airflow=SITE, **OURS)
        yield found


@pytest.fixture(scope="module")
def airflow(release: Release) -> Iterator[Airflow]:
    made = Airflow(release.layout)
    ours = ("--username=admin", "--firstname=Ada", "--lastname=L", "--email=ada@example.org", "--role=Admin")
    user = ("airflow", "users", "create", *ours, f"--password={made.password()}")
    server = f"deployment/{NAME}-airflow-api-server"
    kubectl.run(release.layout, "exec", NAMESPACE, server, "--", "python", "-m", *user)
    with made:
        yield made


def with_teams(folder: Path) -> Path:
    """The Dags, and one of each team."""
    shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for team, dag, prefix in MEMBERS.values():
        (folder / dag).mkdir()
        (folder / dag / "dag.py").write_text(written(dag, prefix, f"team:{team}"))
    return folder


@pytest.fixture
def dags(release: Release, tmp_path: Path) -> Path:
    """A copy of the Dags, to change and commit."""
    return shutil.copytree(release.layout.claim / outside.PLACE / "git" / "dags" / "dags", tmp_path / "dags")


def newest(airflow: Airflow) -> str:
    """The commit of the Dags that Airflow has parsed."""
    return str(airflow.ask("GET", f"dags/{DAG}")["bundle_version"])


def hears(airflow: Airflow, commit: str) -> None:
    eventually(lambda: newest(airflow) == commit, seconds=SECONDS)


def test_workers_of_celery_run_dags_of_git_and_the_sites_database_knows_it(
    release: Release, airflow: Airflow, record_property: Callable[[str, object], None]
) -> None:
    of = release.layout
    began = time.monotonic()
    run_id = airflow.trigger(rows=20)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    record_property(
        "Airflow of the chart's own, Celery and git: seconds of a run",
        f"{time.monotonic() - began:.0f}",
    )
    assert "wrote 20 rows" in airflow.log(run_id, "rows")
    assert versions(release, *MADE) == {"two/table": 1, "two/model": 1}
    hosts = {task["hostname"] for task in airflow.tasks(run_id).values()}
    pods = kubectl.get(of, "pods", NAMESPACE, f"--selector=app={NAME}-airflow-worker")["items"]
    assert hosts <= {pod["metadata"]["name"] for pod in pods}
    run = airflow.ask("GET", f"dags/{DAG}/dagRuns/{run_id}")
    assert run["bundle_version"] == newest(airflow)
    assert kubectl.ask(of, "get", "deployment", f"{NAME}-airflow-database", NAMESPACE) == ""


def test_a_run_keeps_its_commit_and_the_next_has_the_new_one(
    release: Release, airflow: Airflow, dags: Path
) -> None:
    first = newest(airflow)
    run_id = airflow.trigger(rows=20, seconds=20)
    eventually(lambda: airflow.tasks(run_id)["rows"]["state"] == "running", seconds=SECONDS)
    steps = dags / "two_stages" / "steps.py"
    steps.write_text(steps.read_text().replace('"the total is"', '"the sum is"'))
    second = outside.commit(release.layout, dags)
    hears(airflow, second)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert "the total is 190" in airflow.log(run_id, "train")
    again = airflow.trigger(rows=30)
    assert airflow.ended(again) == "success", airflow.tasks(again)
    assert "the sum is 435" in airflow.log(again, "train")
    versioned = [
        airflow.ask("GET", f"dags/{DAG}/dagRuns/{each}")["bundle_version"] for each in (run_id, again)
    ]
    assert versioned == [first, second]


def test_a_dag_that_breaks_parsing_is_named_and_the_others_go_on(
    release: Release, airflow: Airflow, dags: Path
) -> None:
    broken = dags / "broken" / "dag.py"
    broken.parent.mkdir()
    broken.write_text("from airflow.sdk import dag\n\nimport nowhere\n")
    commit = outside.commit(release.layout, dags)
    errors = lambda: airflow.ask("GET", "importErrors")["import_errors"]  # noqa: E731
    (said,) = eventually(errors, seconds=SECONDS)
    assert (said["filename"], said["bundle_name"]) == ("broken/dag.py", "dags")
    assert "No module named 'nowhere'" in said["stack_trace"]
    hears(airflow, commit)
    run_id = airflow.trigger(rows=40)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    shutil.rmtree(broken.parent)
    outside.commit(release.layout, dags)
    eventually(lambda: errors() == [], seconds=SECONDS)


def test_a_repository_that_is_away_is_named_in_a_log_and_runs_go_on(
    release: Release, airflow: Airflow, dags: Path
) -> None:
    """In the worker, which has their commit; one that has not would fail the try. What is committed meanwhile comes afterwards."""
    of, before = release.layout, versions(release, *MADE)
    run_id = airflow.trigger(rows=50, seconds=20)
    eventually(lambda: running(of, 2), seconds=SECONDS)
    with outside.away(of, "git"):
        commit = outside.commit(of, dags)
        assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
        again = airflow.trigger(rows=60)
        assert airflow.ended(again) == "success", airflow.tasks(again)
        eventually(lambda: logged(of, "Error refreshing bundle dags", "git fetch"), seconds=SECONDS)
        kill(of, "airflow-dag-processor", ready=False)
        eventually(lambda: logged(of, "Error initializing bundle dags", "git.site"), seconds=SECONDS)
        assert newest(airflow) != commit
    hears(airflow, commit)
    assert versions(release, *MADE) == {name: number + 2 for name, number in before.items()}


def test_the_broker_and_all_workers_die_amid_a_run(release: Release, airflow: Airflow) -> None:
    of, before = release.layout, versions(release, *MADE)
    run_id = airflow.trigger(rows=70, seconds=20)
    eventually(lambda: running(of, 2), seconds=SECONDS)
    with outside.away(of, "redis"):
        kill(of, "airflow-worker", ready=False)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert versions(release, *MADE) == {name: number + 1 for name, number in before.items()}


def test_the_sites_database_is_away_for_a_minute_amid_a_run(
    release: Release, airflow: Airflow, record_property: Callable[[str, object], None]
) -> None:
    of, before = release.layout, versions(release, *MADE)
    run_id = airflow.trigger(rows=80, seconds=30)
    eventually(lambda: running(of, 2), seconds=SECONDS)
    gone = time.monotonic()
    with outside.away(of, "postgres"):
        eventually(lambda: time.monotonic() > gone + 60)
    record_property(
        "Airflow of the chart's own, the site's PostgreSQL away: seconds", f"{time.monotonic() - gone:.0f}"
    )
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert versions(release, *MADE) == {name: number + 1 for name, number in before.items()}


def test_fabs_roles_decide_what_a_person_has_of_the_page(release: Release, airflow: Airflow) -> None:
    """A viewer nothing, an operator all of it, a role with one Dag of a team what is the team's."""
    jobs = {}
    for user, (_, dag, _) in MEMBERS.items():
        with Airflow(release.layout, dag=dag) as of_team:
            run_id = of_team.trigger()
            assert of_team.ended(run_id) == "success", of_team.tasks(run_id)
        jobs[user] = job_of(release, MEMBERS[user][2])
        add_member(airflow.client, user)
    for role in ("Viewer", "Op"):
        add_user(airflow.client, role.lower(), role)
    for user, (_, dag, prefix) in MEMBERS.items():
        (other,) = {*MEMBERS} - {user}
        own = codes(airflow.url, user, [*READS, *CHANGES], of=(jobs[user], dag, prefix))
        assert own.pop(PLAN) == 400, "it may, and this API server reads no file of a Dag"
        assert {code for code in own.values() if code >= 400} <= {409}, own
        theirs = codes(airflow.url, user, OF_ONE, of=(jobs[other], *MEMBERS[other][1:]))
        assert {*theirs.values()} == {403}, theirs
    for role, code, user in product(("Viewer", "Op"), (403, 200), MEMBERS):
        if (role == "Viewer") == (code == 403):
            found = codes(airflow.url, role, READS, of=(jobs[user], *MEMBERS[user][1:]))
            assert {*found.values()} == {code}, found


def logged(of: Layout, *words: str) -> bool:
    """Whether the Dag processor has said these."""
    log = kubectl.ask(of, "logs", NAMESPACE, f"deployment/{NAME}-airflow-dag-processor")
    return all(each in log for each in words)


def job_of(release: Release, prefix: str) -> str:
    """The job that made a team's version."""
    with release.store() as store:
        return str(store.record(f"volume://{prefix}/out@1").job_id)


def test_dags_of_a_claim_change_without_an_upgrade(release: Release, airflow: Airflow) -> None:
    of, claim = release.layout, f"{NAME}-dags"
    folder = of.claim / NAME / "dags"
    shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = {"name": claim, "namespace": NAME}
    spec = {
        "storageClassName": "shared",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    wanted = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    held = chart.volume(claim, namespace=NAME, claim=claim, folder=f"{NAME}/dags")
    try:
        kubectl.apply(of, [held, wanted])
        upgraded(release, {"claim": {"name": claim}})
        airflow.log_in()
        run_id = airflow.trigger(rows=90)
        assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
        assert "the total is" in airflow.log(run_id, "train")
        steps = folder / "two_stages" / "steps.py"
        steps.write_text(steps.read_text().replace('"the total is"', '"together it is"'))
        again = airflow.trigger(rows=100)
        assert airflow.ended(again) == "success", airflow.tasks(again)
        assert "together it is 4950" in airflow.log(again, "train")
    finally:
        kubectl.run(of, "delete", "persistentvolume", claim, "--ignore-not-found", "--wait=false")


def test_dags_of_an_image_come_with_an_upgrade(release: Release, airflow: Airflow) -> None:
    upgraded(release, {"image": "localhost/dags:1", "path": "/opt/dags"})
    airflow.log_in()
    run_id = airflow.trigger(rows=110)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert "the total is 5995" in airflow.log(run_id, "train")


def upgraded(release: Release, dags: dict[str, Any]) -> None:
    """Have other Dags."""
    release.install(WAIT, command="upgrade", airflow={**SITE, "dags": {**dags, "refreshSeconds": 5}}, **OURS)
