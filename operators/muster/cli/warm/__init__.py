"""A process that has Airflow imported waits some minutes for the next ``muster run`` of its home, and forks for it.

``client`` says which may serve a command, finds or starts it, hands the command over and stands for it; ``server`` is the
process, and ``place`` says where its socket is.
"""

from __future__ import annotations

forked = False  # whether this process is a fork of a waiting one
arguments: list[str] | None = (
    None  # of the command it was started for; None where a program called a function
)
