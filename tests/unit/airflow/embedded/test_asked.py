"""What was asked for and has not begun, with several processes that ask."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from muster.airflow.embedded.home import RequestNotes
from muster.core.errors import MusterError, SpecError


def test_a_note_that_another_process_takes_away_meanwhile_is_no_error(tmp_path: Path) -> None:
    notes = RequestNotes(tmp_path / "airflow" / "runs")
    with notes.asking("mine", {"lr": 0.1}) as run_id:
        (notes.folder / "muster__another.asked").symlink_to("gone")  # listed, and not there when it is read
        assert [asked.run_id for asked in notes.left("mine")] == [run_id]


def test_a_note_stays_until_its_run_begins_and_goes_where_it_was_refused(tmp_path: Path) -> None:
    notes = RequestNotes(tmp_path / "airflow" / "runs")
    with notes.asking("mine", {"lr": 0.1}) as run_id:
        assert notes.held(run_id)
        with pytest.raises(MusterError, match="still going on in process"), notes.own(run_id):
            pass
    assert not notes.held(run_id)
    (left,) = notes.left("mine")
    assert (left.run_id, left.params, notes.left("other")) == (run_id, {"lr": 0.1}, [])
    with pytest.raises(SpecError), notes.asking("mine", {}):
        raise SpecError("no such param")
    assert notes.left("mine") == []


def test_a_run_is_noted_before_its_process_is_there_and_the_note_goes_with_its_command(
    tmp_path: Path,
) -> None:
    notes = RequestNotes(tmp_path / "airflow" / "runs")
    with notes.announced("mine", {"seed": "123"}):
        (left,) = notes.left("mine")
        assert (left.params, notes.held(left.run_id)) == ({"seed": "123"}, True)
        with notes.asking("mine", {"seed": "123"}) as run_id:
            assert [asked.run_id for asked in notes.left("mine")] == [left.run_id, run_id]
            notes.forget(run_id)  # it has begun
    assert notes.left("mine") == []


def test_a_run_without_an_end_is_held_or_its_process_has_died(tmp_path: Path) -> None:
    notes = RequestNotes(tmp_path / "airflow" / "runs")
    with notes.own("muster__1"):
        assert notes.unended() == {"muster__1": False}
    assert notes.unended() == {}
    (notes.folder / "muster__2.lock").write_text("4711")  # as a killed process leaves it
    assert notes.unended() == {"muster__2": True}
    with (notes.folder / "muster__2.lock").open() as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)  # another `muster runs` looks at the same moment
        assert notes.unended() == {"muster__2": True}


def test_a_disk_that_is_full_when_a_run_begins_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.lock").symlink_to("/dev/full")
    with pytest.raises(SpecError, match=r"MUSTER_HOME .* cannot be written"), RequestNotes(tmp_path).own("r"):
        pass
