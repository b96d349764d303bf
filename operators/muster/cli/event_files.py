"""Follows the event files that a running job writes: copies that grow, for TensorBoard or Spark's history server to read."""

from __future__ import annotations

import threading
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Self

from muster.cli.screen import note, safe
from muster.core.errors import MusterError
from muster.volumes.tree import lengthen

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore

EVENTS = "events.out.tfevents."
EVERY_SECONDS = 5.0  # as often as TensorBoard itself looks for more


class EventFollower:
    """A thread that looks every few seconds until the job has ended, as long as the context lasts.

    :param folder: where the copies go, ``REPLICA/OUTPUT/…`` below it.
    :param begins: what the names of event files begin with.
    """

    def __init__(
        self, store: LocalStore, job_id: str, folder: Path, *, begins: tuple[str, ...] = (EVENTS,)
    ) -> None:
        self._store, self._job_id, self._folder, self._begins = store, job_id, folder, begins
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-files", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._over.is_set():
            try:
                if self.look():
                    note(f"{self._job_id} has ended: this is all of it")
                    return
                said = ""
            except MusterError as error:  # the next look may succeed
                if str(error) != said:
                    note(f"warning: {safe(error)}")
                said = str(error)
            self._over.wait(EVERY_SECONDS)

    def look(self) -> bool:
        """Copy what has come since the last look; return whether the job has ended."""
        status = self._store.ledger.status(self._job_id)
        if not status.state.ended:
            self._follow()
            return False
        if status.result is None:  # its event log may have been kept, and ends with what told of the failure
            self._follow()
            return True
        for output, addresses in status.result.outputs.items():
            for address in addresses:
                self._complete(output, address)
        self._drop_stale()
        return True

    def _follow(self) -> None:
        for begins in self._begins:
            self._store.follow(self._job_id, self._folder, begins=begins)
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Delete copies of files that were renamed: with ``.inprogress``, an application of Spark's would never end."""
        for stale in self._folder.rglob("*.inprogress"):
            if stale.with_suffix("").exists():
                stale.unlink()

    def _complete(self, output: str, address: str) -> None:
        """Add what was written between the last look and the commit: it is in the version."""
        for path in self._store.manifest(address):
            name = path.rpartition("/")[2]
            if name.startswith(
                self._begins
            ):  # a name holds its time, machine and process: there is one of each
                beside = next(self._folder.glob(f"*/{output}"), self._folder / output)
                copy = next(self._folder.glob(f"*/{output}/**/{escape(name)}"), beside / path)
                with self._store.path(f"{address}/{path}").open("rb") as file:
                    lengthen(copy, file)
