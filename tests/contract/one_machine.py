"""A machine of a given size for tests that run real processes, and what has to be gone after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.core.settings import Settings


def one_machine(places: Places, cache: Path, *, memory_gib: float) -> Iterator[Backend]:
    """Yield a backend; then end its jobs, and see that nothing of them runs or is claimed."""
    backend = Backend(
        MachinePlace(Settings(home=places.home, cache=cache), machine=Machine(memory_gib=memory_gib))
    )
    yield backend
    for job_id in backend.store.ledger.jobs():
        backend.cancel(job_id)
        assert not processes.marked(places.mark(job_id))
    # A supervisor outlives its job's end by the moment in which it lets the next one in.
    eventually(lambda: not [*places.claims.glob("*.json"), *places.home.glob("jobs/*")])
