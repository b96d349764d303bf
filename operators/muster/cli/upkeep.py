"""``muster volumes fsck`` and ``gc``: check the store, and delete unneeded versions."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import Json, open_store, room_of
from muster.cli.progress import progress
from muster.cli.screen import Table, emit, note, safe, say, size, when
from muster.core.address import SCHEME
from muster.core.extensions import only
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.base import Collected, CollectionPlan
    from muster.volumes.fsck import Report


_MOST_SHOWN = 5
"""Problems of one version that are shown."""


def fsck(
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Also hash every file.")] = False,
    protect: Annotated[
        bool,
        typer.Option(
            "--protect", help="Write the digests of unprotected records, from their present content."
        ),
    ] = False,
    repair_from: Annotated[
        str | None,
        typer.Option("--repair-from", metavar="MIRROR", help="Replace what is damaged by the mirror's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every version; none is changed without --repair-from.

    Compares commit records with versions, and manifests with files (with --deep also their content). The exit code is 1
    if a committed version is damaged. Harmless findings, and records that an earlier muster left unprotected, are only
    listed.
    """
    repair = None
    if repair_from is not None:  # before the store is opened, which may lack what says which one it is
        repair = only(lambda each: each.repair, needed_by="--repair-from")(repair_from)
    store = open_store()
    if repair is not None:
        repair.check(store)

    def check() -> Report:
        with progress() as tell:
            return store.check(
                deep=deep,
                protect=protect,
                progress=lambda address, done, count: tell(f"{done + 1}/{count} {address}") if deep else None,
            )

    report, left = check(), False
    if repair is not None and not all(each.harmless and not each.retired for each in report.problems):
        left = repair(store, report)
        report = check()
    room = room_of(store)
    if as_json:
        emit({"clean": report.clean, "report": report, "room": plain(room)})
    else:
        _show_report(report, deep=deep)
        if room is not None:
            say(safe(room), style=None if room.comfortable else "yellow")
    if left or not report.clean:
        raise typer.Exit(1)


def _show_report(report: Report, *, deep: bool) -> None:
    told = set[str]()
    for where, problems in groupby(report.problems, key=lambda problem: problem.where):
        found = sorted(problems, key=lambda problem: problem.harmless)  # damage first
        for problem in found[:_MOST_SHOWN]:
            say(f"{safe(where)}: {safe(problem.what)}", style="yellow" if problem.harmless else "red")
        if len(found) > _MOST_SHOWN:
            say(f"{safe(where)}: and {len(found) - _MOST_SHOWN} more; --json names all")
        for advice in dict.fromkeys(problem.advice for problem in found[:_MOST_SHOWN]):
            if advice not in told:
                say(f"  {safe(advice)}")
                told.add(advice)
    if not report.clean:
        what = "the damage is named above"
    elif deep:
        what = "every version is as it was committed"
    else:
        what = "all names and sizes are as they were committed; contents were not read, --deep reads them"
    say(f"{report.versions} versions, {report.files} files, {size(report.size_bytes)}: {what}")


def gc(
    volume: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VOLUME]...", help="Only versions of these volumes; by default of all."),
    ] = None,
    *,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="Newest versions to keep of each partition.")
    ] = 3,
    keep_partitions: Annotated[
        int | None,
        typer.Option(
            "--keep-partitions",
            min=1,
            help="Partitions to keep of each volume, the last written; by default all.",
        ),
    ] = None,
    partition_days: Annotated[
        float | None,
        typer.Option(
            "--partition-days",
            min=0,
            help="Keep partitions that were written less than this many days ago, and the youngest; by default all.",
        ),
    ] = None,
    young_days: Annotated[
        float,
        typer.Option(
            "--young-days",
            min=0,
            help="Keep versions that a commit made or replaced less than this many days ago.",
        ),
    ] = 0.0,
    checkpoint_days: Annotated[
        float,
        typer.Option(
            "--checkpoint-days", min=0, help="Keep checkpoints of failed stages for this many days."
        ),
    ] = 7.0,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Delete, or only show the plan.")] = False,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="With --yes: free the disk space at once; a job that reads what is deleted fails."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is not needed any more; with --yes, delete it.

    These versions stay: the newest, the young, the pinned, the leased, and all versions from which these were made. If
    volumes are named, only their versions are deleted. A deleted version's record stays, and its number is never used
    again.
    """
    if now and not yes:
        raise typer.BadParameter("--now is for --yes: give both, or neither")
    store = open_store()
    names = [name.removeprefix(SCHEME) for name in volume or ()]
    rules: dict[str, Any] = {
        "keep_last": keep,
        "keep_partitions": keep_partitions,
        "partition_days": partition_days,
        "young_days": young_days,
        "checkpoint_days": checkpoint_days,
    }
    done = store.collect(volumes=names, now=now, **rules) if yes else None
    plan = done.plan if done else store.plan(volumes=names, **rules)
    if as_json:
        emit({"done": yes, "freed_bytes": done.freed_bytes if done else 0, "plan": _document(plan)})
    elif done:
        _show_deleted(done, now=now)
    else:
        _show_plan(plan)


def _document(plan: CollectionPlan) -> dict[str, object]:
    return {
        "versions": [version.address for version in plan.versions],
        "size_bytes": plan.size_bytes,
        "kept": plan.kept,
        "staging": plan.staging,
        "torn": [str(path) for path in plan.torn],
        "code": plan.code,
        "jobs": plan.jobs,
        "resumable": plan.resumable,
    }


def _show_plan(plan: CollectionPlan) -> None:
    table = Table(["version", "fate", "why", ">size", "made"])
    for version in plan.versions:
        why = "retired" if version.retired is not None else "older than those kept"
        table.add(version.address, "goes", why, size(version.size_bytes), when(version.created))
    for address, reason in sorted(plan.kept.items()):
        table.add(address, "stays", reason, None, None)
    table.show(empty="no versions yet")
    say(f"\nwould delete {_sum(plan)}")
    note("nothing was deleted: --yes does it")


def _show_deleted(done: Collected, *, now: bool) -> None:
    plan = done.plan
    table = Table(["volume", ">versions deleted", ">size"])
    for name in dict.fromkeys(version.volume for version in plan.versions):
        gone = [version for version in plan.versions if version.volume == name]
        table.add(name, len(gone), size(sum(version.size_bytes for version in gone)))
    if table.rows:
        table.show(empty="")
    say(f"deleted {_sum(plan)}")
    if now:
        note(f"{size(done.freed_bytes)} of disk space are free")
    elif plan.versions and done.at_once:
        note(
            "their disk space is free: the disk is nearly full, so nothing was kept for jobs that still read them"
        )
    elif plan.versions:
        note(
            "their disk space is not free yet: the files are kept for another hour, for jobs that still read "
            "them, and the first `muster volumes gc --yes` after that frees it; --now does so at once"
        )


def _sum(plan: CollectionPlan) -> str:
    """Return the counts of a plan in words; other kinds than versions only if there are any."""
    rest = {
        "unfinished output": len(plan.staging) + len(plan.torn),
        "unused code snapshot": len(plan.code),
        "old job log": len(plan.jobs),
    }
    versions = f"{_count(len(plan.versions), 'version')} ({size(plan.size_bytes)})"
    return ", ".join([versions, *(_count(number, noun) for noun, number in rest.items() if number)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
