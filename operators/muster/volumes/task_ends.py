"""The ends of tasks that no job records: one small file each; the newest are kept.

::

    STORE/ends/<microseconds>.<dag>.<run>.<task>     a :class:`muster.volumes.base.TaskEnd`; may be deleted

The names are hashed, so that the ends of one run, or of the newest runs, are found without reading the others.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

from muster.core import wire
from muster.core.errors import SpecError
from muster.volumes.base import TaskEnd
from muster.volumes.durability import newest_first, prune, read_whole, translated, write_whole
from muster.volumes.layout import Layout

MOST_ENDS = 2_000  # older ones go


def write_end(layout: Layout, end: TaskEnd) -> None:
    """Keep one; those beyond the newest are deleted."""
    folder, origin = layout.root / "ends", end.origin
    names = (hashed(name) for name in (origin.dag_id, origin.run_id, origin.stage))
    with translated(f"note how {origin.stage} ended"):
        folder.mkdir(exist_ok=True)
        path = folder / ".".join((f"{int(end.at * 1e6):018d}", *names))
        write_whole(path, wire.dumps(end), durable=False)
        prune(folder, most=MOST_ENDS)


def read_ends(layout: Layout, *, dag_id: str, run_id: str, runs: int) -> list[TaskEnd]:
    """See :meth:`muster.volumes.protocols.Ledger.task_ends`."""
    found, seen = list[TaskEnd](), set[tuple[str, str]]()
    wanted = [hashed(name) if name else "" for name in (dag_id, run_id)]
    for path in newest_first(layout.root / "ends"):
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


def hashed(name: str) -> str:
    """Return a name as part of a file's name."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
