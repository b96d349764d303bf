"""A disk that is full is called that; a name that is too long is the author's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.room import Room, size_of
from muster.core.verdict import Cause, ExitCode
from muster.worker.faults import WorkerFault
from muster.worker.replica import Disks

FULL = """
import os
def f(made):
    with open("/dev/full", "wb") as file:
        file.write(b"x")
"""
SCRIPT = 'open("/dev/full", "wb").write(b"x" * 99999)\n'


def fault(message: str) -> WorkerFault:
    return WorkerFault(rank=0, cause=Cause.USER_ERROR, message=message, at=1.0, where="t.py:4")


def test_a_rank_that_meets_a_full_disk_is_not_the_author_s_error(bench) -> None:
    bench.code(t=FULL)
    ended = bench.run(entrypoint="t:f", outputs=("made",))
    assert ended.code == ExitCode.SEAL_FAILED
    verdict = ended.report.verdict
    assert (verdict.cause, verdict.rank) == (Cause.DISK_FULL, 0)
    assert verdict.message.startswith("OSError: [Errno 28] No space left on device: ")
    assert " free of " in verdict.message
    assert "`muster jobs gc`" in verdict.advice


def test_so_is_it_of_a_script(bench) -> None:
    (bench.root / "code").mkdir()
    (bench.root / "code" / "t.py").write_text(SCRIPT)
    ended = bench.run(command=("python", "t.py"), outputs=("made",))
    assert ended.report.verdict.cause is Cause.DISK_FULL


def test_a_name_that_is_too_long_is_the_author_s(bench) -> None:
    bench.code(t="def f(made): open(f'{made}/' + 'x' * 300, 'w')")
    verdict = bench.run(entrypoint="t:f", outputs=("made",)).report.verdict
    assert verdict.cause is Cause.USER_ERROR
    assert "File name too long" in verdict.message


def test_a_path_that_is_too_long_for_a_version_is_refused_at_the_commit(bench) -> None:
    deep = "import os\ndef f(made):\n    os.chdir(made)\n"
    deep += "    for _ in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    bench.code(t=deep)
    (refused,) = bench.run(entrypoint="t:f", outputs=("made",)).part.refused
    assert refused.startswith("output 'made' holds a path of more than 3,000 bytes, 'ddd")


def test_the_verdict_says_what_the_job_s_own_checkpoints_hold(bench) -> None:
    bench.code(t=FULL)
    replica = bench.replica(entrypoint="t:f", outputs=("made",))
    (bench.root / "checkpoints" / "epoch-1").write_bytes(b"x" * 2048)
    disks = Disks(replica, claim=False)
    found = disks.blamed(fault("OSError: [Errno 122] Disk quota exceeded"))
    assert "(checkpoints of this one: 2.0 KiB)" in found.verdict.advice


def test_on_a_cluster_the_disk_of_the_outputs_is_the_claim(bench) -> None:
    replica = bench.replica(entrypoint="t:f", outputs=("made",))
    rooms = list(Disks(replica, claim=True).rooms())
    assert [room.disk for room in rooms[:2]] == ["the store's claim"] * 2
    assert rooms[2].disk.startswith("the disk at ")


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: [enforce fail at inline_container.cc:668] . unexpected pos 704 vs 598",
        "OSError: 5000 requested and 1024 written",
    ],
)
def test_what_a_library_could_not_write_is_a_full_disk_s_only_where_one_is(
    bench, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    disks = Disks(bench.replica(entrypoint="t:f", outputs=("made",)), claim=False)
    assert disks.blamed(fault(message)).cause is Cause.USER_ERROR
    some = disks.fullest()
    monkeypatch.setattr(Disks, "fullest", lambda _: replace(some, free_bytes=0))
    assert disks.blamed(fault(message)).cause is Cause.DISK_FULL
    assert disks.blamed(fault("ValueError: no rows")).cause is Cause.USER_ERROR


def test_a_disk_is_named_by_its_mount_point(tmp_path: Path) -> None:
    assert Room.of("/proc/self/status").disk == "the disk at /proc"
    assert Room.of(tmp_path / "not" / "yet").total_bytes > 0


def test_full_shared_memory_is_told_with_what_makes_room_there(
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks, asked = Disks(bench.replica(entrypoint="t:f", outputs=("made",)), claim=False), Room.of
    assert not any("shared memory" in room.disk for room in disks.rooms())  # it is small, and not full
    monkeypatch.setattr(
        Room,
        "of",
        lambda path, *, disk="": replace(
            asked(path, disk=disk), free_bytes=1 << 30 if path != "/dev/shm" else 0
        ),
    )
    verdict = disks.blamed(fault("RuntimeError: unable to write to file </torch_7_1>")).verdict
    assert "shared memory, /dev/shm, has 0 B free of" in verdict.message
    assert "/dev/shm" in verdict.advice
    assert "muster jobs gc" not in verdict.advice


def test_a_file_system_that_tells_no_size_is_not_a_full_disk(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Room(disk="the disk at /mnt", free_bytes=0, total_bytes=0)
    monkeypatch.setattr(Room, "of", lambda *_, **__: unknown)
    disks = Disks(bench.replica(entrypoint="t:f", outputs=("made",)), claim=False)
    assert disks.blamed(fault("RuntimeError: shapes differ")).cause is Cause.USER_ERROR
    assert disks.told("full") == "full"


def test_checkpoints_that_cannot_be_looked_at_keep_no_verdict_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some").write_bytes(b"x")

    def denied(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr("muster.core.room.os.lstat", denied)
        assert size_of(tmp_path) == 0
    assert size_of(tmp_path) == 1
