"""What this process is to the command ``muster``."""

from __future__ import annotations

forked = False  # whether it is a fork of a waiting process
arguments: list[str] | None = (
    None  # of the command that it was started for; None where a program called a function
)
