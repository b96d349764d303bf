from __future__ import annotations

from tests.unit.airflow.attempts.notes import Notes

from muster.airflow.attempts.log import Shown


def test_a_mark_is_behind_what_was_shown_and_counts_for_its_job_alone() -> None:
    notes, now = Notes(), [0.0]
    shown = Shown(notes, "muster", "j-1", clock=lambda: now[0])
    marks = []
    for second, offset in enumerate([10, 20, 20, 30, 30, 30], start=1):
        now[0] = float(second)
        shown.note(offset)
        marks.append(Shown(notes, "muster", "j-1").before)
    assert marks == [0, 10, 20, 20, 30, 30], "what the last second brought may not be on the screen yet"
    assert Shown(notes, "muster", "j-2").before == 0
    assert not any(key.startswith("muster") for key in notes.kept), "those are attempts"


def test_lines_that_come_fast_are_written_down_once_a_second() -> None:
    notes, now = Notes(), [0.0]
    shown = Shown(notes, "muster", "j-1", clock=lambda: now[0])
    for offset in range(1000):
        now[0] = offset / 400
        shown.note(offset)
    assert notes.kept == {"shown.muster": "j-1 400"}
