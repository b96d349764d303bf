"""The command `muster`: all its subcommands.

A :class:`~muster.core.errors.MusterError` is one message on stderr and exit code 1; a wrong option
is a usage message and 2. A full disk or a closed pipe that stdout leads to, and a HOME that cannot be written, are one message, too; any
other error is a bug of muster and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Annotated

import typer

from muster import __version__
from muster.cli import cache, capacity, deployments, images, jobs, runs, volumes, warm
from muster.cli.command import Commands, example
from muster.cli.demo import demo
from muster.cli.doctor import doctor
from muster.cli.init import init
from muster.cli.run import Resumable, run
from muster.cli.screen import complain
from muster.cli.tensorboard import tensorboard
from muster.core.extensions import problems, used
from muster.core.forking import leave
from muster.core.settings import whose

HELP = """The whole road of a model in one Airflow Dag, on this machine or a cluster.

\b
MUSTER_HOME     volumes, jobs, deployments; default: the nearest .muster folder
MUSTER_CACHE    environments and downloads, safe to delete; default: ~/.cache/muster
MUSTER_CLUSTER  a file that names a cluster, on which jobs, volumes and deployments then are
MUSTER_NO_WARM  1: muster run leaves no process behind that has Airflow imported for the next run
MUSTER_PATCHES  off: other packages are left as they are; Airflow starts later
MUSTER_COMPARE  1: a commit also reads the files that it shares with the version before
MUSTER_MIRROR   a mirror, from which versions are read that the store lacks
"""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    epilog=example("muster demo", "muster run flights --param epochs=6", "muster volumes log flights/model"),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", epilog=example("muster demo"))(demo)
app.command("init", epilog=example("muster init flats", "muster init flats --dags pipelines"))(init)
app.command(
    "run",
    cls=Resumable,
    epilog=example(
        "muster run flights --param epochs=6",
        "muster run flights --resume=strict",
        "muster run flights --from train",
        "muster run flights --no-cache",
        "muster run flights --json",
    ),
)(run)
app.command("gpus", epilog=example("muster gpus", "muster gpus --json | jq '.classes[] | {name, free}'"))(
    capacity.gpus
)
app.command("queue", epilog=example("muster queue", "muster queue --json | jq '.waiting[0].why'"))(
    capacity.queue
)
app.command("doctor", epilog=example("muster doctor", "muster doctor --json"))(doctor)
app.command(
    "tensorboard", epilog=example("muster tensorboard flights/model", "muster tensorboard flights-train")
)(tensorboard)
GROUPS = {
    "jobs": jobs.app,
    "runs": runs.app,
    "volumes": volumes.app,
    "deployments": deployments.app,
    "images": images.app,
    "cache": cache.app,
}
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _add in used(lambda each: (each.commands,) if each.commands else ()):
    _add({"": app, **GROUPS})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"muster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Typer reads the options of `muster` itself from here."""


_MACHINES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM})


def named(words: Sequence[str]) -> typer.Typer:
    """Return the command with that part of it alone which the words name, or with all: to make all takes 0.03 s."""
    name = next(iter(words), "")
    found = copy(app)
    found.registered_commands = [each for each in app.registered_commands if each.name == name]
    found.registered_groups = [each for each in app.registered_groups if each.name == name]
    return found if found.registered_commands or found.registered_groups else app


def main() -> None:
    """Run the command; the entry point of the installed `muster`."""
    warm.arguments = sys.argv[1:]
    if warm.arguments[:1] == ["help"]:
        warm.arguments = [*warm.arguments[1:], "--help"]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed by who started this, `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the end
    for problem in problems():
        complain(problem)
    try:
        named(warm.arguments)(warm.arguments, prog_name="muster")
    except OSError as error:
        end_by(error)
        raise
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click turns it into exit code 1
            end_by(end.__context__)
            raise end.__context__ from None
        if not isinstance(end.code, (int, type(None))):
            raise
        try:
            sys.stdout.flush()
        except OSError as error:
            end_by(error)
            raise
        leave(end.code or 0)


def end_by(error: OSError) -> None:
    """End as every program does whose output is no longer read, by SIGPIPE; of what is wrong with this machine say one line, exit code 1.

    Any other error is a bug, and keeps its traceback: a file that is missing in HOME, a connection that was closed.
    """
    path, home = Path(str(error.filename or "")), Path(os.path.expanduser("~"))  # noqa: PTH111 a user may have none
    no_home = any(home in (each, each.parent) and not each.exists() for each in (path, *path.parents))
    if error.errno == errno.EPIPE and _is_unread():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
    if error.errno not in _MACHINES and not no_home and not isinstance(error, socket.gaierror):
        return
    where = f": {error.filename}{whose(error)}" if error.filename else ""
    with suppress(OSError):  # stderr may lead to the same disk
        complain(f"{error.strerror or error}{where}")
    os._exit(1)


def _is_unread() -> bool:
    """Whether the reader of this process's output has closed it."""
    look = select.poll()
    look.register(1, 0)  # POLLERR and POLLHUP are always told
    look.register(2, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))
