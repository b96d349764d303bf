"""Notes in the store about tasks and runs: how tasks without a job ended, and which runs go on.

::

    STORE/ends/<microseconds>.<dag>.<run>.<task>         a :class:`muster.volumes.base.TaskEnd`
    STORE/runs/<microseconds>.<instance>.<dag>.<run>     an :class:`muster.core.origin.Origin`; a later note replaces it

Each is a small file, of which the newest are kept, and may be deleted. The names are hashed, so that the ends of one run, or of
the newest runs, are found without reading the others. The jobs and ends of a run do not tell whether it is over, or between
two stages, or in one without a job.
"""

from __future__ import annotations

import time
from contextlib import suppress
from hashlib import blake2b

from muster.core import wire
from muster.core.errors import SpecError
from muster.core.origin import Origin
from muster.volumes.base import RunNote, TaskEnd
from muster.volumes.durability import newest_first, prune, read_whole, translated, write_whole
from muster.volumes.layout import Layout

EVERY_SECONDS = 60.0
"""How often a run that goes on is noted."""

_ALIVE_SECONDS = 3 * EVERY_SECONDS  # after the last note
_MOST_NOTES = 1_000  # of runs whose process died; older ones go
MOST_ENDS = 2_000  # older ones go


class TaskNotes:
    """The notes of one store."""

    def __init__(self, layout: Layout) -> None:
        self._ends, self._runs = layout.root / "ends", layout.root / "runs"

    def end_task(self, end: TaskEnd) -> None:
        """See :meth:`muster.volumes.protocols.Ledger.end_task`."""
        origin = end.origin
        names = (_hashed(name) for name in (origin.dag_id, origin.run_id, origin.stage))
        with translated(f"note how {origin.stage} ended"):
            self._ends.mkdir(exist_ok=True)
            path = self._ends / ".".join((f"{int(end.at * 1e6):018d}", *names))
            write_whole(path, wire.dumps(end), durable=False)
            prune(self._ends, most=MOST_ENDS)

    def task_ends(self, *, dag_id: str = "", run_id: str = "", runs: int = 20) -> list[TaskEnd]:
        """See :meth:`muster.volumes.protocols.Ledger.task_ends`."""
        found, seen = list[TaskEnd](), set[tuple[str, str]]()
        wanted = [_hashed(name) if name else "" for name in (dag_id, run_id)]
        for path in newest_first(self._ends):
            _, dag, run, _ = path.name.split(".")
            if wanted[0] not in ("", dag) or wanted[1] not in ("", run):
                continue
            seen.add((dag, run))
            if len(seen) > runs:
                break
            # pruned just now, emptied by a power cut, or of a later release
            with suppress(FileNotFoundError, SpecError):
                end = wire.loads(TaskEnd, read_whole(path))
                # Two names may have one hash.
                if dag_id in ("", end.origin.dag_id) and run_id in ("", end.origin.run_id):
                    found.append(end)
        return found

    def note_run(self, run: Origin, *, going: bool) -> None:
        """See :meth:`muster.volumes.protocols.Ledger.note_run`."""
        key = ".".join(_hashed(name) for name in (run.instance, run.dag_id, run.run_id))
        with translated(f"note the run {run.run_id} of {run.dag_id}"):
            before = [path for path in newest_first(self._runs) if path.name.endswith(f".{key}")]
            if going:
                self._runs.mkdir(exist_ok=True)
                path = self._runs / f"{int(time.time() * 1e6):018d}.{key}"
                write_whole(path, wire.dumps(run), durable=False)
                prune(self._runs, most=_MOST_NOTES)
            for path in before:
                path.unlink(missing_ok=True)

    def run_notes(self) -> list[RunNote]:
        """See :meth:`muster.volumes.protocols.Ledger.run_notes`."""
        found, oldest = [], time.time() - _ALIVE_SECONDS
        for path in newest_first(self._runs):
            with suppress(FileNotFoundError, SpecError):  # it has just ended; it was emptied by a power cut
                run = wire.loads(Origin, read_whole(path))
                found.append(RunNote(run=run, alive=int(path.name[:18]) / 1e6 > oldest))
        return found


def _hashed(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
