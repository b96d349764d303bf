"""Each misbehaviour shows: else what the store does on it would prove nothing."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuse import mount as mounts
from tests.fuse.filesystem import Faults
from tests.fuse.library import NoFuse
from tests.fuse.mount import mounted
from tests.waiting import GUARD_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.nfs]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fails(code):
    return pytest.raises(OSError, check=lambda error: error.errno == code)


def test_what_it_should_do_it_does(clients):
    client = clients()
    root = client.root
    (root / "a").mkdir()
    (root / "a" / "x").write_bytes(b"1" * 300_000)
    (root / "a" / "x").rename(root / "y")
    os.link(root / "y", root / "z")
    (root / "a" / "l").symlink_to("../y")
    with (root / "y").open("ab") as file:
        file.write(b"2")
    (root / "y").chmod(0o400)
    os.utime(root / "y", ns=(1, 2))
    found = (client.server / "z").stat()
    assert (found.st_size, found.st_mode & 0o777, found.st_nlink, found.st_mtime_ns) == (300_001, 0o400, 2, 2)
    assert found.st_ino == (root / "y").stat().st_ino
    assert (root / "a" / "l").read_bytes() == (client.server / "y").read_bytes()
    assert names(root) == ["a", "y", "z"]
    os.truncate(root / "y", 3)
    assert (client.server / "y").read_bytes() == b"111"


def test_flags_of_a_rename_are_refused(clients):
    from muster.volumes.tree import exchange

    root = clients().root
    for name in ("one", "other"):
        (root / name).write_text(name)
    exchange(str(root / "one"), str(root / "other"))
    assert {path.name: path.read_text() for path in root.iterdir()} == {"other": "one"}


def test_no_hard_links(clients):
    root = clients(links=False).root
    (root / "x").touch()
    for code in (errno.EPERM, errno.EOPNOTSUPP, errno.EPERM):
        with fails(code):
            os.link(root / "x", root / "y")


def test_no_moves_from_one_folder_into_another(clients):
    root = clients(moves=False).root
    (root / "d" / "e").mkdir(parents=True)
    (root / "x").touch()
    for name in ("x", "d/e"):
        with fails(errno.EXDEV):
            (root / name).rename(root / "d" / "new" if name == "x" else root / "new")
    with fails(errno.EXDEV):
        os.link(root / "x", root / "d" / "y")
    (root / "x").rename(root / "y")
    assert names(root) == ["d", "y"]


def test_what_others_made_is_listed_late(clients):
    one, other = clients(late=True), clients()
    (one.root / "mine").touch()
    (other.root / "theirs").touch()
    assert names(one.root) == ["mine", "theirs"]  # the reply to `mine` told of it
    (other.root / "later").mkdir()
    assert names(one.root) == ["mine", "theirs"]
    assert names(one.root) == ["later", "mine", "theirs"]
    (other.root / "named").touch()
    assert (one.root / "named").exists()
    (other.root / "later" / "deep").touch()
    assert names(one.root / "later") == []
    (other.root / "later" / "deeper").touch()
    (one.root / "later").chmod(0o755)
    assert names(one.root / "later") == ["deep", "deeper"]


def test_what_is_done_is_said_to_have_failed(clients):
    root = clients(lost=1.0).root
    (root / "0").touch()
    told = []
    for n in range(3):
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            (root / f"{n}").rename(root / f"{n + 1}")
        told.append(caught.value.errno)
        assert names(root) == [f"{n + 1}"]
    assert told == [errno.EIO, errno.ENOENT, errno.ENOENT]  # for ESTALE the kernel asks again
    with fails(errno.EEXIST):
        (root / "l").symlink_to("x")
    assert str((root / "l").readlink()) == "x"


def test_misbehaviour_comes_and_goes(clients):
    client = clients()
    (client.root / "x").touch()
    client.misbehave(Faults(lost=1.0))
    with fails(errno.EIO):
        (client.root / "x").rename(client.root / "y")
    client.misbehave(Faults())
    (client.root / "y").rename(client.root / "x")


def test_a_deleted_file_that_is_open_keeps_a_name(clients):
    root = clients(lost=1.0).root
    (root / "d").mkdir()
    (root / "d" / "x").write_text("1")
    with (root / "d" / "x").open() as file:
        (root / "d" / "x").unlink()
        (name,) = names(root / "d")
        assert name.startswith(".nfs")
        with fails(errno.ENOTEMPTY):
            (root / "d").rmdir()
        assert file.read() == "1"
    (root / "d").rmdir()


@pytest.mark.parametrize("stale", [True, False])
def test_what_another_client_deleted_cannot_be_read_further(clients, stale):
    one, other = clients(stale=stale), clients()
    (one.root / "x").write_text("1")
    fd = os.open(one.root / "x", os.O_RDONLY)
    (other.root / "x").unlink()
    if stale:
        with fails(errno.ESTALE):
            os.read(fd, 10)
    else:
        assert os.read(fd, 10) == b"1"
    os.close(fd)


@pytest.mark.parametrize("locks", [True, False])
def test_locks_that_do_nothing(clients, locks):
    root = clients(locks=locks).root
    with (root / "x").open("w") as one, (root / "x").open("w") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        if locks:
            with fails(errno.EAGAIN):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_nobody_synced_is_lost_with_the_power_syncfs_or_not(clients):
    from muster.volumes.durability import sync_all

    client = clients()
    for name in ("synced", "lost"):
        (client.root / name).write_text("1")
    with (client.root / "synced").open() as file:
        os.fsync(file.fileno())
    sync_all(client.root)
    client.cut_power()
    assert [(client.root / name).read_text() for name in ("synced", "lost")] == ["1", ""]


@pytest.mark.parametrize("required", [True, False])
def test_where_nothing_can_be_mounted_the_test_is_left_out_unless_it_is_required(
    tmp_path, monkeypatch, required
):
    monkeypatch.setattr(mounts, "DEVICE", tmp_path / "fuse")
    monkeypatch.setenv("MUSTER_REQUIRE_FUSE", "1" if required else "")
    with (
        pytest.raises(NoFuse if required else pytest.skip.Exception, match="fuse cannot be opened here"),
        mounted(tmp_path / "server", tmp_path / "client"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left(tmp_path):
    with mounted(tmp_path / "server", tmp_path / "client") as client:
        assert client.root in mounts.ours()
    assert client.process.returncode is not None
    assert client.root not in mounts.ours()
    assert [path.name for path in tmp_path.iterdir()] == ["server"]


def test_a_mount_whose_process_was_killed_is_taken_away(tmp_path):
    with mounted(tmp_path / "server", tmp_path / "client") as client:
        fd = os.open(client.root / "x", os.O_WRONLY | os.O_CREAT)
        client.process.kill()
        client.process.wait()
        assert client.root in mounts.ours()
    assert client.root not in mounts.ours()
    with fails(errno.ENOTCONN):
        os.close(fd)


HOLDER = """
import os, signal, sys
from pathlib import Path
from tests.fuse.mount import mounted
with mounted(Path(sys.argv[1], "server"), Path(sys.argv[1], "client")):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_who_mounted_it_may_be_killed(tmp_path):
    with mounted(tmp_path / "s", tmp_path / "c"):
        pass  # it can be had here
    done = subprocess.run([sys.executable, "-c", HOLDER, tmp_path], cwd=mounts.ROOT, timeout=GUARD_SECONDS)
    assert done.returncode == -signal.SIGKILL
    mounts.until(lambda: Path(tmp_path, "client") not in mounts.ours())
