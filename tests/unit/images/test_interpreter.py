"""An interpreter that is set for an image: what it is asked, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import until

import muster.images.interpreter as module
from muster.core.errors import ImageError, SpecError
from muster.images.interpreter import Torch, look_again, look_at, torch_of

Fake = Callable[[str], Path]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Makes a program that stands for a Python."""

    def make(script: str) -> Path:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


def answers(**changes: object) -> str:
    told = {"numbers": [3, 11], "version": "3.11.7", "packages": ["numpy==2.0", "torch==2.5"], **changes}
    return f"echo 'a warning'; echo '{module.MARK}{json.dumps(told)}'"


def test_this_python_is_asked_for_its_packages() -> None:
    found = look_at("train", Path(sys.executable))
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.packages > 20
    assert found == look_at("train", Path(sys.executable))
    assert look_again("train", found) == Path(sys.executable)


def test_what_would_mislead_it_is_not_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up-1.0.dist-info").mkdir()
    (tmp_path / "made_up-1.0.dist-info" / "METADATA").write_text("Name: made-up\nVersion: 1.0\n")
    before = look_at("train", Path(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert look_at("train", Path(sys.executable)) == before


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            answers(numbers=[3, 9], version="3.9.18"),
            r"python, is Python 3.9.18, need 3.10 or newer: set MUSTER_",
        ),
        ("echo hello; exit 3", r"not answer as Python does \(exit code 3; its last line: hello\)"),
        ("exit 0", r"not answer as Python does \(exit code 0\): set MUSTER_INTERPRETER_MY_TRAIN"),
    ],
)
def test_what_is_no_python_of_use_is_refused(fake: Fake, script: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        look_at("my-train", fake(script))


def test_a_file_that_is_not_there_or_not_to_be_run_is_refused(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(SpecError, match=r"nothing, is not there: set MUSTER_INTERPRETER_TRAIN .* whole path"):
        look_at("train", tmp_path / "nothing")
    with pytest.raises(SpecError, match="no file that may be run"):
        look_at("train", tmp_path)
    path = fake("true")
    path.chmod(0o644)
    with pytest.raises(SpecError, match="no file that may be run"):
        look_at("train", path)
    path.chmod(0o755)
    path.write_bytes(b"\x7fELF and no more")
    with pytest.raises(SpecError, match=r"cannot be run \(Exec format error\)"):
        look_at("train", path)


def test_one_that_does_not_answer_is_ended_with_all_that_it_started(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)  # a shell begins in that time on a busy machine, too
    child = tmp_path / "child"
    with pytest.raises(SpecError, match=r"does not answer within 1 s: see what `.*python -V` does"):
        look_at("train", fake(f"sleep 600 & echo $! > {child}; wait"))
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    assert until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX")


def test_other_packages_than_when_the_job_was_submitted_are_named(fake: Fake) -> None:
    recorded = look_at("train", fake(answers()))
    assert (recorded.packages, recorded.version) == (2, "3.11.7")
    fake(answers(packages=["numpy==2.1"]))
    with pytest.raises(ImageError, match=r"was 3.11.7, 2 packages, b3:\w{12} .* is 3.11.7, 1 package, b3:"):
        look_again("train", recorded)
    with pytest.raises(ImageError, match="is not there"):
        look_again("train", replace(recorded, path="/nothing"))


def test_torch_is_asked_where_it_is_there(fake: Fake) -> None:
    cards = {"torch": "2.5.0", "cuda": "12.4", "cards": 1}
    ask = f"case \"$2\" in *device_count*) echo '{module.MARK}{json.dumps(cards)}';; *) {answers()};; esac"
    assert torch_of("train", fake(ask)) == Torch(torch="2.5.0", cuda="12.4", cards=1)
    assert torch_of("train", fake(answers(packages=["numpy==2.0"]))) is None
