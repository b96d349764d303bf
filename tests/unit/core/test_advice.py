"""What is told to do about a package that an image lacks, and about outputs that are none."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from muster.core.advice import HOLDERS, SHIPPED, adding, missing_package, uncommitted
from muster.core.job import Interpreter, JobSpec, Role
from muster.core.shipped import shipped
from muster.core.verdict import Cause

SPEC = JobSpec(name="a.b", image="tables", image_digest="b3:" + "0" * 64, roles=(Role(command=("x",)),))
COPY = 'run `muster images copy tables mytables`, add {} to images/mytables/requirements.in, run `muster images lock mytables`, and take image="mytables"'


def test_the_shipped_images_and_what_they_hold_are_those_in_the_folder() -> None:
    folders = {path.parent.name for path in shipped("images").glob("*/requirements.txt")}
    assert folders - {"muster", "airflow"} == SHIPPED
    for module, named in HOLDERS.items():
        package = {"sklearn": "scikit-learn", "great_expectations": "great-expectations"}.get(module, module)
        lock = (shipped("images") / (named or module) / "requirements.txt").read_text()
        assert re.search(rf"^{package}(-cpu)?(\[\w+\])?==", lock, re.MULTILINE), module


@pytest.mark.parametrize(
    ("module", "image", "said"),
    [
        ("cv2", "tables", f"image tables has no opencv-python-headless: {COPY.format('opencv-python-headless')}"),
        ("torch.nn", "dask", 'image dask has no torch: image train has it, image="train"; or run `muster images copy dask'),
        ("ray", "tables", 'image tables has no ray: image ray has it, image="ray"; or run'),
        ("yaml", "mine", "image mine has no PyYAML: add PyYAML to images/mine/requirements.in and run `muster images lock mine`"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named_as_the_index_has_it_with_what_to_type(
    module: str, image: str, said: str
) -> None:
    assert missing_package(module, replace(SPEC, image=image)).startswith(said)


def test_an_interpreter_of_the_machine_is_named_in_place_of_the_lock() -> None:
    own = Interpreter(path="/opt/py/bin/python", version="3.11.7", digest=SPEC.image_digest)
    said = missing_package("sklearn", replace(SPEC, interpreter=own))
    assert said.startswith("install scikit-learn into /opt/py/bin/python, which runs image tables")


def test_what_was_never_written_is_not_said_to_be_fetched() -> None:
    assert "jobs get" in uncommitted(Cause.USER_ERROR, "j")
    assert "jobs get" not in uncommitted(Cause.USER_ERROR, "j", empty=True)
    assert adding("it", "mine") == "add it to images/mine/requirements.in and run `muster images lock mine`"
