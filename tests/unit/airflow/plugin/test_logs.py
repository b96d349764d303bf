"""A log that is searched whole, by text and rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.airflow.plugin import logs
from muster.core.job import JobSpec, Role
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger: Ledger = FolderStore(tmp_path / "store").ledger
    spec = JobSpec(name="a.b", image="etl", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a:b"),))
    ledger.create("j-1", spec)
    lines = (f"[rank {n % 12}] epoch {n} done".encode() for n in range(30_000))
    ledger.append("j-1", b"\n".join(lines) + b"\n\x1b[31mneedle\x1b[0m of nobody\n")
    return ledger


def test_a_text_is_found_wherever_it_is_and_in_any_case(ledger: Ledger) -> None:
    assert logs.found(ledger, "j-1", text="EPOCH 7 ", rank=None)["lines"] == ["[rank 7] epoch 7 done"]
    assert logs.found(ledger, "j-1", text="needle", rank=None)["lines"] == ["needle of nobody"]


def test_the_lines_of_a_rank_are_its_own(ledger: Ledger) -> None:
    found = logs.found(ledger, "j-1", text="", rank=1)
    assert found["total"] == 2500
    assert len(found["lines"]) == logs.MOST_FOUND
    assert all(line.startswith("[rank 1] ") for line in found["lines"])
    assert found["lines"][-1] == "[rank 1] epoch 29989 done"


def test_all_of_it_is_sent_as_it_was_written(ledger: Ledger) -> None:
    whole = b"".join(logs.pieces(ledger, "j-1"))
    assert len(whole) == ledger.log_bytes("j-1")
    assert whole.endswith(b"\x1b[31mneedle\x1b[0m of nobody\n")
