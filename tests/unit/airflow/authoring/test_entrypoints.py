"""Entrypoints are looked at without being imported; only what the text proves is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from muster.airflow.authoring.code import Code
from muster.airflow.authoring.entrypoints import check_entrypoint, check_script, uses_checkpoints
from muster.core.errors import SpecError
from muster.core.job import Role

TRAIN = """
from other import imported
assigned = imported

def train(features, model, *, epochs, lr=0.1, checkpoints): ...
def greedy(model, **rest): ...
def exact(features, model, epochs): ...
def _private(): ...

@imported
def decorated(): ...

def positional(features, /, model): ...
"""


@pytest.fixture
def code(tmp_path: Path) -> Code:
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "train.py").write_text(dedent(TRAIN))
    (tmp_path / "flights" / "broken.py").write_text("def train(:\n")
    return Code(root=tmp_path, files=("flights/train.py", "flights/broken.py"))


def check(code: Code, entrypoint: str, **params: int) -> None:
    check_entrypoint(entrypoint, code, inputs=["features"], outputs=["model"], params=params)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "flights.train:train",
        "flights.train:greedy",
        "flights.train:exact",
        "flights.train:imported",
        "flights.train:assigned",
        "flights.train:decorated",
        "installed.package:main",
    ],
)
def test_what_may_be_right_passes(code: Code, entrypoint: str) -> None:
    check(code, entrypoint, epochs=3)


@pytest.mark.parametrize(
    ("entrypoint", "params", "says"),
    [
        ("flights.trian:train", {}, r"has no flights/trian\.py below"),
        ("flights.train:fit", {}, r"flights/train\.py defines no function 'fit'; it defines train, greedy"),
        (
            "flights.train:train",
            {},
            r"flights/train\.py:5 train\(\): nothing is given for parameter 'epochs'",
        ),
        (
            "flights.train:exact",
            {"epochs": 1, "deep": 2},
            r"train\.py:7 exact\(\): has no parameter for param 'deep'",
        ),
        (
            "flights.train:_private",
            {},
            r"_private\(\): has no parameter for input 'features'; it takes nothing",
        ),
        ("flights.train:positional", {}, r"parameter 'features' is positional-only"),
        ("flights.broken:train", {}, r"flights/broken\.py:1: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    code: Code, entrypoint: str, params: dict[str, int], says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        check(code, entrypoint, **params)


@pytest.mark.parametrize(
    ("entrypoint", "uses"),
    [
        ("flights.train:train", True),
        ("flights.train:exact", False),
        ("flights.train:greedy", False),  # it is given no place that it does not name
        ("flights.train:imported", None),
        ("flights.train:decorated", None),
        ("installed.package:main", None),
    ],
)
def test_a_function_uses_its_checkpoints_if_it_asks_for_them(
    code: Code, entrypoint: str, uses: bool | None
) -> None:
    code = Code(root=code.root, files=("flights/train.py",))
    assert uses_checkpoints([Role(entrypoint=entrypoint)], code) is uses


def test_a_command_uses_its_checkpoints_if_it_is_given_the_place(code: Code) -> None:
    assert uses_checkpoints([Role(command=("train", "{checkpoints}/last"))], code) is True
    assert uses_checkpoints([Role(command=("train", "out"))], code) is False
    reads = code.having("train.py", "import os\nos.environ['MUSTER_CHECKPOINTS']\n")
    assert uses_checkpoints([Role(command=("python", "train.py"))], reads) is True


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["python", "train.py", "--lr=1"], None),
        (["python", "-u", "./train.py"], None),
        (["python3.11", "{inputs.code}/trian.py"], None),
        (["python", "/opt/trian.py"], None),
        (["python", "-m", "trian"], None),
        (["torchrun", "trian.py"], None),
        (
            ["python", "trian.py"],
            r"'trian\.py' is not there: did you mean train\.py\? .*/flights/? holds train\.py, broken\.py",
        ),
        (["python", "flights/train.py"], "'flights/train.py' is not there: did you mean train.py"),
        (["bash", "run.sh"], "'run.sh' is not there: "),
        (["./run"], "'./run' is not there: "),
    ],
)
def test_a_script_is_in_the_code_that_travels(code: Code, command: list[str], says: str | None) -> None:
    if says is None:
        check_script(command, code)
    else:
        with pytest.raises(SpecError, match=says):
            check_script(command, code)
