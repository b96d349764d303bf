"""Refuses a commit whose output comes after a version that is not the last one any more.

Two commits at once cannot both pass, also where no lock has an effect: each has reserved its number, and looks only then. The one with the
lower number goes on; the other one finds that number, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.address import pinned
from muster.core.data import EVERY_PARTITION, Output
from muster.core.errors import Conflict, NotFound
from muster.core.job import JobSpec
from muster.volumes import partitions
from muster.volumes.attempts import FolderAttempts
from muster.volumes.catalog import Catalog
from muster.volumes.commit import Placed
from muster.volumes.commit_records import holder
from muster.volumes.layout import Layout
from muster.volumes.ledger import FolderLedger


class Following:
    """The check of one store."""

    def __init__(
        self, layout: Layout, catalog: Catalog, ledger: FolderLedger, attempts: FolderAttempts
    ) -> None:
        self._layout, self._catalog, self._ledger, self._attempts = layout, catalog, ledger, attempts

    def check(self, spec: JobSpec, plan: Sequence[Placed]) -> None:
        """Look at every output that says what it comes after, once the numbers of all are reserved.

        :raises Conflict: another version is there, or another job that is not over has reserved a lower number.
        """
        numbers = {placed.output: placed.number for placed in plan}
        for name, output in spec.outputs.items():
            if output.after is not None:
                self._check(output, numbers.get(name))

    def _check(self, output: Output, own: int | None) -> None:
        assert output.after is not None
        volume = output.volume
        # Those below its own by name: a listing may be late.
        below = range(output.after + 1, own or 0)
        above = [number for number in self._layout.numbers(volume) if number > output.after]
        for number in sorted({*below, *above} - {own} - self._elsewhere(output, above)):
            if self._catalog.is_in(volume, number, output.partition):
                raise Conflict(f"{self._expected(output)}, and {pinned(volume, number)} is there: {_AGAIN}")
            if own is not None and number < own and (other := self._rival(output, number)):
                raise Conflict(
                    f"{self._expected(output)}, and job {other} commits {pinned(volume, number)} now: {_AGAIN}"
                )

    def _elsewhere(self, output: Output, above: Sequence[int]) -> set[int]:
        """The numbers of other partitions, where there are too many to read each: the first version of a partition has after=0, so every number is above it."""
        if len(above) < partitions.MOST_UNREAD:
            return set()
        known = self._catalog.partitions(output.volume)
        return {number for number, partition in known.items() if partition != output.partition}

    def _expected(self, output: Output) -> str:
        after = f"after {pinned(output.volume, output.after)}" if output.after else "the first of its volume"
        where = "" if output.partition is None else f", partition {output.partition}"
        return f"the new version of {output.volume}{where} was to come {after}"

    def _rival(self, output: Output, number: int) -> str:
        """Return the job that may yet commit a number of the same partition; empty if none does."""
        job_id = holder(self._layout.version(output.volume, number))
        if job_id is None:
            return ""
        try:
            over = self._ledger.status(job_id).state.ended
            targets = self._ledger.spec(job_id).outputs.values()
        except NotFound:  # files that a person puts, or a copy
            return "" if self._attempts.idle(job_id) else job_id
        same = any(
            each.volume == output.volume and each.partition in (output.partition, EVERY_PARTITION)
            for each in targets
        )
        return job_id if same and not over else ""


_AGAIN = "nothing is committed; run it again, and it begins with that one"
