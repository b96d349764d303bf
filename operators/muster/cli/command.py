"""What all commands share: errors, examples, ``--json``, and opening the store and the backend.

A command imports the store and the backend only when it needs them, so that ``--help`` is fast.
"""

from __future__ import annotations

import getpass
import os
import re
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from muster.cli.screen import complain, kept_for_the_document, note, safe
from muster.client.place import check_home
from muster.core.errors import MusterError
from muster.core.settings import Settings, project_folder

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.backends.place import Place
    from muster.backends.releases.deployments import Deployments
    from muster.core.room import Room
    from muster.volumes.protocols import LocalStore, Store


def _keep_stdout(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        context.with_resource(kept_for_the_document())
    return wanted


Json = Annotated[
    bool, typer.Option("--json", callback=_keep_stdout, help="One JSON document on stdout, for scripts.")
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME=VALUE", help="A Param of the Dag; lists and objects as JSON."
    ),
]
DAGS = Path("dags")


def _of_project(dags: Path) -> Path:
    return project_folder() / DAGS if dags == DAGS else dags


Dags = Annotated[
    Path,
    typer.Option("--dags", callback=_of_project, help="The folder of Dags; by default the project's."),
]
Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Such as flights/model@7 or flights/features@2013-03.")
]

_opened = ExitStack()  # resources that are closed when the command ends


class Commands(TyperGroup):
    """The root of the command: a MusterError becomes one message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the requested command."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            with _opened:
                return super().invoke(ctx)
        except MusterError as error:
            complain(error)
            raise typer.Exit(1) from error

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click defines the signature
        """List the commands in the order in which a new user needs them."""
        first = [
            *("demo", "init", "run", "plan", "up", "runs", "search", "jobs", "queue", "gpus", "usage"),
            *(
                "volumes",
                "cache",
                "deployments",
                "predictions",
                "images",
                "notebook",
                "tensorboard",
                "mlflow",
                "spark",
                "metrics",
                "doctor",
                "support-bundle",
            ),
        ]
        return sorted(self.commands, key=lambda name: (first.index(name) if name in first else 99, name))


def group(help: str) -> typer.Typer:  # noqa: A002 - typer's keyword
    """Return the group of one noun's commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


def example(*lines: str) -> str:
    """Write a command's examples below its help, each on a line of its own."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\b\n" + "\n".join([title, *(f"  {line}" for line in lines)])


_SPAN = re.compile(r"(\d{1,6})([mhd])")
_SPAN_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}


def read_since(text: str, *, now: float) -> float:
    """Return the time that ``--since`` names, in seconds since the epoch: so long ago, or a date."""
    if span := _SPAN.fullmatch(text):
        return now - int(span[1]) * _SPAN_SECONDS[span[2]]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        told = f"{text!r:.40} is no time: write minutes as 90m, hours as 24h, days as 7d, or a date as 2026-11-01"
        raise typer.BadParameter(told, param_hint="--since") from error


def open_store(*, make: bool = False) -> LocalStore:
    """Open the store: this machine's, or that of the cluster that MUSTER_CLUSTER names.

    :param make: create this machine's store if there is none; a command that only reads creates nothing.
    :raises NotFound: there is none.
    """
    if not make:
        check_home(Settings.load())
    return open_place().store


def person() -> str:
    """Return the user's name, or its number if it has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def store_is_here() -> bool:
    """Whether versions' files lie on this machine; those of a cluster must be fetched."""
    return open_place().here


def open_place(*, patient: bool = False) -> Place:
    """Open the place that this process's settings name, until the command ends.

    :param patient: wait as long for an unreachable cluster as a job does, and not only for seconds.
    """
    from muster.backends import base, choose

    seconds = base.PATIENCE_SECONDS if patient else base.LOOK_SECONDS
    found = choose.open_place(patience_seconds=seconds)
    _opened.callback(found.close)
    return found


def open_backend(*, patient: bool = False) -> Backend:
    """Open the jobs of the place. :param patient: as :func:`open_place`.

    :raises NotFound: nothing was ever run here.
    """
    check_home(Settings.load())
    from muster.backends.base import Backend

    return Backend(open_place(patient=patient))


def open_deployments() -> Deployments:
    """Open the deployments of this machine, or of the cluster.

    :raises NotFound: nothing was ever run here.
    """
    check_home(Settings.load())
    return open_place().deployments


def room_of(store: Store) -> Room | None:
    """Return a store's free space; None, and a warning, if it is unknown."""
    try:
        return store.room()
    except MusterError as error:  # such as a service of an older release
        note(f"warning: the store's free space is unknown: {safe(error)}")
        return None
