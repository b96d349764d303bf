"""``muster volumes fsck`` and ``gc``: whether the store is whole, and what of it may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, open_store
from muster.cli.progress import progress
from muster.cli.screen import Table, emit, note, safe, say, size, when
from muster.core.address import SCHEME

if TYPE_CHECKING:
    from muster.volumes.fsck import Report
    from muster.volumes.retention import Plan


def fsck(
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every file again.")] = False,
    as_json: Json = False,
) -> None:
    """Check every version; nothing is changed.

    Manifests against the files that are there, with --deep also their content. The exit code is 1
    where a committed version is damaged.
    """
    store = open_store()
    with progress() as tell:
        report = store.check(
            deep=deep,
            progress=lambda address, done, count: tell(f"{done + 1}/{count} {address}") if deep else None,
        )
    if as_json:
        emit({"clean": report.clean, "report": report})
    else:
        _show_report(report)
    if not report.clean:
        raise typer.Exit(1)


def _show_report(report: Report) -> None:
    for problem in report.problems:
        colour = "yellow" if problem.harmless else "red"
        say(f"{safe(problem.where)}: {safe(problem.what)}", style=colour)
        say(f"  {safe(problem.advice)}")
    what = "every version is as it was committed" if report.clean else "damaged versions are named above"
    say(f"{report.versions} versions, {report.files} files, {size(report.size_bytes)}: {what}")


def gc(
    volume: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VOLUME]...", help="Only versions of these volumes; all of them if left out."
        ),
    ] = None,
    *,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest versions kept of each partition.")] = 3,
    young_days: Annotated[
        float, typer.Option("--young-days", min=0, help="Versions that were made within so many days stay.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Do it, or only show the plan.")] = False,
    as_json: Json = False,
) -> None:
    """Show what nothing needs any more; with --yes, delete it.

    The newest versions, young, pinned and leased ones, and whatever those were made from stay. Where volumes
    are named, nothing of any other is deleted, and what those were made from stays. Of a deleted
    version the record stays, and its number is never given out again.
    """
    store = open_store()
    names = [name.removeprefix(SCHEME) for name in volume or ()]
    if yes:
        done = store.collect(volumes=names, keep_last=keep, young_days=young_days)
        plan, freed = done.plan, done.freed_bytes
    else:
        plan, freed = store.plan(volumes=names, keep_last=keep, young_days=young_days), 0
    if as_json:
        emit({"done": yes, "freed_bytes": freed, "plan": _document(plan)})
    elif yes:
        _show_deleted(plan)
    else:
        _show_plan(plan)


def _document(plan: Plan) -> dict[str, object]:
    return {
        "versions": [version.address for version in plan.versions],
        "size_bytes": plan.size_bytes,
        "kept": plan.kept,
        "staging": plan.staging,
        "torn": [str(path) for path in plan.torn],
        "code": plan.code,
        "jobs": plan.jobs,
    }


def _show_plan(plan: Plan) -> None:
    table = Table(["version", "fate", "why", ">size", "made"])
    for version in plan.versions:
        why = "retired" if version.retired is not None else "older than those kept"
        table.add(version.address, "goes", why, size(version.size_bytes), when(version.created))
    for address, reason in sorted(plan.kept.items()):
        table.add(address, "stays", reason, None, None)
    table.show(empty="no versions yet")
    say(f"\nwould delete {_sum(plan)}")
    note("nothing was deleted: --yes does it")


def _show_deleted(plan: Plan) -> None:
    table = Table(["volume", ">versions deleted", ">size"])
    for name in dict.fromkeys(version.volume for version in plan.versions):
        gone = [version for version in plan.versions if version.volume == name]
        table.add(name, len(gone), size(sum(version.size_bytes for version in gone)))
    if table.rows:
        table.show(empty="")
    say(f"deleted {_sum(plan)}")
    if plan.versions:
        note(
            "their disk space is not free yet: the files are kept for another hour, for whoever still reads "
            "them, and the first `muster volumes gc --yes` after that frees it"
        )


def _sum(plan: Plan) -> str:
    """Count what goes, in words; besides the versions only what there is any of."""
    rest = {
        "unfinished output": len(plan.staging) + len(plan.torn),
        "unused code snapshot": len(plan.code),
        "old job log": len(plan.jobs),
    }
    versions = f"{_count(len(plan.versions), 'version')} ({size(plan.size_bytes)})"
    return ", ".join([versions, *(_count(number, noun) for noun, number in rest.items() if number)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
