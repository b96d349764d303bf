"""When the lines of a log were stored."""

from pathlib import Path

from muster.volumes.base import LogTime
from muster.volumes.series import MOST_TIMES, TIMES, note_time, read_times


def test_lines_of_one_second_share_a_time(tmp_path: Path) -> None:
    for before, now in ((0, 10.0), (5, 10.4), (9, 11.5), (30, 99.0)):
        note_time(tmp_path, before=before, now=now)
    kept = [LogTime(offset=0, at=10.0), LogTime(offset=9, at=11.5), LogTime(offset=30, at=99.0)]
    assert read_times(tmp_path) == kept
    assert read_times(tmp_path, after=8) == kept
    assert read_times(tmp_path, after=9, before=30) == kept[1:2]
    assert read_times(tmp_path, after=31) == kept[2:]


def test_a_record_that_a_kill_cut_is_overwritten(tmp_path: Path) -> None:
    note_time(tmp_path, before=0, now=10.0)
    with (tmp_path / TIMES).open("ab") as file:
        file.write(b"torn")
    assert [each.at for each in read_times(tmp_path)] == [10.0]
    note_time(tmp_path, before=7, now=20.0)
    assert [each.at for each in read_times(tmp_path)] == [10.0, 20.0]


def test_a_clock_that_is_set_back_is_recorded(tmp_path: Path) -> None:
    note_time(tmp_path, before=0, now=100.0)
    note_time(tmp_path, before=4, now=50.0)
    assert [each.at for each in read_times(tmp_path)] == [100.0, 50.0]


def test_a_log_that_grows_for_days_has_times_each_minute(tmp_path: Path) -> None:
    note_time(tmp_path, before=0, now=0.0)
    (tmp_path / TIMES).write_bytes((tmp_path / TIMES).read_bytes() * MOST_TIMES)
    note_time(tmp_path, before=1, now=30.0)
    note_time(tmp_path, before=2, now=61.0)
    assert [each.at for each in read_times(tmp_path)] == [0.0, 61.0]


def test_a_disk_that_takes_no_time_fails_no_line(tmp_path: Path) -> None:
    note_time(tmp_path / "gone", before=0)
    assert read_times(tmp_path) == []
