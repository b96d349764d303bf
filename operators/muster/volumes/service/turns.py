"""Who begins an attempt of which job now; who else asks for it waits, and not for long in a thread.

The first pod of a start that asks has the checkpoints copied, which may take long. A thousand others
ask for the same meanwhile, each in a thread of the service, and would leave none for other jobs' starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muster.volumes.service.refusals import Busy

PATIENCE_SECONDS = 1.0
"""How long after its begin others wait for an attempt in their threads; most are begun in a few hundredths."""


class Turns:
    """Whose turn it is, by job."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[str, float] = {}

    @contextmanager
    def alone(self, job_id: str, *, patient: bool) -> Iterator[None]:
        """Begin an attempt of the job, one of us at a time.

        :param patient: wait for as long as it takes.
        :raises Busy: somebody begins one, and that takes long.
        """
        with self._changed:
            while job_id in self._since:
                left = None if patient else self._since[job_id] + PATIENCE_SECONDS - time.monotonic()
                if left is not None and left <= 0:
                    raise Busy(f"job {job_id}: its checkpoints are being copied for this start: ask again")
                self._changed.wait(left)
            self._since[job_id] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[job_id]
                self._changed.notify_all()
