"""A store with a little history in it, and the command run against it in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from muster.cli.app import named
from muster.core import wire
from muster.core.data import Input, OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.replica import PartManifest
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

DIGEST = "b3:" + "0" * 64


@dataclass(frozen=True)
class Answer:
    """How one run of the command ended."""

    code: int
    out: str
    err: str
    error: BaseException | None

    def json(self) -> Any:
        """Return stdout as the one JSON document it must be."""
        return json.loads(self.out)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / ".muster"))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / ".muster"


@pytest.fixture
def store(home: Path) -> FolderStore:
    return FolderStore(home / "store")


@pytest.fixture
def muster(home: Path) -> Callable[..., Answer]:
    def run(*words: object) -> Answer:
        typed = [str(word) for word in words]
        result = CliRunner().invoke(named(typed), typed, prog_name="muster")
        error = result.exception if not isinstance(result.exception, SystemExit) else None
        return Answer(result.exit_code, result.stdout, result.stderr, error)

    return run


def make_spec(**changes: Any) -> JobSpec:
    asked: dict[str, Any] = {
        "name": "flights.train",
        "image": "train",
        "image_digest": DIGEST,
        "roles": (Role(entrypoint="flights.train:train"),),
        "outputs": {"model": OutputTarget(volume="flights/model")},
        "params": {"epochs": 5},
        "origin": Origin(dag_id="flights", run_id="manual-1", task_id="train"),
    }
    return JobSpec(**(asked | changes))


def run_job(
    store: FolderStore,
    job_id: str,
    spec: JobSpec,
    files: dict[str, dict[str, bytes]],
    *,
    metrics: dict[str, float] | None = None,
) -> dict[str, tuple[Version, ...]]:
    """Do what a backend does for a job of one replica that writes `files`, per output."""
    store.ledger.create(job_id, spec)
    staging = store.stage(job_id)
    for output, contents in files.items():
        for name, data in contents.items():
            path = staging.output("main", 0, output) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    sizes = {
        output: {name: len(data) for name, data in contents.items()} for output, contents in files.items()
    }
    part = PartManifest(job_id=job_id, attempt=staging.attempt, role="main", index=0, files=sizes)
    staging.sealed("main", 0).write_text(wire.dumps(part))
    return store.commit(job_id, attempt=staging.attempt, metrics=metrics)


@pytest.fixture
def history(store: FolderStore) -> FolderStore:
    """Two months of features, and two models trained on the first and on both."""
    features = {}
    for month in ("2013-01", "2013-02"):
        spec = make_spec(
            name="flights.features",
            outputs={"features": OutputTarget(volume="flights/features", partition=month)},
            roles=(Role(entrypoint="flights.etl:features"),),
        )
        files = {"features": {"part.parquet": month.encode() * 100}}
        (features[month],) = run_job(store, f"features-{month}", spec, files)["features"]
    for number, months in enumerate((["2013-01"], ["2013-01", "2013-02"]), start=1):
        inputs = {"features": Input(versions=tuple(features[m].pinned for m in months), many=True)}
        files = {"model": {"model.onnx": bytes(number) * 50, "card.md": b"a model"}}
        spec = make_spec(inputs=inputs, params={"epochs": number})
        run_job(store, f"train-{number}", spec, files, metrics={"auc": 0.7 + number / 100})
    return store


def empty_image(folder: Path, name: str) -> Path:
    """Write an image that needs nothing, beside a Dag of this folder."""
    image = folder / "dags" / "mine" / "images" / name
    image.mkdir(parents=True)
    (image / "requirements.txt").write_text("")
    return image
