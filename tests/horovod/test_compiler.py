"""Without a C++ compiler `make test-horovod` ends in one clear error, before anything is downloaded or built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask for Horovod's tests where `folder` is all of PATH; nothing is run where a compiler is found."""
    environment = {
        name: text for name, text in os.environ.items() if name not in ("CXX", "MAKEFLAGS", "MAKELEVEL")
    }
    return subprocess.run(
        [shutil.which("make") or "make", "compiler"],
        cwd=ROOT,
        env={**environment, "PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_compiler_is_one_clear_error(tmp_path: Path) -> None:
    ended = make(tmp_path)
    assert ended.returncode == 2
    (said,) = ended.stdout.splitlines()
    assert "no C++ compiler ($CXX, c++, g++, clang++): install one" in said
    assert len(ended.stderr.splitlines()) == 1  # make's own


def test_any_compiler_will_do(tmp_path: Path) -> None:
    (tmp_path / "g++").symlink_to("/bin/true")
    assert make(tmp_path).returncode == 0
    assert make(tmp_path, CXX="another++").returncode == 2, "CMake would take no other than $CXX"


def test_it_is_the_first_thing_that_is_looked_at() -> None:
    (rule,) = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("test-horovod:")
    ]
    assert rule.split()[1] == "compiler"
