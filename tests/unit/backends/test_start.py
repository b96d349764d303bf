"""What the queue lets in, where the ledger knows nothing of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from muster.backends.local.machine import Machine
from muster.backends.local.queue import Ticket
from muster.backends.local.start import Starter
from muster.core.job import JobSpec, Role
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

SPEC = JobSpec(name="a.b", image="python", image_digest=f"b3:{0:064}", roles=(Role(command=("python",)),))


@pytest.mark.parametrize("memory_gib", [1.0, 9.0], ids=["has room", "is overdue"])
@pytest.mark.parametrize("torn", [True, False])
def test_a_job_of_which_only_the_ticket_is_left_stops_nobody(
    tmp_path: Path, memory_gib: float, torn: bool
) -> None:
    settings = Settings(home=tmp_path, cache=tmp_path / "cache")
    ledger = FolderStore(settings.store).ledger
    if torn:
        ledger.create("ghost", SPEC)
        for name in ("spec.json", "status.json"):
            (settings.store / "jobs" / "ghost" / name).write_text("{")
    starter = Starter(settings=settings, machine=Machine(memory_gib=4), ledger=ledger)
    now = time.time()
    starter.queue.enter(
        Ticket(job_id="ghost", submitted=now - 2, deadline=now - 1, memory_gib=memory_gib, gpus=0)
    )
    starter.admit(wait=True)
    assert not starter.queue.waits("ghost")
    assert not starter.queue.holds("ghost")
