"""A file is shared with the version before only where that one's bytes are known."""

import os
import resource

import pytest

from muster.volumes import fsck
from muster.volumes.folder import FolderStore

ROWS = {"a": b"good" * 500, "d/b": b"more"}


def inode(store, address, path="a"):
    return (store.path(address) / path).stat().st_ino


def spoil(store, address, path="a"):
    """Change a file's bytes, and nothing else that can be set back."""
    file = store.path(address) / path
    status = file.stat()
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.write(b"evil")
    file.chmod(0o444)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def hashed(opened, work, job_id, files=None):
    """Commit a version; return which files of versions before it were read for that."""
    seen = opened(lambda: work.run(job_id, files or ROWS))
    return sorted(
        {
            path.partition("/features/")[2]
            for path in seen
            if "/v/flights/features/" in path and "/data/" in path
        }
    )


def test_a_file_that_was_changed_is_not_shared(work, store):
    first = work.run("a-1", ROWS)
    spoil(store, first.address)
    second = work.run("a-2", ROWS)
    assert (store.path(second.address) / "a").read_bytes() == ROWS["a"]
    assert inode(store, first.address, "d/b") == inode(store, second.address, "d/b")
    problems = store.check(deep=True).problems
    assert [problem.where for problem in problems] == [first.address]


def test_what_is_unchanged_is_shared_and_not_read_again(work, store, opened):
    versions = [work.run("a-1", ROWS)]
    for n in range(2, 5):
        assert hashed(opened, work, f"a-{n}") == []
        versions += store.newest("flights/features", limit=1)
    assert len({inode(store, version.address) for version in versions}) == 1


def test_many_files_with_the_same_bytes_are_read_once_at_most(work, opened):
    files = {f"d/{n}": b"same" for n in range(9)}
    work.run("a-1", files)
    for n in range(2, 4):
        assert hashed(opened, work, f"a-{n}", files) == []


def test_what_gc_took_away_leaves_the_rest_known(work, store, opened):
    for n in range(1, 4):
        work.run(f"a-{n}", ROWS)
    store.collect(keep_last=1, grace_seconds=0)
    assert (store.path("flights/features@3") / "a").stat().st_nlink == 1
    assert hashed(opened, work, "a-4") == []


def test_gc_ends_well_where_there_is_no_room_to_write_what_is_known(work, store):
    for n in range(1, 4):
        work.run(f"a-{n}", ROWS)
    store.collect(keep_last=1)  # the data goes to the trash: from there on nothing need be written
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        store.collect(keep_last=1, grace_seconds=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(store.layout.trash.iterdir()) == []
    work.run("a-4", ROWS)
    assert inode(store, "flights/features@3") == inode(store, "flights/features@4")


def test_what_was_changed_before_gc_is_not_taken_for_known_after_it(work, store):
    for n in range(1, 4):
        work.run(f"a-{n}", ROWS)
    spoil(store, "flights/features@3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsck, "refuse", lambda *_: {})
        store.collect(keep_last=1, grace_seconds=0)
    work.run("a-4", ROWS)
    assert (store.path("flights/features@4") / "a").read_bytes() == ROWS["a"]


@pytest.mark.parametrize("damage", ["unlink", "tear", "chmod"])
def test_what_is_not_known_is_compared_and_that_is_no_error(work, store, opened, damage):
    first = work.run("a-1", ROWS)
    known = store.layout.version(first.volume, 1) / "KNOWN"
    if damage == "unlink":
        known.unlink()
    elif damage == "tear":
        os.truncate(known, known.stat().st_size - 9)
    else:
        (store.path(first.address) / "a").chmod(0o444)  # which changes its ctime
    assert hashed(opened, work, "a-2")[:1] == ["1/data/a"]
    assert inode(store, first.address) == inode(store, "flights/features@2")
    assert hashed(opened, work, "a-3") == []


@pytest.mark.parametrize("compare", [False, True])
def test_a_bit_that_flips_on_the_disk_is_seen_where_everything_is_compared(work, store, opened, compare):
    """It changes no time of its file."""
    first = work.run("a-1", ROWS)
    spoil(store, first.address)
    folder = store.layout.version(first.volume, 1)
    status = (folder / "data" / "a").stat()
    head, _, *others = (folder / "KNOWN").read_text().split("\n")
    (folder / "KNOWN").chmod(0o644)
    (folder / "KNOWN").write_text("\n".join([head, f"{status.st_ino} {status.st_ctime_ns}", *others]))
    work.store = FolderStore(store.layout.root, compare=compare)
    assert hashed(opened, work, "a-2") == (["1/data/a", "1/data/d/b"] if compare else [])
    assert ((store.path("flights/features@2") / "a").read_bytes() == ROWS["a"]) == compare


def test_a_file_that_cannot_be_read_keeps_nothing_from_being_committed(work, store, unprivileged):
    first = work.run("a-1", ROWS)
    (store.path(first.address) / "a").chmod(0o000)
    second = work.run("a-2", ROWS)
    assert (store.path(second.address) / "a").read_bytes() == ROWS["a"]
