"""Retires versions in the very commit of the version that replaces them.

::

        v/<volume>/<n>/replaced/<job_id>       written before the commit record; its text is why <n> is retired from then on

The mark counts once the job's commit record is there, so the new version is visible and the old one retired in one step; one of a job that never
commits says nothing. It stays, and its time is when the version was replaced. RETIRED is written for what is retired by its address: gc takes
that at once, but leaves what was replaced to runs that were given it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from muster.core.address import pinned
from muster.core.errors import BadOutput, Conflict, NotFound
from muster.core.job import JobSpec
from muster.volumes.catalog import Catalog
from muster.volumes.commit import Placed
from muster.volumes.commit_records import REPLACED
from muster.volumes.durability import sync_folder, write_whole
from muster.volumes.layout import Layout


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
    for placed in plan:
        for number in spec.outputs[placed.output].retires:
            folder = layout.version(placed.volume, number)
            with suppress(FileNotFoundError):  # gc deleted it, and folded what was left
                (folder / REPLACED).mkdir(exist_ok=True)
                write_whole(folder / REPLACED / job_id, f"replaced by {placed.volume}@{placed.number}")
                sync_folder(folder)
