import errno
import fcntl
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.core.errors import StoreError
from muster.volumes.durability import (
    is_free,
    is_local,
    locked,
    read_whole,
    rename,
    symlink,
    sync_tree,
    translated,
    write_whole,
)
from muster.volumes.layout import Layout


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


def test_one_thread_at_a_time_holds_a_lock_also_where_flock_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    inside, most = [], []

    def hold(n):
        with locked(tmp_path / "lock"):
            inside.append(n)
            most.append(len(inside))
            assert not is_free(tmp_path / "lock")
            inside.remove(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(200)))
    assert max(most) == 1
    assert is_free(tmp_path / "lock")


def test_who_wants_a_lock_alone_waits_for_those_who_share_it(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    had = threading.Event()

    def alone():
        with locked(tmp_path / "lock"):
            had.set()

    with locked(tmp_path / "lock", shared=True):
        thread = threading.Thread(target=alone)
        with locked(tmp_path / "lock", shared=True):
            thread.start()
        assert not had.is_set()
    thread.join(GUARD_SECONDS)
    assert had.is_set()


def test_a_forked_child_does_not_wait_for_threads_it_does_not_have(tmp_path, monkeypatch):
    with locked(tmp_path / "lock"):
        monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)  # the lock is the parent's still
        child = os.fork()
        if not child:
            signal.alarm(10)
            with locked(tmp_path / "lock"):
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(call, code, *, done):
    """What an NFS client does that gets no reply: the first `call` of its kind fails, be it `done` or not."""
    told = []

    def once(*arguments, **named):
        if told:
            return call(*arguments, **named)
        told.append(code)
        if done:
            call(*arguments, **named)
        raise OSError(code, os.strerror(code))

    return once


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_rename_whose_reply_is_lost_is_done(tmp_path, monkeypatch, code, before):
    (tmp_path / "x").write_text("new")
    if before:
        (tmp_path / "y").write_text(before)
    monkeypatch.setattr(os, "rename", refused(os.rename, code, done=True))
    rename(tmp_path / "x", tmp_path / "y")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"y": "new"}


def test_a_rename_that_was_not_done_is_asked_for_once_more(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("new")
    monkeypatch.setattr(os, "rename", refused(os.rename, errno.EIO, done=False))
    rename(tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "y").read_text() == "new"


@pytest.mark.parametrize("target", ["y", "missing/y"])
def test_a_rename_of_what_is_nowhere_fails(tmp_path, target):
    with pytest.raises(OSError, match="No such file"):
        rename(tmp_path / "x", tmp_path / target)


def test_a_link_that_is_there_already_is_ours_if_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", refused(os.symlink, errno.EEXIST, done=True))
    symlink("a-1:0", tmp_path / ".1")
    with pytest.raises(FileExistsError):
        symlink("b-1:0", tmp_path / ".1")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        symlink("a-1:0", tmp_path / "file")


def test_a_file_that_was_replaced_while_it_was_read_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("1")
    monkeypatch.setattr(Path, "read_bytes", refused(Path.read_bytes, errno.ESTALE, done=False))
    assert read_whole(tmp_path / "x") == b"1"
    monkeypatch.setattr(Path, "read_bytes", refused(Path.read_bytes, errno.EIO, done=False))
    with pytest.raises(OSError, match="Input/output error"):
        read_whole(tmp_path / "x")


def test_only_a_disk_of_this_machine_is_trusted_with_syncfs():
    assert not is_local(Path("/proc"))
    assert is_local(Path("/dev/shm"))


def test_every_file_and_folder_is_synced(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("1")
    (tmp_path / "d" / "link").symlink_to("nowhere")
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

    def synced(_, folder):
        seen.append(([path.name for path in folder.iterdir()], store.staging("a-1").attempt))

    monkeypatch.setattr(Layout, "sync", synced)
    store.stage("a-1")
    assert seen == [(["step-5.pt"], 1)]


def test_an_attempt_without_checkpoints_waits_for_no_disk(work, store, monkeypatch):
    """Syncing a file system waits for all writers' data."""
    work.seal("a-1", work.spec(out="v"))
    monkeypatch.setattr(Layout, "sync", pytest.fail)
    assert list(store.stage("a-1").checkpoints.iterdir()) == []


def test_what_another_user_owns_is_told_with_both_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 12345)
    path = tmp_path / "code" / "new"
    for error, told in (
        (PermissionError, rf"\({path}; {tmp_path} belongs to \w+, and you are user {me + 12345}\); nothing"),
        (OSError, rf"\({path}\); nothing"),
    ):
        with pytest.raises(StoreError, match=told), translated("keep the code"):
            raise error(13 if error is PermissionError else 28, "no", str(path))
