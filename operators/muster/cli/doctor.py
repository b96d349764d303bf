"""``muster doctor``: checks whether this machine or cluster can run muster's jobs, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import typer

from muster.cli.command import Json
from muster.cli.screen import Table, emit, safe, say
from muster.core.check import Check, bad
from muster.core.extensions import problems, used
from muster.core.settings import Settings


def doctor(*, as_json: Json = False) -> None:
    """Check this machine, or the cluster, and show what to fix.

    The cluster is the one that MUSTER_CLUSTER names; nothing is created there. The exit code is 1 if something will not
    work.
    """
    checks = list(all_checks(Settings.load()))
    bad = any(check.state == "bad" for check in checks)
    if as_json:
        emit({"ok": not bad, "checks": checks})
    else:
        table = Table(["state", "what", "found"])
        for check in checks:
            table.add(check.state, check.name, check.found)
        table.show(empty="nothing was checked")
        for check in checks:
            if check.advice:
                say(safe(f"\n{check.name}: {check.advice}".strip()))
    if bad:
        raise typer.Exit(1)


def all_checks(settings: Settings) -> Iterator[Check]:
    """Yield the checks of the command, of the place, and of extensions; each runs when it is requested."""
    from muster.backends import base
    from muster.backends.choose import open_place
    from muster.cli.checks.command import command_checks

    there = open_place(settings, patience_seconds=base.LOOK_SECONDS)
    yield from command_checks(settings, here=there.here)
    with closing(there):
        yield from there.checks()
    for check in used(lambda each: each.checks):
        yield from check(settings)
    for problem in problems():
        found, _, advice = problem.rpartition(": ")
        yield bad("extension", found, advice)
