"""Checkpoints that change hands without being copied: kills at every step, and who says that all are gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.core.data import OutputTarget
from muster.core.errors import Conflict
from muster.core.job import JobSpec, Role
from muster.core.status import JobState, JobStatus
from muster.volumes import handing_over
from muster.volumes.folder import FolderStore

SPEC = JobSpec(
    name="flights.train",
    image="train",
    image_digest=f"b3:{0:064}",
    roles=(Role(command=("train",), replicas=2),),
    outputs={"model": OutputTarget(volume="flights/model")},
)
CALLS = ("rename", "mkdir", "unlink", "rmdir", "symlink")


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the process before its `number`-th call that changes names."""
    left = [number]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return call(*arguments, **named)

        return ask

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, counted(getattr(os, name)))
        yield


def until_it_passes(begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, number: int) -> bool:
    """Begin, killed at its `number`-th change; return whether it was."""
    try:
        with killed_at(number, monkeypatch):
            begin()
    except Killed:
        return True
    return False


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def end(store: FolderStore, job_id: str) -> None:
    store.ledger.update(JobStatus(job_id=job_id, state=JobState.FAILED, submitted=1.0, ended=2.0))


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_at_any_step_loses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """:param again: the one that goes on is killed as well, one step later."""
    number, killed = 0, True
    while killed:
        store = FolderStore(tmp_path / f"store-{number}")
        store.ledger.create("a-1", SPEC)
        first = store.stage("a-1")
        for index in range(2):
            first.output("main", index, "model").mkdir(parents=True)
            (first.output("main", index, "model") / "part").write_bytes(b"old")
        (first.checkpoints / "step").write_bytes(b"weights")
        store.note_gone("a-1", attempt=1)
        killed = until_it_passes(partial(store.stage, "a-1"), monkeypatch, number=number)
        saved = store.saved("a-1")
        assert saved is not None
        assert saved.files == 1
        if again and killed:
            until_it_passes(partial(store.stage, "a-1"), monkeypatch, number=number + 1)
        later = FolderStore(tmp_path / f"store-{number}")
        if killed:
            later.stage("a-1")
        now = later.staging("a-1")
        assert now is not None
        assert contents(now.root) == {"checkpoints/step": b"weights"}
        assert [path.name for path in now.root.parent.iterdir() if path.is_dir()] == [str(now.attempt)]
        number += 1
    assert number > 5


def test_a_kill_at_any_step_loses_no_checkpoint_of_the_job_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, killed = 0, True
    while killed:
        store = FolderStore(tmp_path / f"store-{number}")
        for job in (1, 2, 3):
            follows = None if job == 1 else f"a-{job - 1}"
            store.ledger.create(f"a-{job}", replace(SPEC, follows=follows))
        (store.stage("a-1").checkpoints / "step").write_bytes(b"weights")
        store.note_gone("a-1", attempt=1)
        end(store, "a-1")
        killed = until_it_passes(partial(store.stage, "a-2"), monkeypatch, number=number)
        saved = store.saved("a-2")
        assert saved is not None
        assert saved.files == 1
        last = "a-2"
        if killed and number % 2:  # the second job ends before it went on, and a third follows it
            end(store, "a-2")
            last = "a-3"
        if killed:
            store.stage(last)
        now = store.staging(last)
        assert now is not None
        assert contents(now.checkpoints) == {"step": b"weights"}
        number += 1
    assert number > 3


def test_nothing_is_copied_where_all_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path)
    store.ledger.create("a-1", SPEC)
    first = store.stage("a-1")
    with pytest.raises(Conflict, match="processes of attempt 1 may live on"):
        store.attempts.begin("a-1", copy=False)
    assert store.staging("a-1") == first
    handing_over.note_gone(first, "main-0", b"{}")
    with pytest.raises(Conflict, match="may live on"):
        store.attempts.begin("a-1", copy=False)
    handing_over.note_gone(first, "main-1", b"{}")
    handing_over.note_gone(first, "main-1", b"another word")
    assert handing_over.said_by(first, "main-1") == b"{}"
    monkeypatch.delattr("muster.volumes.attempts.copy_tree")
    assert store.attempts.begin("a-1", copy=False).attempt == 2


def test_folders_that_pods_have_mounted_stay_what_they_are(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.ledger.create("a-1", SPEC)
    first = store.stage("a-1")
    mounted = ("main-0", "main-1", "gang", "checkpoints")
    for name in mounted:
        (first.root / name / "deep" / "er").mkdir(parents=True)
        (first.root / name / "deep" / "er" / "file").write_bytes(b"1")
        (first.root / name / "deep").chmod(0o500)
    (first.root / "pods").mkdir()
    (first.root / "ready").mkdir()
    numbers = {name: (first.root / name).stat().st_ino for name in mounted}
    store.note_gone("a-1", attempt=1)
    second = store.stage("a-1")
    assert {name: (second.root / name).stat().st_ino for name in mounted} == numbers
    assert contents(second.root) == {"checkpoints/deep/er/file": b"1"}
    assert not (second.root / "ready").exists()
    assert (second.root / "pods").exists(), "the same pods go on"
    assert list((tmp_path / "trash").iterdir()) == []


def test_a_link_in_place_of_a_folder_leads_nowhere(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("a-1", SPEC)
    first = store.stage("a-1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "kept").write_bytes(b"1")
    (first.root / "main-0").mkdir()
    (first.root / "main-0" / "model").symlink_to(elsewhere)
    (first.root / "main-1").symlink_to(elsewhere)
    store.note_gone("a-1", attempt=1)
    second = store.stage("a-1")
    assert contents(second.root) == {}
    assert contents(elsewhere) == {"kept": b"1"}
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_an_attempt_that_was_committed_has_nothing_to_hand_over(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.ledger.create("a-1", SPEC)
    first = store.stage("a-1")
    store.attempts.clear(first)
    store.note_gone("a-1", attempt=1)
    assert [path.name for path in first.root.iterdir()] == ["sealed"]


def test_what_an_ended_job_gives_back_leaves_what_says_that_all_are_gone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.ledger.create("a-1", SPEC)
    first = store.stage("a-1")
    (first.checkpoints / "step").write_bytes(b"weights")
    store.note_gone("a-1", attempt=1)
    store.ended.give_back("a-1", cause=None)
    assert handing_over.all_gone(first, SPEC)
    assert store.attempts.beside_checkpoints("a-1") == []
