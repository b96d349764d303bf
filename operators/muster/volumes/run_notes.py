"""The runs that go on, as whoever runs them notes: one small file each, which a later note replaces.

::

    STORE/runs/<microseconds>.<instance>.<dag>.<run>     an :class:`muster.core.origin.Origin`; may be deleted

The jobs and ends of a run do not tell whether it is over, or between two stages, or in one without a job.
"""

from __future__ import annotations

import time
from contextlib import suppress

from muster.core import wire
from muster.core.errors import SpecError
from muster.core.origin import Origin
from muster.volumes.base import RunNote
from muster.volumes.durability import newest_first, prune, read_whole, translated, write_whole
from muster.volumes.layout import Layout
from muster.volumes.task_ends import hashed

EVERY_SECONDS = 60.0
_ALIVE_SECONDS = 3 * EVERY_SECONDS  # after the last note
_MOST_NOTES = 1_000  # of runs whose process died; older ones go


def write_note(layout: Layout, run: Origin, *, going: bool) -> None:
    """See :meth:`muster.volumes.protocols.Ledger.note_run`."""
    folder = layout.root / "runs"
    key = ".".join(hashed(name) for name in (run.instance, run.dag_id, run.run_id))
    with translated(f"note the run {run.run_id} of {run.dag_id}"):
        before = [path for path in newest_first(folder) if path.name.endswith(f".{key}")]
        if going:
            folder.mkdir(exist_ok=True)
            write_whole(folder / f"{int(time.time() * 1e6):018d}.{key}", wire.dumps(run), durable=False)
            prune(folder, most=_MOST_NOTES)
        for path in before:
            path.unlink(missing_ok=True)


def read_notes(layout: Layout) -> list[RunNote]:
    """See :meth:`muster.volumes.protocols.Ledger.run_notes`."""
    found, oldest = [], time.time() - _ALIVE_SECONDS
    for path in newest_first(layout.root / "runs"):
        with suppress(FileNotFoundError, SpecError):  # it has just ended; it was emptied by a power cut
            run = wire.loads(Origin, read_whole(path))
            found.append(RunNote(run=run, alive=int(path.name[:18]) / 1e6 > oldest))
    return found
