"""What is said of a change to another package, and whether it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version


@dataclass(frozen=True)
class Patch:
    """A change to another package.

    :param package: the distribution that is changed.
    :param tried: how the releases begin that it was tried with.
    :param worth_seconds: of CPU at one start without a process that waits, measured in pairs with and without it.
    :param report: what its authors are to be told, so that the change is needed no longer.
    """

    package: str
    tried: tuple[str, ...]
    worth_seconds: float
    report: str

    @cached_property
    def off(self) -> str:
        """Why it is left out; empty where it is made."""
        if os.environ.get("MUSTER_PATCHES") == "off":
            return "MUSTER_PATCHES is off"
        if (found := version(self.package)).startswith(self.tried):
            return ""
        return (
            f"{self.package} is {found}, and it was tried with {', '.join(f'{each}*' for each in self.tried)}"
        )
