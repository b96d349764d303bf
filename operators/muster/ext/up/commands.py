"""``muster up``: runs Airflow on this machine, with its pages, its schedules and the Dags of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import DAGS, Dags, example
from muster.cli.screen import note, program, safe, say
from muster.core.shipped import need

if TYPE_CHECKING:
    from muster.ext.up.home import UpHome
    from muster.ext.up.site import FoundDags

PORT = 8080
_METRICS_PORT = 9470


def up(
    *,
    dags: Dags = DAGS,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = PORT,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where metrics are for Prometheus; 0: nowhere.")
    ] = _METRICS_PORT,
    database: Annotated[
        str,
        typer.Option(help="Airflow's database, such as postgresql://USER@HOST/NAME.", show_default="its own"),
    ] = "",
) -> None:
    """Run Airflow on this machine, until Ctrl-C.

    A new Dag is paused: its schedule begins when you unpause it, and the first screen says how.
    Airflow's pages are on loopback, behind a password. A process of Airflow's that dies is restarted; Ctrl-C ends
    them all. Running jobs go on then, and the next start finds them again. To change Airflow's settings, write them
    into up/own.cfg in MUSTER_HOME.
    """
    need("machine", what="muster up")
    note("starting Airflow")
    from muster.ext.up.site import run

    run(dags=dags, port=port, metrics_port=metrics_port, database=database, audience=Screen())


class Screen:
    """Shows the progress on the terminal."""

    def note(self, text: str) -> None:
        """Show what is being done."""
        note(f"  {safe(text)}")

    def warning(self, text: str, lines: list[str]) -> None:
        """Show what is wrong, with the lines that tell of it."""
        note(safe(text), style="yellow")
        for line in lines:
            note(f"  {safe(line)}")

    def ready(self, home: UpHome, found: FoundDags, *, new_password: bool) -> None:
        """Show where Airflow is, who may enter it, and which Dags it has."""
        say()
        say(f"Airflow is up at {home.url}   Ctrl-C ends it", bold=True)
        elsewhere, kept = home.auth_manager(), f"in {safe(home.passwords)}"
        if elsewhere:
            say(f"  users and passwords are those of {safe(elsewhere)}")
        else:
            say(f"  user admin, password {home.password() if new_password else kept}")
        say(f"  Dags in {safe(home.dags)}: {safe(', '.join(found.dags)) or 'none'}")
        for line in _of_paused(home, found):
            say(f"  {safe(line)}")
        if days := home.run_days():
            note(
                f"  rows and logs of runs that ended are deleted after {days:g} days: run_days under [muster] in own.cfg"
            )
        else:
            note(
                "  rows and logs of runs stay for ever: run_days under [muster] in own.cfg is the days that they stay"
            )
        if home.metrics_url:
            note(f"  metrics for Prometheus are at {home.metrics_url}")
        if new_password and not elsewhere:
            note(f"  the password is kept in {safe(home.passwords)} and not shown again")
        for file, trace in found.errors.items():
            last = [line for line in trace.splitlines() if line.strip()][-1:]
            note(f"  {safe(file)} cannot be imported: {safe(*last)}", style="red")


def _of_paused(home: UpHome, found: FoundDags) -> Iterator[str]:
    """Yield the Dags that run without a start, the paused ones, and how to unpause these."""
    if found.shipped:
        yield f"from muster: {', '.join(found.shipped)}, which ends what no task owns and deletes old versions"
    if not found.paused:
        return
    some = {*found.dags, *found.shipped} - {*found.paused}
    which = ", ".join(found.paused) if some else "all of them"
    yield f"paused: {which}: no schedule and no asset starts a run of these"
    where = home.root.relative_to(Path.cwd()) if home.root.is_relative_to(Path.cwd()) else home.root
    yield f"  start one by its switch on the page, or: AIRFLOW_HOME={quote(str(where))} {program('airflow')} dags unpause {found.paused[0]}"


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command("up", epilog=example("muster up", "muster up --dags pipelines --port 8090"))(up)
