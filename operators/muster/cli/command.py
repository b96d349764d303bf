"""What all commands share: how an error ends one, its examples, ``--json``, and what it opens.

The store and the backend are imported when a command needs them, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from muster.cli.screen import complain
from muster.core.errors import MusterError, NotFound
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.local.backend import LocalBackend
    from muster.volumes.folder import FolderStore

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for scripts.")]
Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Such as flights/model@7 or flights/features@2013-03.")
]


class Commands(TyperGroup):
    """The root of the command: an error of ours becomes one message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except MusterError as error:
            complain(error)
            raise typer.Exit(1) from error

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Name the commands in the order in which a newcomer meets them, not by the alphabet."""
        first = ["demo", "run", "up", "jobs", "volumes", "deployments", "images", "tensorboard", "doctor"]
        return sorted(self.commands, key=lambda name: (first.index(name) if name in first else 99, name))


def group(help: str) -> typer.Typer:  # noqa: A002 - typer's own word
    """Make the group of one noun's commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


def example(*lines: str) -> str:
    """Write a command's examples below its help, each on a line of its own."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\b\n" + "\n".join([title, *(f"  {line}" for line in lines)])


def open_store(*, make: bool = False) -> FolderStore:
    """Open this machine's store.

    :param make: make it where there is none; a command that only reads leaves nothing behind.
    :raises NotFound: there is none.
    """
    settings = Settings.load()
    if not make and not settings.store.is_dir():
        raise NotFound(
            f"nothing is kept in {settings.home} yet: run `muster demo` or `muster run`, "
            "go to the folder that holds the .muster you mean, or set MUSTER_HOME"
        )
    from muster.volumes.folder import FolderStore

    return FolderStore(settings.store)


def open_backend() -> LocalBackend:
    """Open this machine's backend. :raises NotFound: nothing was ever run here."""
    open_store()
    from muster.backends.local.backend import LocalBackend

    return LocalBackend(Settings.load())
