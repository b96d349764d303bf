"""The command that brings the cluster up: what of its arguments is for the program that it runs; needs no cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.cluster.__main__ import split

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("given", "ours", "words"),
    [
        ("up --root /a --json", "up --root /a --json", ""),
        ("test", "test", ""),
        ("test -m 'soak and cluster'", "test", "-m 'soak and cluster'"),
        ("test --root /a -k gang --json", "test --root /a", "-k gang --json"),
        ("test --root=/a --rootdir=/b", "test --root=/a", "--rootdir=/b"),
        ("test -- -m soak", "test", "-m soak"),
        ("test --clusters 2 -k gang", "test --clusters 2", "-k gang"),
        ("exec --root /a kubectl exec pod -- ls", "exec --root /a", "kubectl exec pod -- ls"),
        ("exec python -m benchmarks --root /b", "exec", "python -m benchmarks --root /b"),
        ("exec --root", "exec --root", ""),
        ("test --help", "test --help", ""),
        ("", "", ""),
    ],
)
def test_arguments_of_another_program_are_its_own(given: str, ours: str, words: str) -> None:
    assert split(shlex.split(given)) == (shlex.split(ours), shlex.split(words))


def test_the_makefile_says_which_tests_are_soaked() -> None:
    said = subprocess.run(["make", "--dry-run", "soak"], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = re.findall(r"-m tests\.cluster (.*)", said.stdout)
    words = [
        "-o",
        "faulthandler_timeout=0",
        "-m",
        "soak and cluster",
        "--dist=load",
    ]  # one file holds most of them
    assert split(shlex.split(line)) == (["test", "--clusters", "2"], words)


def test_the_makefile_shares_the_tests_out() -> None:
    said = subprocess.run(
        ["make", "--dry-run", "test-cluster"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = re.findall(r"-m tests\.cluster (.*)", said.stdout)
    assert split(shlex.split(line)) == (["test", "--clusters", "2"], [])
