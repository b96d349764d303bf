"""A program of muster's own: its files in an image's folder, and its one output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.validate import ValidateOperator
from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.core.errors import SpecError
from muster.core.settings import Settings
from muster.ext.ingest.compact import CompactOperator
from muster.ext.ingest.operator import IngestOperator
from muster.ext.predictions.drift import DriftOperator
from muster.ext.predictions.score import ScoreOperator
from muster.images.folders import find_image

if TYPE_CHECKING:
    pass

FILE = Program(
    entrypoint="counting:count", output="count", files="counting.py", does="counts", image="counts"
)
PACKAGE = Program(
    entrypoint="counting:count", output="count", files="counting", does="counts", image="counts"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", cache=tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> DagFolder:
    return DagFolder(file=tmp_path / "dag.py", bundle=tmp_path)


@pytest.fixture
def image(tmp_path: Path, folder: DagFolder, settings: Settings) -> Path:
    """An image of the Dag's own, with the lock of the one called python."""
    root = tmp_path / "images" / "mine"
    root.mkdir(parents=True)
    python = folder.image("python", settings)
    for name in ("requirements.in", "requirements.txt"):
        (root / name).write_bytes((python / name).read_bytes())
    assert find_image("mine", [tmp_path / "images"]) == root
    return root


def test_its_file_travels_alone(folder: DagFolder, settings: Settings, image: Path) -> None:
    for name in ("counting.py", "other.py"):
        (image / name).write_text("")
    code = FILE.code(folder, "mine", settings)
    assert (code.root, code.files) == (image, ("counting.py",))


def test_its_package_travels_alone(folder: DagFolder, settings: Settings, image: Path) -> None:
    (image / "counting").mkdir()
    for name in ("counting/b.py", "counting/a.py", "counting/a.txt", "other.py"):
        (image / name).write_text("")
    assert PACKAGE.code(folder, "mine", settings).files == ("counting/a.py", "counting/b.py")


@pytest.mark.parametrize("program", [FILE, PACKAGE])
def test_an_image_without_it_is_refused(
    folder: DagFolder, settings: Settings, image: Path, program: Program
) -> None:
    with pytest.raises(SpecError) as refused:
        program.code(folder, "mine", settings)
    assert str(refused.value) == (
        f"image 'mine' at {image} has no {program.files}, which counts; take the image 'counts'"
    )


@pytest.mark.parametrize(
    ("operator", "output", "image", "entrypoint"),
    [
        (CompactOperator(task_id="t", volume="a/b"), "data", "ingest", "muster_ingest:compact"),
        (DriftOperator(task_id="t", deployment="a"), "report", "validate", "muster_drift:compare"),
        (
            IngestOperator(task_id="t", volume="a/b", source="file:///tmp"),
            "data",
            "ingest",
            "muster_ingest:ingest",
        ),
        (
            ScoreOperator(task_id="t", model="a/b@1", rows="a/c@1", outputs="a/d"),
            "predictions",
            "serve",
            "muster_serving.scoring:score",
        ),
        (ValidateOperator(task_id="t", volume="a/b@1"), "result", "validate", "muster_validate:validate"),
    ],
)
def test_each_has_one_output_one_image_and_one_process(
    settings: Settings, operator: ProgramOperator, output: str, image: str, entrypoint: str
) -> None:
    assert type(operator).output_names({}) == (output,)
    assert set(operator.versions) == {output}
    assert operator.images(Backend(MachinePlace(settings))) == (image,)
    draft = operator.job_draft("a.t")
    assert (draft.name, draft.image, draft.replicas) == ("a.t", image, 1)
    assert draft.roles[0].entrypoint == entrypoint
