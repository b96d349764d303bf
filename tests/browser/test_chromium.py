"""Where a browser is looked for, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser.chromium import Chromium, NoChromium, find


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing on PATH and nothing in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MUSTER_CHROMIUM", raising=False)


def program(path: Path, code: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_without_a_browser_and_without_apt_it_says_what_to_do() -> None:
    with pytest.raises(NoChromium, match=r"no apt-get to fetch.*install chromium, or set MUSTER_CHROMIUM"):
        find()


def test_the_one_that_is_named_counts_and_must_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "mine", 0)
    monkeypatch.setenv("MUSTER_CHROMIUM", str(named))
    assert find() == Chromium(named)
    program(named, 127)
    with pytest.raises(NoChromium, match=r"MUSTER_CHROMIUM is .*mine, which does not start"):
        find()


def test_one_on_path_that_does_not_start_is_passed_by(tmp_path: Path) -> None:
    program(tmp_path / "chromium-headless-shell", 127)
    there = program(tmp_path / "chromium", 0)
    assert find() == Chromium(there)


def test_one_in_the_cache_is_taken_with_its_libraries(tmp_path: Path) -> None:
    root = tmp_path / "cache" / "chromium" / "156.0"
    there = program(root / "usr/lib/chromium/chromium-headless-shell", 0)
    library = root / "usr/lib/x86_64-linux-gnu/deep/libx.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    found = find()
    assert found.program == there
    assert found.variables["LD_LIBRARY_PATH"] == str(library.parent)
