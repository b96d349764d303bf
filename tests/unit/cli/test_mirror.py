"""``muster volumes mirror`` and ``restore``: what they say, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.backends import mirrors
from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def test_a_mirror_is_brought_up_and_read_by_scripts(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    first = muster("volumes", "mirror", tmp_path / "copy", "--volumes", "flights/model")
    assert (first.code, first.out) == (0, first.out)
    assert "versions brought (" in first.out
    again = muster("volumes", "mirror", tmp_path / "copy", "--json").json()
    assert again["whole"]
    assert {address.partition("@")[0] for address in again["versions"]} == {
        f"volume://{name}" for name in history.volumes() if name != "flights/model"
    }


def test_a_damaged_version_is_named_and_ends_with_1(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    path = history.path("flights/model@1") / "card.md"
    path.chmod(0o644)
    path.write_bytes(b"changed")
    answer = muster("volumes", "mirror", tmp_path / "copy")
    assert answer.code == 1
    assert "volume://flights/model@1 is damaged and was left out" in answer.out
    assert "card.md" in answer.out


def test_one_clear_error_for_what_is_no_mirror(muster: Run, history: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("1")
    for words, says in {
        ("mirror", tmp_path / "mine"): "name an empty folder or an existing store",
        ("mirror", "http://127.0.0.1:9"): "MUSTER_MIRROR_TOKEN is not set",
        ("mirror", "nosuch://bucket"): "cannot be opened",
        ("mirror", tmp_path / ".muster/store"): "cannot be a mirror of itself",
        ("restore", "--from", tmp_path / "nowhere"): "is no mirror",
    }.items():
        answer = muster("volumes", *words)
        assert answer.code == 1
        assert says in answer.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_a_watch_goes_on_after_an_error(
    muster: Run, history: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def opened(*words: Any, **named: Any) -> Any:
        looks.append(words)
        if len(looks) == 1:
            raise SpecError("the disk is unplugged")
        if len(looks) == 3:
            raise KeyboardInterrupt
        return open_home(*words, **named)

    open_home = mirrors.open_home
    monkeypatch.setattr(mirrors, "open_home", opened)
    monkeypatch.setattr("muster.cli.mirror.time.sleep", lambda _: None)
    answer = muster("volumes", "mirror", tmp_path / "copy", "--watch")
    assert "the disk is unplugged; the next look is in 60 s" in answer.err
    assert "versions brought" in answer.out
    assert len(looks) == 3
