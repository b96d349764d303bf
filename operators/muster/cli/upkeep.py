"""``muster volumes fsck`` and ``gc``: whether the store is whole, and what of it may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, open_store
from muster.cli.progress import progress
from muster.cli.screen import Table, emit, note, safe, say, size, when

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
    from muster.volumes.fsck import check

    store = open_store()
    with progress() as tell:
        report = check(
            store,
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
    *,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest versions kept of each partition.")] = 3,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Do it, or only show the plan.")] = False,
    as_json: Json = False,
) -> None:
    """Show what nothing needs any more; with --yes, delete it.

    The newest versions, pinned and leased ones, and whatever those were made from stay. Of a deleted
    version the record stays, and its number is never given out again.
    """
    from muster.volumes import retention

    store = open_store()
    if yes:
        done = retention.collect(store, keep_last=keep)
        plan, freed = done.plan, done.freed_bytes
    else:
        plan, freed = retention.plan(store, keep_last=keep), 0
    if as_json:
        emit({"done": yes, "freed_bytes": freed, "plan": _document(plan)})
        return
    _show_plan(plan)
    _show_sum(plan, done=yes)


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


def _show_sum(plan: Plan, *, done: bool) -> None:
    parts = [
        f"{len(plan.versions)} versions ({size(plan.size_bytes)})",
        f"{len(plan.staging) + len(plan.torn)} leftovers of jobs",
        f"{len(plan.code)} code snapshots",
        f"{len(plan.jobs)} jobs' logs",
    ]
    say(f"\n{', '.join(parts)} {'are gone' if done else 'would go'}")
    if done:
        note("their blocks are freed by a later gc, an hour from now: a reader may still hold them")
    else:
        note("nothing was deleted: --yes does it")
