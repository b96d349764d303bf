"""The command run in this process, against a store with a little history."""

from __future__ import annotations

from tests.unit.cli.conftest import history, home, muster, store

__all__ = ["history", "home", "muster", "store"]
