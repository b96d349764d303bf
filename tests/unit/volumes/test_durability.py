import errno
import os
from pathlib import Path

import pytest

from muster.core.errors import StoreError
from muster.volumes import attempts
from muster.volumes.durability import is_free, locked, sync_tree, translated, write_whole


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    write_whole(tmp_path / "x", "old")

    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    write_whole(tmp_path / "x", "0123456789")
    assert (tmp_path / "x").read_text() == "0123456789"


def test_a_lock_is_free_when_its_holder_is_gone(tmp_path):
    with locked(tmp_path / "lock"):
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_readers_share_a_lock(tmp_path):
    with locked(tmp_path / "lock", shared=True), locked(tmp_path / "lock", shared=True):
        assert not is_free(tmp_path / "lock")


def test_every_file_and_folder_is_synced(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("1")
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd))
    )
    sync_tree(tmp_path)
    assert synced == [str(tmp_path / "d" / "x"), str(tmp_path / "d"), str(tmp_path)]


def test_an_error_says_what_could_not_be_done():
    with (
        pytest.raises(
            StoreError, match=r"could not keep x: No space left on device \(/a\); nothing half-done"
        ),
        translated("keep x"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a")


def test_copied_checkpoints_are_on_disk_before_the_next_attempt_counts(work, store, monkeypatch):
    work.seal("a-1", work.spec(out="v"))
    (store.staging("a-1").checkpoints / "step-5.pt").write_bytes(b"5")
    seen = []

    def synced(folder):
        seen.append(([path.name for path in folder.iterdir()], store.staging("a-1").attempt))

    monkeypatch.setattr(attempts, "sync_all", synced)
    store.stage("a-1")
    assert seen == [(["step-5.pt"], 1)]
