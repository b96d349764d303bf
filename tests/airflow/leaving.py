"""What a test leaves running when it fails is ended with it: its jobs would take memory from the tests after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.core.errors import NotFound
from muster.core.settings import Settings


@contextmanager
def no_job_left(settings: Settings) -> Iterator[None]:
    """End the jobs of a home that began in here and have not ended, also where this is left by an error."""
    backend = Backend(MachinePlace(settings))
    before = set(backend.store.ledger.jobs())
    try:
        yield
    finally:
        began = [job_id for job_id in backend.store.ledger.jobs() if job_id not in before]
        for status in backend.store.ledger.statuses(began):
            try:
                backend.cancel(status.job_id)
            except NotFound:  # gc took it meanwhile
                continue
