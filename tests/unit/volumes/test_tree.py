import errno
import os
from pathlib import Path

import pytest

from muster.volumes import tree


@pytest.fixture(params=["renameat2", "replace"])
def exchange_by(request, monkeypatch):
    if request.param == "replace":
        monkeypatch.setattr(tree, "_renameat2", lambda: None)
    return request.param


def test_a_link_takes_the_place_of_an_equal_file(tmp_path, exchange_by):
    for name in ("theirs", "mine"):
        (tmp_path / name).write_bytes(b"same")
    tree.link_over(*(str(tmp_path / name) for name in ("theirs", "mine")), spare=str(tmp_path / "spare"))
    assert (tmp_path / "mine").samefile(tmp_path / "theirs")
    assert (tmp_path / "spare").exists() == (exchange_by == "renameat2")


def test_a_graft_can_be_done_again_after_a_crash(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for path in ("source/a/x", "source/b/y", "target/a/z"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    for _ in range(2):
        tree.graft(source, target)
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()) == [
        "a/x",
        "a/z",
        "b/y",
    ]
    assert not source.exists()


def test_a_graft_copies_where_nothing_moves_between_folders(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a").mkdir(parents=True)
    (source / "a" / "x").write_text("x")
    (source / "y").write_text("whole")
    target.mkdir()
    (target / "y").write_text("torn by a cra")
    move = os.rename

    def beside_only(old, new):
        if Path(old).parent != Path(new).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        move(old, new)

    monkeypatch.setattr(os, "rename", beside_only)
    for _ in range(2):
        tree.graft(source, target)
    found = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert found == {"a/x": "x", "y": "whole"}
    assert not source.exists()


def test_removing_reaches_what_is_closed(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_text("1")
    (tmp_path / "a" / "out").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    tree.set_modes(tmp_path / "a", ["b", ""], 0o000)
    tree.remove(tmp_path / "a")
    tree.remove(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_copy_shares_nothing(tmp_path):
    (tmp_path / "from" / "d").mkdir(parents=True)
    (tmp_path / "from" / "d" / "x").write_bytes(b"1" * 100_000)
    os.mkfifo(tmp_path / "from" / "pipe")
    tree.copy_tree(tmp_path / "from", tmp_path / "to")
    (tmp_path / "from" / "d" / "x").write_bytes(b"2")
    assert (tmp_path / "to" / "d" / "x").read_bytes() == b"1" * 100_000
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["d"]
