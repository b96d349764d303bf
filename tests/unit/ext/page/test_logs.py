"""A log that is searched whole, by text and rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.job import JobSpec, Role
from muster.ext.page import logs
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import Ledger
from muster.volumes.series import TIMES, note_time


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger: Ledger = FolderStore(tmp_path / "store").ledger
    spec = JobSpec(name="a.b", image="etl", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a:b"),))
    ledger.create("j-1", spec)
    lines = (f"[rank {n % 12}] epoch {n} done".encode() for n in range(30_000))
    ledger.append("j-1", b"\n".join(lines) + b"\n\x1b[31mneedle\x1b[0m of no rank\n")
    return ledger


def test_a_text_is_found_wherever_it_is_and_in_any_case(ledger: Ledger) -> None:
    assert logs.found(ledger, "j-1", text="EPOCH 7 ", rank=None)["lines"] == ["[rank 7] epoch 7 done"]
    assert logs.found(ledger, "j-1", text="needle", rank=None)["lines"] == ["needle of no rank"]


def test_the_lines_of_a_rank_are_its_own(ledger: Ledger) -> None:
    found = logs.found(ledger, "j-1", text="", rank=1)
    assert found["total"] == 2500
    assert len(found["lines"]) == logs.MOST_FOUND
    assert all(line.startswith("[rank 1] ") for line in found["lines"])
    assert found["lines"][-1] == "[rank 1] epoch 29989 done"


def test_all_of_it_is_sent_as_it_was_written(ledger: Ledger) -> None:
    whole = b"".join(logs.chosen(ledger, "j-1", text="", rank=None, timed=False))
    assert len(whole) == ledger.log_bytes("j-1")
    assert whole.endswith(b"\x1b[31mneedle\x1b[0m of no rank\n")


def test_lines_have_the_time_at_which_they_were_stored(tmp_path: Path, ledger: Ledger) -> None:
    offset = ledger.log_bytes("j-1")
    ledger.append("j-1", b"[rank 0] later\n[rank 1] later\n")
    note_time(tmp_path / "store" / "jobs" / "j-1", before=offset, now=2_000_000_000.0)
    end = logs.part(ledger, "j-1", after=None)
    lines = end["text"].splitlines()
    (_, first), (number, second) = end["times"]
    assert lines[number] == "[rank 0] later"
    assert first < second == 2_000_000_000.0
    found = logs.found(ledger, "j-1", text="later", rank=1)
    assert (found["lines"], found["times"]) == (["[rank 1] later"], [2_000_000_000.0])
    assert logs.found(ledger, "j-1", text="epoch 3 ", rank=None)["times"] == [first]
    assert logs.part(ledger, "j-1", after=ledger.log_bytes("j-1"))["times"] == []


def test_what_is_sent_may_be_of_one_rank_and_with_times(ledger: Ledger) -> None:
    lines = b"".join(logs.chosen(ledger, "j-1", text="epoch 1", rank=1, timed=True)).decode().splitlines()
    assert lines[0].endswith("+00:00 [rank 1] epoch 1 done")
    assert len(lines) == sum("epoch 1" in f"epoch {n}" for n in range(1, 30_000, 12))
    plain = b"".join(logs.chosen(ledger, "j-1", text="needle", rank=None, timed=False))
    assert plain == b"needle of no rank\n"


def test_lines_of_an_earlier_release_have_no_time(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "store" / "jobs" / "j-1" / TIMES).unlink()
    assert logs.part(ledger, "j-1", after=None)["times"] == []
    assert logs.found(ledger, "j-1", text="needle", rank=None)["times"] == [None]
    (line,) = b"".join(logs.chosen(ledger, "j-1", text="needle", rank=None, timed=True)).decode().splitlines()
    assert line == "- needle of no rank"
