import errno
import os
from pathlib import Path

import pytest

from muster.core import holding
from muster.volumes import tree


@pytest.fixture(params=["renameat2", "replace"])
def exchange_by(request, monkeypatch):
    if request.param == "replace":
        monkeypatch.setattr(tree, "swap", lambda *_: False)
    return request.param


def test_two_names_are_swapped_or_one_replaces_the_other(tmp_path, exchange_by):
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    tree.exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert (tmp_path / "other").read_text() == "one"
    assert (tmp_path / "one").exists() == (exchange_by == "renameat2")


DEEP = 1_200


@pytest.fixture
def deep(tmp_path):
    """A tree that is deeper than Python's own calls go, with a file at its end and one half-way."""
    folder = tmp_path / "deep"
    tree.make_folders(folder / "/".join("d" * DEEP))
    for depth in (DEEP // 2, DEEP):
        (folder / "/".join([*"d" * depth, "x"])).write_text("x")
    yield folder
    tree.remove(folder)  # pytest would recur


def calls(monkeypatch, act):
    """How many folders were opened for a call."""
    count = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", counted(os.open))
        patch.setattr(holding, "openat2", counted(holding.openat2))
        act()
    return count


@pytest.mark.parametrize(
    "act",
    [
        tree.unlock,
        tree.prune,
        tree.remove,
        lambda folder: list(tree.held_files_of(folder)),
        lambda folder: tree.set_modes(folder, tree.folders_of(folder), 0o755),
    ],
)
def test_each_folder_of_a_deep_tree_is_opened_a_few_times(deep, monkeypatch, act):
    for folder in tree.folders_of(deep)[::100]:
        (deep / folder).chmod(0o555)
    assert calls(monkeypatch, lambda: act(deep)) <= 8 * DEEP
    assert deep.exists() == (act is not tree.remove)


def test_a_tree_is_walked_where_the_kernel_opens_one_folder_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(holding, "openat2", lambda fd, path: None)
    tree.make_folders(tmp_path / "top" / "a" / "b" / "c")
    (tmp_path / "top" / "a" / "b" / "link").symlink_to("c")
    assert tree.unlock(tmp_path / "top") == ["", "a", "a/b", "a/b/c"]
    with pytest.raises(NotADirectoryError), holding.held(tmp_path / "top", "a/b/link"):
        pass


def test_no_link_is_followed_on_the_way_to_a_folder(tmp_path):
    tree.make_folders(tmp_path / "top" / "a" / "b")
    (tmp_path / "top" / "link").symlink_to("a")
    for inner in ("link", "link/b", "a/b/../../link/b"):
        with pytest.raises(NotADirectoryError), holding.held(tmp_path / "top", inner):
            pass
    with pytest.raises(FileNotFoundError), holding.held(tmp_path / "top", "a/none/b"):
        pass


def test_a_tree_that_is_removed_by_two_at_once_is_gone(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / "top" / "d").mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / "d" / name).write_text(name)
    unlink, removed = os.unlink, []

    def second(path):
        if not removed:
            unlink(path)  # the other one was here first
        removed.append(path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", second)
        tree.remove(tmp_path / "top")
    assert len(removed) == 3
    assert not (tmp_path / "top").exists()


def test_an_error_names_the_folder_and_not_the_number_of_an_open_file(tmp_path):
    (tmp_path / "top" / "a").mkdir(parents=True)
    with pytest.raises(FileNotFoundError) as caught, holding.held(tmp_path / "top", "a") as here:
        Path(f"{here}/x").unlink()
    assert caught.value.filename == str(tmp_path / "top" / "a" / "x")


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
