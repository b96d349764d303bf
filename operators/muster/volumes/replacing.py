"""Retires versions in the very commit of the version that replaces them.

::

        v/<volume>/<n>/replaced/<job_id>       written before the commit record; its text is why <n> is retired from then on

The mark counts once the job's commit record is there, so the new version is visible and the old one retired in one step. Afterwards RETIRED takes
its place. A crash between the two leaves the mark, which says the same; one of a job that never commits says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.core.address import pinned
from muster.core.errors import BadOutput, Conflict, NotFound
from muster.core.job import JobSpec
from muster.volumes.catalog import Catalog
from muster.volumes.commit import Placed
from muster.volumes.commit_records import REPLACED, replaced_by
from muster.volumes.durability import sync_folder, write_whole
from muster.volumes.layout import Layout
from muster.volumes.tree import remove


def check(catalog: Catalog, spec: JobSpec, plan: Sequence[Placed]) -> None:
    """Refuse a commit that retires what it must not.

    :raises BadOutput: a version is in another partition, or was never there. :raises Conflict: one is pinned.
    """
    for placed in plan:
        for number in spec.outputs[placed.output].retires:
            address = pinned(placed.volume, number)
            try:
                version = catalog.described(placed.volume, number)
            except NotFound as error:
                raise BadOutput(f"output {placed.output!r} retires {address}, which is not there") from error
            if version.partition != placed.partition:
                raise BadOutput(
                    f"output {placed.output!r} retires {address}, which is in partition {version.partition}"
                )
            if version.pins:
                raise Conflict(refused_by_pin(address, version.pins))  # a retry chooses anew


def refused_by_pin(address: str, pins: Sequence[str]) -> str:
    """Say why a pinned version is not retired."""
    return (
        f"{address} is pinned ({', '.join(pins):.200}), so nothing retires it: `muster volumes unpin {address} --reason {pins[0]!r:.100}`, "
        "then run the task again"
    )


def mark(layout: Layout, job_id: str, spec: JobSpec, plan: Sequence[Placed]) -> None:
    """Have the commit of a job, which comes next, retire what its versions replace; it can be called again."""
    for folder, placed in _replaced(layout, spec, plan):
        (folder / REPLACED).mkdir(exist_ok=True)
        write_whole(folder / REPLACED / job_id, f"replaced by {placed.volume}@{placed.number}")
        sync_folder(folder)


def settle(layout: Layout, spec: JobSpec, plan: Sequence[Placed]) -> None:
    """Turn the marks of a commit that is done into RETIRED."""
    for folder, _ in _replaced(layout, spec, plan):
        why = replaced_by(layout, folder)
        if why is not None:
            if not (folder / "RETIRED").is_file():  # else it was retired before, for a reason of its own
                write_whole(folder / "RETIRED", why)
            remove(folder / REPLACED)


def _replaced(layout: Layout, spec: JobSpec, plan: Sequence[Placed]) -> Iterator[tuple[Path, Placed]]:
    for placed in plan:
        for number in spec.outputs[placed.output].retires:
            yield layout.version(placed.volume, number), placed
