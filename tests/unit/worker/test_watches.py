"""What is looked at while the ranks run: files of two replicas, what no version keeps, old checkpoints."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import Role
from muster.core.replica import Replica
from muster.worker import watches
from muster.worker.watches import QUIET_SECONDS, Doubles, Pruning, Silence, Unkept

NOW = 1_000_000.0
TWO = (Role(name="main", entrypoint="t:f", replicas=2),)


@pytest.fixture
def replicas(bench: Any) -> list[Replica]:
    """The two replicas of a gang, each with a folder of its own to write to, and all in one to seal in."""
    made = [bench.replica(roles=TWO, index=index, outputs=("model",)) for index in range(2)]
    own = [replace(each, staging={"model": str(bench.root / f"main-{each.index}")}) for each in made]
    for each in own:
        Path(each.staging["model"], "epochs").mkdir(parents=True)
    return own


def lines(replicas: list[Replica]) -> tuple[list[Doubles], list[str]]:
    said: list[str] = []
    return [Doubles(each, say=said.append) for each in replicas], said


def write(replica: Replica, name: str) -> None:
    Path(replica.staging["model"], name).write_text("x")


def test_the_second_replica_tells_it_once(replicas: list[Replica]) -> None:
    both, said = lines(replicas)
    write(replicas[0], "epochs/snapshot.pt")
    write(replicas[1], "epochs/rank-1.pt")
    for each in (*both, *both):
        each.look(now=True)
    assert said == []
    write(replicas[1], "epochs/snapshot.pt")
    for each in (*both, *both):
        each.look(now=True)
    assert said == [
        (
            "[muster] warning: replicas main-0 and main-1 both write 'epochs/snapshot.pt' of output 'model': "
            "that cannot become a version; a script that lets LOCAL_RANK 0 write wants `ranks=2` in one replica"
        )
    ]


def test_it_is_told_within_a_minute_and_nothing_is_read_before_it_is_due(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(watches.os, "scandir", lambda path: looked.append(path) or scandir(path))
    both, _ = lines(replicas)
    both[0].look()
    assert looked == []
    # the first lists what it wrote, then the second looks: at worst two turns after the write
    assert 2 * Doubles.every_seconds < 60
    assert 0 < both[0].left() <= Doubles.every_seconds


def test_no_file_of_an_output_is_opened(replicas: list[Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    both, said = lines(replicas)
    for each in replicas:
        for number in range(100):
            write(each, f"{number}.pt")
    opened: list[str] = []
    plain = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *how, **more: opened.append(path) or plain(path, *how, **more)
    )
    for each in both:
        each.look(now=True)
    assert "'0.pt' and 99 more of output" in said[0]
    assert [path for path in opened if "main-" in path and not path.endswith((".writes", ".new"))] == []
    assert len(opened) == 3


def test_a_job_of_one_replica_looks_at_nothing(bench: Any) -> None:
    one = Doubles(bench.replica(entrypoint="t:f", outputs=("model",)), say=print)
    one.look(now=True)
    assert one.left() == float("inf")
    assert list((bench.root / "sealed").iterdir()) == []


def test_it_is_told_once_while_the_ranks_run(bench: Any) -> None:
    said: list[str] = []
    replica = bench.replica(entrypoint="t:f", outputs=("model",))
    model = Path(replica.staging["model"])
    watch = Unkept(replica, say=said.append)
    assert 0 < watch.left() <= Unkept.every_seconds
    (model / "last").symlink_to("epoch-3")  # which is written next
    watch.look(now=True)
    assert said == []
    os.mkfifo(model / "door")
    for _ in range(2):
        watch.look(now=True)
    assert said == [
        (
            "[muster] warning: output 'model' holds a named pipe, 'door': a version keeps files, folders, and links within it as "
            "the files that they name; delete it, or write a file in its place: as it is, nothing of this job is committed"
        )
    ]


def test_a_job_without_outputs_is_not_looked_at(bench: Any) -> None:
    assert Unkept(bench.replica(entrypoint="t:f"), say=print).left() == float("inf")


@pytest.fixture
def first(bench: Any) -> Replica:
    """The first of two replicas of a job that keeps two checkpoints."""
    made: Replica = bench.replica(roles=(Role(entrypoint="t:f", replicas=2),))
    Path(made.checkpoints).mkdir(exist_ok=True)
    return replace(made, spec=replace(made.spec, keep=2))


def save(replica: Replica, path: str, *, seconds_ago: float) -> None:
    """Write a file of a checkpoint, at that time; folders keep the time of their making, as long ago."""
    file = Path(replica.checkpoints, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("weights")
    for each in (file, *file.parents[: len(Path(path).parts) - 1]):
        os.utime(each, (NOW - seconds_ago, NOW - seconds_ago))


def left(replica: Replica) -> list[str]:
    return sorted(each.name for each in Path(replica.checkpoints).iterdir())


def prune(replica: Replica) -> list[str]:
    said: list[str] = []
    Pruning(replica, say=said.append, now=lambda: NOW).look(now=True)
    return said


def test_the_newest_stay_whatever_their_names(first: Replica) -> None:
    for name, age in (("step-9.pt", 400), ("step-10.pt", 300), ("step-11/part-0", 200), ("a.pt", 100)):
        save(first, name, seconds_ago=age)
    assert prune(first) == []
    assert left(first) == ["a.pt", "step-11"]


def test_one_that_is_being_written_counts_as_none(first: Replica) -> None:
    for name, age in (("1", 400), ("2", 300), ("3/part-0", 200), ("3/part-1", QUIET_SECONDS - 1)):
        save(first, name, seconds_ago=age)
    prune(first)
    assert left(first) == ["1", "2", "3"]
    save(first, "3/part-1", seconds_ago=QUIET_SECONDS + 1)
    prune(first)
    assert left(first) == ["2", "3"]


def test_at_the_end_every_one_is_whole(first: Replica) -> None:
    for name, age in (("1", 3), ("2", 2), ("3", 1)):
        save(first, name, seconds_ago=age)
    Pruning(first, say=print, now=lambda: NOW).finish()
    assert left(first) == ["2", "3"]


def test_links_and_names_with_a_dot_are_neither_counted_nor_deleted(first: Replica) -> None:
    for name, age in (("1", 400), ("2", 300), (".state", 500)):
        save(first, name, seconds_ago=age)
    Path(first.checkpoints, "latest").symlink_to("2")
    prune(first)
    assert left(first) == [".state", "1", "2", "latest"]


def test_what_a_killed_worker_was_deleting_is_deleted(first: Replica) -> None:
    save(first, ".muster-deletes-1/part-0", seconds_ago=400)
    prune(first)
    assert left(first) == []


def test_another_replica_and_a_job_that_keeps_all_delete_nothing(first: Replica) -> None:
    for name in ("1", "2", "3"):
        save(first, name, seconds_ago=400)
    prune(replace(first, index=1))
    prune(replace(first, spec=replace(first.spec, keep=0)))
    assert left(first) == ["1", "2", "3"]


def test_what_cannot_be_deleted_is_said_once(first: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2", "3"):
        save(first, name, seconds_ago=400)
    said: list[str] = []
    pruning = Pruning(first, say=said.append, now=lambda: NOW)

    def refused(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "unlink", refused)
    pruning.look(now=True)
    pruning.look(now=True)
    assert said == ["[muster] warning: checkpoint '1' cannot be deleted: Operation not permitted"]


BEGAN = 1_000_000.0


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now, self.awake = BEGAN, 50.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.awake

    def run(self, seconds: float) -> None:
        self.now, self.awake = self.now + seconds, self.awake + seconds

    def sleep(self, seconds: float) -> None:
        """The machine is suspended."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watches, "time", clock)
    return clock


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    (tmp_path / "sealed").mkdir()
    os.utime(tmp_path / "sealed", (BEGAN, BEGAN))
    return tmp_path / "sealed"


@pytest.fixture
def silence(clock: Clock, sign: Path) -> Silence:
    return Silence(60.0, sign=str(sign))


def test_it_is_a_hang_after_so_long_and_not_before(silence: Silence, clock: Clock) -> None:
    clock.run(59)
    assert not silence.is_hang(clock.now)
    assert silence.left(clock.now) == 1
    clock.run(1)
    assert silence.is_hang(clock.now)


def test_a_line_begins_it_anew_and_leaves_a_sign_for_the_other_replicas(
    silence: Silence, clock: Clock, sign: Path
) -> None:
    other = Silence(60.0, sign=str(sign))
    os.utime(sign, (0, 0))
    clock.run(59)
    silence.broken()
    assert sign.stat().st_mtime > 0
    os.utime(sign, (clock.now, clock.now))  # the kernel dates it by its own clock
    clock.run(59)
    assert not silence.is_hang(clock.now)
    assert not other.is_hang(clock.now)
    clock.run(1)
    assert other.is_hang(clock.now)


def test_a_file_that_changes_is_progress(clock: Clock, sign: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "epoch-3" / "weights"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    for path in (checkpoint, checkpoint.parent, checkpoint.parent.parent):
        os.utime(path, (BEGAN, BEGAN))
    silence = Silence(60.0, sign=str(sign), watched=[str(tmp_path / "checkpoints"), str(tmp_path / "gone")])
    os.utime(checkpoint, (BEGAN + 30, BEGAN + 30))
    clock.run(80)
    assert not silence.is_hang(clock.now)
    clock.run(10)
    assert silence.is_hang(clock.now)


def test_a_machine_that_was_suspended_was_not_silent(silence: Silence, clock: Clock) -> None:
    clock.run(30)
    clock.sleep(8 * 3600)
    assert not silence.is_hang(clock.now)
    clock.run(29)
    assert not silence.is_hang(clock.now)
    clock.run(1)
    assert silence.is_hang(clock.now)


def test_a_line_after_the_suspension_counts_once(silence: Silence, clock: Clock, sign: Path) -> None:
    clock.sleep(3600)
    silence.broken()
    os.utime(sign, (clock.now, clock.now))
    clock.run(60)
    assert silence.is_hang(clock.now)


def test_without_a_time_it_never_is(clock: Clock, sign: Path) -> None:
    silence = Silence(0, sign=str(sign))
    clock.run(1e9)
    assert not silence.is_hang(clock.now)
    assert silence.left(clock.now) == math.inf


def test_one_that_was_found_is_one_whatever_the_finders_last_words_change(
    silence: Silence, clock: Clock, sign: Path
) -> None:
    other = Silence(60.0, sign=str(sign))
    clock.run(60)
    assert not other.is_found()
    silence.find()
    os.utime(sign, (clock.now, clock.now))
    assert other.is_found()
    assert other.is_hang(clock.now)
    other.find()
    assert silence.is_found()


def test_to_one_that_hears_its_own_ranks_it_is_none_yet(silence: Silence, clock: Clock, sign: Path) -> None:
    other = Silence(60.0, sign=str(sign))
    clock.run(59)
    other.broken()
    clock.run(1)
    silence.find()
    assert not other.is_hang(clock.now)
