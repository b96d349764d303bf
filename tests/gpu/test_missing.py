"""What ``make test-gpu`` says where something is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gpu import missing as module
from tests.gpu.__main__ import main
from tests.gpu.missing import INTERPRETER, Lacking, cards, interpreter, missing

Program = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose PATH has what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in (INTERPRETER, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def make(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


TWO = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'"


def test_cards_are_those_that_may_be_used(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program("nvidia-smi", TWO)
    assert cards() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cards() == ("1",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(Lacking, match="leaves no card"):
        cards()


def test_a_driver_without_a_card_is_told_in_its_words(program: Program) -> None:
    program("nvidia-smi", "echo 'No devices were found'")
    with pytest.raises(Lacking, match="lists no card \\(No devices were found\\)"):
        cards()


def test_the_interpreter_is_the_first_whose_torch_sees_a_card(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program("python3", "exit 0")
    assert interpreter() == python
    program("python3", "echo 'AssertionError: torch 2.5 is built for CPUs' >&2; exit 1")
    with pytest.raises(
        Lacking, match=r"python3 \(AssertionError: torch 2.5 is built for CPUs\); set MUSTER_TEST"
    ):
        interpreter()
    named = program("mine", "exit 0")
    monkeypatch.setenv(INTERPRETER, str(named))
    assert interpreter() == named


def test_all_that_is_missing_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "NEEDED", ())
    found = list(missing(("pytest", "made_up_package")))
    assert [line.partition(":")[0] for line in found] == [
        "no nvidia-smi on PATH",
        "no Python with torch that sees a card",
        f"{sys.executable} lacks made_up_package",
    ]
    assert main([]) == 1
    said = capsys.readouterr().out
    assert said.startswith("the tests of GPUs cannot run here:\n- no nvidia-smi on PATH: NVIDIA's driver")


def test_nothing_is_missing_where_all_is_there(program: Program) -> None:
    program("nvidia-smi", TWO)
    program("python3", "exit 0")
    assert list(missing()) == []
