"""The series of a job beside its log: each point once, whatever a kill left."""

from __future__ import annotations

from itertools import count

import pytest

from muster.core.errors import Corrupt
from muster.core.series import Series
from muster.volumes.series import NOTE_BYTES, SeriesFile, read_series


def point(number):
    return b"[rank 0] muster: step=%d loss=%d\n" % (number, number)


class Log:
    """A log and its series, as one process adds to them."""

    def __init__(self, folder):
        seconds = count(101.0)
        self.log, self.file = (
            folder / "log",
            SeriesFile(folder, started=lambda: 100.0, clock=lambda: next(seconds)),
        )

    def add(self, lines, *, told=True):
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            log.write(lines)
        if told:  # else a kill came in between
            self.file.take(lines, before=before, after=before + len(lines))


def steps(folder):
    return [
        value
        for each in read_series(folder / "series").numbers
        if each.name == "step"
        for value in each.values
    ]


def test_a_log_without_numbers_has_no_file(tmp_path):
    Log(tmp_path).add(b"[rank 0] begins\n")
    assert not (tmp_path / "series").exists()
    assert read_series(tmp_path / "series") == Series()


def test_another_process_goes_on_and_reads_what_a_kill_left_out(tmp_path):
    Log(tmp_path).add(point(1))
    Log(tmp_path).add(point(2), told=False)
    assert steps(tmp_path) == [1]
    Log(tmp_path).add(point(3))
    Log(tmp_path).add(b"ends\n")
    assert steps(tmp_path) == [1, 2, 3]


def test_a_line_that_was_cut_is_read_from_the_log_again(tmp_path):
    log = Log(tmp_path)
    for number in range(4):
        log.add(point(number))
    data = (tmp_path / "series").read_bytes()
    begins = data.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(begins, len(data)):
        (tmp_path / "series").write_bytes(data[:cut])
        assert steps(tmp_path) == [0, 1, 2]
        Log(tmp_path).add(point(4), told=False)
        size = (tmp_path / "log").stat().st_size
        SeriesFile(tmp_path).take(point(5), before=size, after=size)  # of those that a full log leaves out
        assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]
        with (tmp_path / "log").open("rb+") as file:
            file.truncate(size - len(point(4)))


def test_a_file_that_cannot_be_read_is_named_and_made_anew_from_the_log(tmp_path):
    Log(tmp_path).add(point(1))
    (tmp_path / "series").write_bytes(b"\0" * 100 + b"\n")
    with pytest.raises(Corrupt, match=r"series cannot be read.*: delete it"):
        read_series(tmp_path / "series")
    Log(tmp_path).add(point(2))
    assert steps(tmp_path) == [1, 2]


def test_of_a_long_log_without_numbers_little_is_read_again(tmp_path):
    log = Log(tmp_path)
    log.add(point(1))
    for _ in range(4):
        log.add(b"x" * (NOTE_BYTES // 2) + b"\n")
    covered = int((tmp_path / "series").read_bytes().splitlines()[-1].partition(b",")[0][1:])
    assert (tmp_path / "log").stat().st_size - covered <= NOTE_BYTES


def test_the_file_stays_small(tmp_path):
    log = Log(tmp_path)
    sizes = set()
    for number in range(5000):
        log.add(point(number))
        sizes.add((tmp_path / "series").stat().st_size)
    assert max(sizes) < 400_000
    assert len(steps(tmp_path)) <= 2000
    assert steps(tmp_path)[-1] == 4999


def test_a_full_disk_loses_no_line_of_the_log_and_no_point(tmp_path):
    log = Log(tmp_path)
    (tmp_path / "series").mkdir()  # nothing can be written there
    log.add(point(1))
    (tmp_path / "series").rmdir()
    log.add(point(2))
    assert steps(tmp_path) == [1, 2]
