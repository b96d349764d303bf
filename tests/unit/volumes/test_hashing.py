import os
from pathlib import Path

import pytest
from blake3 import blake3

from muster.core.errors import StoreError
from muster.volumes import durability, hashing
from muster.volumes.hashing import AHEAD_FILES, BIG_BYTES, freeze_files, hash_file


@pytest.mark.parametrize("size", [0, 1, BIG_BYTES - 1, BIG_BYTES, 3 * BIG_BYTES + 17])
def test_every_way_to_hash_gives_the_same(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    assert hash_file(str(tmp_path / "x")) == blake3(data).hexdigest()
    (entry,) = freeze_files([(str(tmp_path / "x"), "x")], spare=str(tmp_path / "spare"))
    assert (entry.hash, entry.size_bytes) == (blake3(data).hexdigest(), size)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o444


def test_no_link_is_followed(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("x")
    with pytest.raises(OSError, match="no regular file is there"):
        hash_file(str(tmp_path / "link"))


def test_files_come_in_their_order_and_none_stays_open(tmp_path):
    names = [f"{number:03}" for number in range(3 * AHEAD_FILES)]
    for name in names:
        (tmp_path / name).write_text(name)
    before = len(list(Path("/proc/self/fd").iterdir()))
    frozen = freeze_files([(str(tmp_path / name), name) for name in names], spare=str(tmp_path / "spare"))
    assert [entry.path for entry in frozen] == names
    files = [(str(tmp_path / name), name) for name in ["late", *names]]
    with (tmp_path / "late").open("w"), pytest.raises(StoreError, match="late is still open"):
        list(freeze_files(files, spare=str(tmp_path / "spare")))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_lease_that_only_a_server_could_give_is_not_waited_for(tmp_path, monkeypatch):
    """NFSv4 says EAGAIN of each file that its server has not delegated, which many do with none."""
    monkeypatch.setattr(durability, "file_system", lambda path: 0x6969)
    (tmp_path / "x").write_bytes(b"1")
    with (tmp_path / "x").open("r+"):  # which has the kernel answer the same
        (entry,) = freeze_files([(str(tmp_path / "x"), "x")], spare=str(tmp_path / "spare"))
    assert entry.hash == blake3(b"1").hexdigest()


def test_a_file_that_is_cut_short_while_it_is_hashed_is_an_error_and_not_our_end(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(bytes(3 * BIG_BYTES))
    read = os.read

    def cut(fd, count):
        block = read(fd, count)
        os.truncate(tmp_path / "x", 1)
        return block

    monkeypatch.setattr(hashing, "refuse_writer", lambda fd, name: None)  # as on NFS
    monkeypatch.setattr(os, "read", cut)
    with pytest.raises(StoreError, match="x changed while it was committed"):
        list(freeze_files([(str(tmp_path / "x"), "x")], spare=str(tmp_path / "spare")))


def test_who_writes_while_a_file_is_hashed_does_not_end_us(tmp_path, monkeypatch):
    hash_fd = hashing.hash_open_file

    def hash_while_somebody_opens(fd, size):
        with pytest.raises(OSError, match=r"temporarily unavailable|Permission denied"):
            os.open(tmp_path / "x", os.O_WRONLY | os.O_NONBLOCK)
        return hash_fd(fd, size)

    monkeypatch.setattr(hashing, "hash_open_file", hash_while_somebody_opens)
    (tmp_path / "x").write_bytes(b"1")
    (entry,) = freeze_files([(str(tmp_path / "x"), "x")], spare=str(tmp_path / "spare"))
    assert entry.hash == blake3(b"1").hexdigest()
    (tmp_path / "x").unlink()
