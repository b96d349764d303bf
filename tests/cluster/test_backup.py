"""The page on backup, typed as it stands: a namespace is deleted with all of its data, and comes back.

A run has ended before the backup and another goes on during it. Afterwards versions, jobs, Airflow's runs and the deployment are
as they were, and the second run comes to its end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.cluster import chart, images, kubectl
from tests.cluster.chart_airflow import Airflow
from tests.cluster.deploying import infer
from tests.cluster.layout import Layout
from tests.cluster.runtime import SOURCE
from tests.cluster.test_installing import PAGE as INSTALLING, Terminal, commands, empty, ours
from tests.docs.page import DOCS, ROOT, File, Typed, missing, steps
from tests.e2e.author import Author
from tests.serving.onnx_graph import write_line
from tests.waiting import eventually

from muster.volumes.service.client import ServiceStore

__all__ = ["empty"]

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

PAGE = DOCS / "howto" / "backup.md"
RELEASE, NAMESPACE = chart.PAGE
PLACE = f"--namespace={NAMESPACE}"
DATABASE = f"{RELEASE}-airflow-database"
AIRFLOW = {
    "image": chart.VALUES["image"],  # which has Airflow here, whatever it is called
    "enabled": True,
    "database": {"small": {"enabled": True, "storageClassName": "shared"}},
    "dags": {"path": f"{SOURCE}/tests/cluster/dags"},
    # Two of each would share two cores here.
    "apiServer": {"replicas": 1},
    "scheduler": {"replicas": 1},
    "triggerer": {"replicas": 1},
}
INSTALL = f"helm install {RELEASE} helm/muster {PLACE} --values values.yaml --wait --timeout 10m"
DEPLOY = """
    from airflow.sdk import dag
    from muster.airflow import DeployOperator

    @dag(schedule=None)
    def line():
        DeployOperator(task_id="deploy", name="flights", model="flights/model@1", smoke=None, steps=[100])

    line()
"""


@contextmanager
def room(of: Layout) -> Iterator[None]:
    """Have an empty place for the claims of the store and of Airflow's database, as a storage class would make it."""
    shutil.rmtree(of.claim / NAMESPACE, ignore_errors=True)
    volumes = []
    for name, claim, folder in (
        (NAMESPACE, f"{RELEASE}-store", NAMESPACE),
        (DATABASE, DATABASE, f"{NAMESPACE}/database"),
    ):
        (of.claim / folder).mkdir(mode=0o700)
        os.chown(of.claim / folder, images.USER, images.USER)
        volumes.append(chart.volume(name, namespace=NAMESPACE, claim=claim, folder=folder))
    kubectl.run(of, "delete", "--ignore-not-found", "persistentvolume", NAMESPACE, DATABASE)
    kubectl.apply(of, volumes)
    try:
        yield
    finally:
        kubectl.run(of, "delete", "--ignore-not-found", "--wait", "namespace", NAMESPACE)
        kubectl.run(of, "delete", "--ignore-not-found", "persistentvolume", NAMESPACE, DATABASE)


@contextmanager
def installed(
    of: Layout, folder: Path, told: Callable[[str], None]
) -> Iterator[tuple[Author, Callable[[str], str]]]:
    """Have the chart with Airflow, as the page on installing says, and a person's terminal: what types a command."""
    (folder / "helm").symlink_to(ROOT / "helm")
    with Author(folder) as author, Terminal(author) as terminal:

        def type_it(command: str) -> str:
            said, seconds = terminal.type(command)
            told(f"{seconds:6.1f}  {command}")
            return said

        with room(of):
            type_it(f"kubectl create namespace {NAMESPACE}")
            type_it(INSTALL)
            for command in token_commands():
                type_it(command)
            type_it("export MUSTER_CLUSTER=$PWD/cluster.toml")
            yield author, type_it


def test_a_namespace_that_was_deleted_comes_back(
    empty: Layout, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    typed = parts(tmp_path, PAGE, note="test_backup")

    def told(line: str) -> None:
        record_property("backup, a deleted namespace, restore: seconds of each command", line)

    with installed(empty, tmp_path, told) as (author, type_it):
        write_line(tmp_path / "line", slope=3)
        author.write("line", DEPLOY)
        type_it("muster volumes put line flights/model")
        type_it("muster run line")
        with asked(empty) as airflow:
            ended = airflow.trigger(rows=20)
            assert airflow.ended(ended) == "success", airflow.tasks(ended)
            goes_on = airflow.trigger(rows=30, seconds=20)
            before = Seen(empty, tmp_path, airflow, ended)
        do(typed[0], type_it)
        type_it("kill %% && wait")
        type_it(f"kubectl delete namespace {NAMESPACE}")
        with room(empty):
            for step in typed[1:]:
                do(step, type_it)
            with asked(empty) as airflow:
                after = Seen(empty, tmp_path, airflow, ended)
                assert after.versions.items() >= before.versions.items()
                assert after.ended_jobs >= before.ended_jobs
                assert after.tasks == before.tasks
                assert after.log == before.log
                assert after.answer == before.answer
                assert airflow.ended(goes_on) == "success", airflow.tasks(goes_on)
                made = Seen(empty, tmp_path, airflow, ended).versions
            assert sorted(name for name in made if "two/model" in name) == [
                "volume://two/model@1",
                "volume://two/model@2",
            ]


class Seen:
    """What people see of a team's state."""

    def __init__(self, of: Layout, folder: Path, airflow: Airflow, run_id: str) -> None:
        service = kubectl.get(of, "service", f"{RELEASE}-store", PLACE)["spec"]["clusterIP"]
        token = (folder / "token").read_text().strip()
        with ServiceStore(f"http://{service}", token=token, cache=folder / "cache") as store:
            found = [each for volume in store.volumes() for each in store.versions(volume)]
            self.versions = {each.address: (each.digest, each.pins) for each in found}
            jobs = store.ledger.jobs()
            statuses = zip(jobs, store.ledger.statuses(jobs), strict=True)
            self.ended_jobs = {(name, status.state) for name, status in statuses if status.state.ended}
        states = airflow.tasks(run_id)
        self.tasks = {
            name: (each["state"], each["try_number"], each["end_date"]) for name, each in states.items()
        }
        self.log = airflow.log(run_id, "train")
        self.answer = eventually(answer)


def answer() -> tuple[str, float] | None:
    """Which revision answers a user, and what; nothing where none does."""
    try:
        return infer("flights", 2.0)
    except OSError:
        return None


def parts(folder: Path, page: Path, *, note: str) -> list[Typed]:
    """Write the files of a site that goes on from the page on installing; return what `page` types on a cluster."""
    files: dict[str, str] = {}
    for step in steps(INSTALLING):
        if isinstance(step, File):
            files.setdefault(step.path, ours(step.text))
    values = yaml.safe_load(files["values.yaml"])
    files["values.yaml"] = yaml.safe_dump({**values, "airflow": AIRFLOW})
    typed = []
    for each in steps(page):
        if isinstance(each, File):
            files[each.path] = each.text
        elif note in each.note:
            typed.append(each)
    for name, text in files.items():
        (folder / name).write_text(text)
    return typed


def token_commands() -> list[str]:
    """How the page on installing makes a token."""
    (found,) = (
        step for step in steps(INSTALLING) if isinstance(step, Typed) and "--print-token" in step.commands
    )
    return commands(found)


def do(step: Typed, type_it: Callable[[str], str]) -> None:
    """Type the commands of a step, which say what the page says."""
    said = "".join(map(type_it, commands(step)))
    assert missing(step.prints, said) == [], f"{step.commands}\n{said[-4000:]}"


def asked(of: Layout) -> Airflow:
    """Airflow of the release, not entered yet."""
    return Airflow(of, release=RELEASE, namespace=NAMESPACE, secret=f"{RELEASE}-airflow")
