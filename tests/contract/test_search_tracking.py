"""A search on real processes and a real MLflow: what is below what, and what a kill or an MLflow that is away leaves."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.one_machine import one_machine
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, eventually, until

from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.backends.local.variables import NO_TELEMETRY
from muster.backends.tracking import shown_run, tracking_database, tracking_uri
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.ext.search.driver import SearchDriver
from muster.ext.search.mlflow import helper
from muster.ext.search.mlflow.reach import Beside, MlflowRun, MlflowRuns, reach
from muster.ext.search.space import uniform
from muster.ext.search.spec import Search, SearchSpec
from muster.ext.search.stored import begin_search
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data]

SPEC = SearchSpec(
    space={"rate": uniform(0, 1)}, metric="auc", trials=3, rungs=(1, 3), until="epochs", seed=1, at_once=1
)
TRIAL = """
import sys
from pathlib import Path
rate, epochs, saved = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) / "epoch"
epoch = int(saved.read_text()) if saved.exists() else 0
TRACK
while epoch < epochs:
    epoch += 1
    saved.with_suffix(".part").write_text(str(epoch))
    saved.with_suffix(".part").replace(saved)
    print(f"muster: epoch={epoch}/3 auc={(1 - abs(rate - 0.6)) * (1 - 0.5 / epoch):.6f}", flush=True)
    PAUSE
"""
OWN = "import mlflow; mlflow.set_experiment('own') if OTHER else None; mlflow.log_params({'rate': rate, 'from': epoch})"

Begin = Callable[..., SearchDriver]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", cache=Settings.load().cache)


@pytest.fixture
def backend(settings: Settings) -> Iterator[Backend]:
    yield from one_machine(Places(settings.home), settings.cache, memory_gib=2)


@pytest.fixture
def begin(backend: Backend, settings: Settings) -> Begin:
    def start(
        image: str, track: str, say: Callable[[str], None], spec: SearchSpec = SPEC, **env: str
    ) -> SearchDriver:
        folder = find_image(image, image_folders(settings))
        digest = put_image(backend.store, folder)
        backend.runner.build(image, folder, digest, lambda _: None)
        code = TRIAL.replace("TRACK", track).replace("PAUSE", "import time; time.sleep(1)")
        trial = JobSpec(
            name="hills.search",
            image=image,
            image_digest=digest,
            roles=(
                Role(
                    command=("python", "-c", code, "{params.rate}", "{params.epochs}", "{checkpoints}"),
                    resources=Resources(memory_gib=1),
                ),
            ),
            params={"rate": 0, "epochs": 3},
            env=env,
            priority="low",
            origin=Origin(instance="one", dag_id="hills", run_id="run-1", task_id="search"),
        )
        begin_search(backend.store, "s-1", Search(spec=spec, trial=trial, began=time.time()))
        return SearchDriver(backend, "s-1", say=say)

    return start


def below(runs: list[MlflowRun], parent: MlflowRun) -> list[MlflowRun]:
    return [run for run in runs if run.tags.get("mlflow.parentRunId") == parent.run_id]


def in_tree(runs: MlflowRuns) -> tuple[MlflowRun, list[MlflowRun], list[MlflowRun]]:
    """The search's run, those of its trials by number, and all of the search."""
    found = runs.find("muster.search", "s-1")
    (parent,) = [run for run in found if "muster.trial" not in run.tags]
    return parent, sorted(below(found, parent), key=lambda run: int(run.tags["muster.trial"])), found


def test_the_runs_of_trials_are_below_the_search_and_a_scripts_own_below_its_trial(
    backend: Backend, begin: Begin, settings: Settings
) -> None:
    said: list[str] = []
    driver = begin("train", OWN.replace("OTHER", "False"), said.append)
    eventually(lambda: (driver.step(), any(trial.values for trial in driver.state.trials))[1])
    driver.leave()  # as it does when it is killed
    driver = SearchDriver(backend, "s-1", say=said.append)
    ended = eventually(driver.step)
    assert not [line for line in said if "MLflow" in line], said
    runs = reach(backend.runner.tracking(driver.search.trial))
    assert runs is not None
    parent, trials, found = in_tree(runs)
    runs.close()
    assert (parent.status, parent.tags["muster.best_trial"]) == ("FINISHED", str(ended.trial))
    assert [run.tags["muster.trial"] for run in trials] == ["0", "1", "2"]
    assert {run.status for run in trials} == {"FINISHED"}
    again = [trial for trial in driver.state.trials if len(trial.jobs) > 1]
    assert again, "with one place a trial waits for the others"
    for run, trial in zip(trials, driver.state.trials, strict=True):
        own = below(found, run)
        assert [each.tags["muster.job_id"] for each in own] == trial.jobs, (
            "each job's script has a run of its own"
        )
        assert shown_run(settings.home, trial.jobs[-1]).endswith(own[-1].run_id)
    best = driver.state.trials[ended.trial]
    point = {float(step): value for step, value in metrics(settings, trials[ended.trial])}
    assert point == {SPEC.rungs[rung]: value for rung, value in best.values.items()}


def test_a_script_that_chooses_another_experiment_trains_as_before(begin: Begin, backend: Backend) -> None:
    driver = begin("train", OWN.replace("OTHER", "True"), lambda _: None, replace(SPEC, trials=1))
    assert eventually(driver.step).trial >= 0
    assert all(trial.failures == 0 for trial in driver.state.trials)


@pytest.mark.nightly  # the first has the runs, beside the machine
def test_a_server_has_the_runs_of_scripts_that_know_no_mlflow(
    begin: Begin, backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    said: list[str] = []
    with served(settings, tmp_path) as uri:
        driver = begin("python", "", said.append, MLFLOW_TRACKING_URI=uri, MLFLOW_EXPERIMENT_NAME="hills")
        ended = eventually(driver.step)
        runs = reach(backend.runner.tracking(driver.search.trial))
        assert runs is not None
        parent, trials, found = in_tree(runs)
        runs.close()
        told = asked(uri, f"runs/get?run_id={parent.run_id}")["run"]
    assert not [line for line in said if "MLflow" in line], said
    assert len(found) == 1 + len(trials) == 4
    assert {each["key"]: each["value"] for each in told["data"]["params"]}["rungs"] == "1, 3"
    best = driver.state.trials[ended.trial]
    assert [(each["key"], each["value"]) for each in told["data"]["metrics"]] == [("auc", best.value)]


def test_a_search_whose_mlflow_is_away_is_driven_to_its_end(begin: Begin) -> None:
    said: list[str] = []
    driver = begin("python", "", said.append, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}")
    assert eventually(driver.step).trial >= 0
    (line,) = [line for line in said if "MLflow" in line]
    assert "the search goes on without its runs in MLflow" in line


def test_a_process_that_is_killed_while_it_makes_the_tables_leaves_none_half_made(settings: Settings) -> None:
    folder = find_image("train", image_folders(settings))
    digest = put_image(FolderStore(settings.home / "store"), folder)
    python = Environments(settings.cache).ensure("train", folder, digest, print)
    database = tracking_database(settings.home)
    variables = {"MLFLOW_TRACKING_URI": tracking_uri(database), **NO_TELEMETRY}
    with subprocess.Popen(
        [python, "-I", helper.__file__], env=variables, stderr=subprocess.DEVNULL
    ) as killed:
        eventually(lambda: database.with_name("mlflow.db.part").exists())
        killed.kill()
    assert not database.exists()
    runs = MlflowRuns(Beside(python, variables), variables)
    assert runs.find("any", "tag") == []
    runs.close()
    assert {path.name for path in database.parent.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def metrics(settings: Settings, run: MlflowRun) -> list[tuple[int, float]]:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tracking_database(settings.home))) as connection:
        return connection.execute(
            "SELECT step, value FROM metrics WHERE run_uuid = ? ORDER BY step", (run.run_id,)
        ).fetchall()


@contextmanager
def served(settings: Settings, folder: Path) -> Iterator[str]:
    """A server of the image ``mlflow``, with a file of its own."""
    image = find_image("mlflow", image_folders(settings))
    digest = put_image(Backend(MachinePlace(settings)).store, image)
    python = Environments(settings.cache).ensure("mlflow", image, digest)
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            python,
            "-m",
            "uvicorn",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "mlflow.server.fastapi_app:app",
        ],
        cwd=folder,
        env={  # as `mlflow server` starts its own
            **os.environ,
            **NO_TELEMETRY,
            "_MLFLOW_SERVER_FILE_STORE": tracking_uri(folder / "served.db"),
            "_MLFLOW_SERVER_ARTIFACT_ROOT": str(folder / "artifacts"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert until(lambda: _answers(uri) or process.poll() is not None)
        yield uri
    finally:
        process.terminate()
        process.wait(GUARD_SECONDS)


def _answers(uri: str) -> bool:
    try:
        asked(uri, "experiments/get?experiment_id=0")  # the first question makes its tables
    except OSError:
        return False
    return True


def asked(uri: str, path: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(f"{uri}/api/2.0/mlflow/{path}", timeout=GUARD_SECONDS) as answer:
        found: Mapping[str, Any] = json.loads(answer.read())
    return found
