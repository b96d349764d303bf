"""``muster count``, and a check of ``muster doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import typer

from muster.cli.command import open_store
from muster.cli.screen import say
from muster.core.check import Check, ok
from muster.core.settings import Settings


def count(volume: str) -> None:
    """Show how many versions a volume has."""
    say(str(len(open_store().newest(volume, limit=100))))


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the command."""
    groups[""].command("count")(count)


def checks(settings: Settings) -> Iterator[Check]:
    """Say where versions are counted."""
    yield ok("counts", f"of {settings.home}")
