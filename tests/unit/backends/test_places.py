"""The files by which a job's end is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.backends.local import places
from muster.backends.local.places import Places
from muster.core.cancelling import UNKNOWN, by_command, on_page


def test_the_first_who_asks_for_a_jobs_end_says_why(tmp_path: Path) -> None:
    folder = Places(tmp_path).job("j")
    folder.ask_to_end(by_command("ada"))
    folder.ask_to_end(on_page("eve"))
    assert folder.why() == by_command("ada")
    assert [path.name for path in folder.root.iterdir()] == ["cancel"]


def test_what_an_older_release_asked_for_has_no_reason(tmp_path: Path) -> None:
    folder = Places(tmp_path).job("j")
    folder.root.mkdir(parents=True)
    folder.cancel.touch()
    assert folder.why() == UNKNOWN


def test_a_full_disk_keeps_no_job_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    folder = Places(tmp_path).job("j")
    monkeypatch.setattr(Path, "write_text", full)
    folder.ask_to_end(by_command("ada"))
    assert folder.cancel.exists()
    assert folder.why() == UNKNOWN


def test_a_job_that_ends_while_its_end_is_asked_for_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Places(tmp_path).job("j")
    wrote = Path.write_text

    def late(self: Path, *given: str, **more: str) -> int:
        count = wrote(self, *given, **more)
        folder.remove()
        return count

    monkeypatch.setattr(Path, "write_text", late)
    folder.ask_to_end(by_command("ada"))
    assert not folder.root.exists()


def test_a_full_disk_keeps_no_job_from_giving_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    folder = Places(tmp_path).job("j")
    folder.root.mkdir(parents=True)
    monkeypatch.setattr(places, "write_whole", full)
    folder.ask_to_give_back("gang waits for 2 GPUs")
    assert folder.gives_back().exists()
    assert folder.for_whom() == ""


def test_a_job_that_ended_is_asked_for_nothing(tmp_path: Path) -> None:
    folder = Places(tmp_path).job("j")
    folder.ask_to_give_back("gang waits for 2 GPUs")
    assert not folder.root.exists()


def test_how_long_a_job_ran_is_not_known_after_a_power_cut(tmp_path: Path) -> None:
    folder = Places(tmp_path).job("j")
    assert folder.ran() is None
    folder.root.mkdir(parents=True)
    folder.note_ran(12.5)
    assert folder.ran() == 12.5
    (folder.root / "ran").write_text("")
    assert folder.ran() == 0.0
