"""RetentionOperator: the store's garbage collection as a task, so that it happens and can be looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.checks import check_count, check_days, check_flag, if_known, optional
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import keep_types
from muster.airflow.operators.base import MusterOperator
from muster.core.errors import SpecError
from muster.core.names import check_volume

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.volumes.base import CollectionPlan

SHOWN = 200
"""Versions that the log names; the rest is counted."""


def _check_volumes(names: object) -> None:
    """Refuse what is no list of names of volumes."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise SpecError(f"{names!r:.120}: expected a list of volumes, such as ['flights/predictions']")
    for name in names:
        check_volume(name)


class RetentionOperator(MusterOperator):
    """Delete old versions, leftovers of jobs, unused code and old logs.

    Versions that a deployment serves, that are pinned or leased, that a job waits for, or that a kept version was
    made from are never deleted. The record of a deleted version stays, so that versions made from it can still
    be traced. A run that comes an hour later, or more, frees its blocks.
    """

    ui_color = "#f1f3f4"

    keep: int | str = keyword(default=3, read=keep_types, check=check_count, templated=True)
    """The newest versions that stay of each partition of each volume, and of a volume without partitions."""
    volumes: Sequence[str] | str = keyword(
        default=(), read=keep_types, check=if_known(_check_volumes), templated=True
    )
    """Only versions of these volumes go, and nothing that belongs to no volume; those of all volumes if not given."""
    keep_partitions: int | str | None = keyword(
        default=None, read=keep_types, check=optional(check_count), templated=True
    )
    """The partitions of each volume that stay, such as 720 hours of a deployment's predictions: those that were written last. All if not given."""
    partition_days: float | str | None = keyword(
        default=None, read=keep_types, check=optional(check_days), templated=True
    )
    """How long a partition stays after its newest version was written; the youngest of each volume always stays. For ever if not given."""
    young_days: float | str = keyword(default=1.0, read=keep_types, check=check_days, templated=True)
    """Versions younger than this stay in any case: a run that goes on may name them. So do older ones that a commit, such as a compaction's,
    replaced no longer ago."""
    job_days: float | str = keyword(default=30.0, read=keep_types, check=check_days, templated=True)
    """How long the ledger keeps a job that has ended, and its log."""
    checkpoint_days: float | str | None = keyword(
        default=None, read=keep_types, check=optional(check_days), templated=True
    )
    """How long the checkpoints of a task are kept that failed or was ended; ``[muster] checkpoint_days`` if not given."""
    rehearsal: bool | str = keyword(  # dry_run is a method of every operator
        default=False, alias="dry_run", read=keep_types, check=if_known(check_flag), templated=True
    )
    """Only list what would be deleted."""

    def changes(self) -> Sequence[str]:
        """Those of its keyword, or all."""
        return [*self.volumes] or ["*"]

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - it is about the whole store
        """Collect, list what went, and return the sums."""
        from muster.airflow.site import connect

        self.check_keywords()  # they are rendered by now
        store, rules = connect().store, self._rules()
        if self.rehearsal:
            plan, freed = store.plan(**rules), 0
        else:
            done = store.collect(**rules)
            plan, freed = done.plan, done.freed_bytes
        for line in table(plan):
            self.log.info("%s", line)
        result = summary(plan, freed_bytes=freed, dry_run=bool(self.rehearsal))
        self.log.info("%s", sentence(result))
        return result

    def _rules(self) -> dict[str, Any]:
        from muster.airflow.site import checkpoint_days

        days = checkpoint_days() if self.checkpoint_days is None else self.checkpoint_days
        return {
            "volumes": tuple(self.volumes),
            "keep_last": self.keep,
            "keep_partitions": self.keep_partitions,
            "partition_days": self.partition_days,
            "young_days": self.young_days,
            "job_days": self.job_days,
            "checkpoint_days": days,
        }


def table(plan: CollectionPlan) -> Iterator[str]:
    """The versions that go, a line each, and why the others stay, counted."""
    rows = [("version", "partition", "size", "why")]
    for version in plan.versions[:SHOWN]:
        why = "retired" if version.retired is not None else "older than those kept"
        rows.append((version.address, version.partition or "", f"{version.size_bytes:,} B", why))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    if plan.versions:
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            yield "  ".join((*cells, row[3]))
    if len(plan.versions) > SHOWN:
        yield f"… and {len(plan.versions) - SHOWN} more"
    for reason, count in _reasons(plan.kept.values()).most_common():
        yield f"{count} stay: {reason}"


def summary(plan: CollectionPlan, *, freed_bytes: int, dry_run: bool) -> dict[str, Any]:
    """What a collection came to, in numbers, for XCom: the versions by volume, and the rest."""
    return {
        "dry_run": dry_run,
        "deleted": dict(sorted(Counter(version.volume for version in plan.versions).items())),
        "size_bytes": plan.size_bytes,
        "freed_bytes": freed_bytes,
        "kept": len(plan.kept),
        "leftovers": len(plan.staging) + len(plan.torn),
        "code": len(plan.code),
        "jobs": len(plan.jobs),
    }


def sentence(result: dict[str, Any]) -> str:
    """The same for people."""
    went = "would go" if result["dry_run"] else "went"
    return (
        f"{sum(result['deleted'].values())} versions ({result['size_bytes']:,} B) {went}, {result['kept']} stay; "
        f"{result['leftovers']} leftovers, {result['code']} code snapshots and {result['jobs']} old jobs {went}; "
        f"{result['freed_bytes']:,} B were freed"
    )


def _reasons(reasons: Iterable[str]) -> Counter[str]:
    """Count reasons by their kind: the same words whichever version or job they name."""
    kinds = (" was made from it", " waits for it")
    short = (next((f"one that stays{kind}" for kind in kinds if r.endswith(kind)), r) for r in reasons)
    return Counter(reason.partition(":")[0].partition(" by ")[0] for reason in short)
