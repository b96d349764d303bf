"""A tree whose owner swaps its folders for links to another user's, while the store goes through it."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from muster.core.errors import StoreError
from muster.volumes import tree
from muster.volumes.commit import freeze
from muster.volumes.gather import Draft
from muster.volumes.layout import open_layout

_FORKS = multiprocessing.get_context("fork")
ROUNDS = 150
KEY = b"the key that signs"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder of the store's own; what is done to it can be told by its permissions."""
    folder = tmp_path / "secret"
    (folder / "empty").mkdir(parents=True)
    (folder / "x").write_bytes(KEY)
    (folder / "x").chmod(0o600)
    (folder / "empty").chmod(0o711)
    folder.chmod(0o711)
    return folder


@contextmanager
def swapping(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Let a process swap a user's folder for the link beside it all the time: of the user whose number it was told last."""
    number = _FORKS.RawValue("i", -1)

    def swap() -> None:
        while True:
            user = f"{tmp_path}/user-{number.value}"
            with suppress(OSError):
                tree.exchange(f"{user}/d", f"{user}/link")

    process = _FORKS.Process(target=swap)
    process.start()
    try:
        yield lambda told: setattr(number, "value", told)
    finally:
        process.kill()
        process.join()


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder.parent)): stat.S_IMODE(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
    }


def contents(folder: Path) -> set[bytes]:
    """The bytes of every file below, links not followed."""
    found = set()
    for inner, _, names in os.walk(folder):
        paths = [Path(inner, name) for name in names]
        found |= {path.read_bytes() for path in paths if not path.is_symlink()}
    return found


def mine(tmp_path: Path, secret: Path, number: int) -> Path:
    """A user's tree: a folder that is to be swapped for the link beside it."""
    user = tmp_path / f"user-{number}"
    (user / "d" / "empty").mkdir(parents=True)
    (user / "d" / "x").write_bytes(b"of mine, as long.."[: len(KEY)])
    os.link(user / "d" / "x", user / "another-name")  # a commit gives each bytes of its own
    (user / "link").symlink_to(secret)
    return user


def copy(user: Path, store: Path) -> None:
    tree.copy_tree(user, user.with_name(f"{user.name}-copy"))


def unlock(user: Path, store: Path) -> None:
    tree.unlock(user)


def graft(user: Path, store: Path) -> None:
    target = user.with_name(f"{user.name}-grafted")
    (target / "d").mkdir(parents=True)
    tree.graft(user, target)


def prune(user: Path, store: Path) -> None:
    tree.prune(user)


def freeze_it(user: Path, store: Path) -> None:
    draft = Draft(folder=user, output="out", volume="v", partition=None, source="", files={})
    with suppress(StoreError):
        freeze(draft, ())


@pytest.mark.parametrize("act", [copy, unlock, graft, prune, freeze_it])
def test_nothing_is_done_to_what_a_link_leads_to(tmp_path, secret, act):
    before = modes(secret)
    store = tmp_path / "store"
    open_layout(store)
    with swapping(tmp_path) as swap:
        for number in range(ROUNDS):
            user = mine(tmp_path, secret, number)
            swap(number)
            with suppress(OSError):
                act(user, store)
    assert modes(secret) == before
    assert (secret / "x").read_bytes() == KEY
    tree.remove(secret)
    assert KEY not in contents(tmp_path)
