"""Lets Airflow's scheduler rest until something was written to its database, instead of looking ten times a second.

Airflow's scheduler sleeps for ``scheduler_idle_sleep_time`` when it has nothing to do. A tenth of a second keeps a
seventh of a core busy on a machine where nothing happens; a second delays each task by half of one. On one machine every
reason to look is a write to the SQLite database, and a write changes the time of a file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.02


class WakingClock:
    """The module ``time`` for Airflow's scheduler; its ``sleep`` ends early when the database was written."""

    def __init__(self, database: Path) -> None:
        # of a write in WAL mode the second file tells, in any other mode the first
        self._files = (database, database.with_name(f"{database.name}-wal"))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or soon after another process has written."""
        before, deadline = self._written(), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            if self._written() != before:
                return

    def _written(self) -> list[tuple[int, int]]:
        found = []
        for path in self._files:
            try:
                stat = path.stat()
            except FileNotFoundError:  # nothing was written yet, or the last process closed it
                continue
            found.append((stat.st_mtime_ns, stat.st_size))
        return found


def wake_on_writes() -> None:
    """Have the scheduler of this process use :class:`WakingClock`, if its database is a file of SQLite."""
    from airflow.configuration import conf
    from airflow.jobs import scheduler_job_runner

    kind, _, path = conf.get_mandatory_value("database", "sql_alchemy_conn").partition(":///")
    if kind == "sqlite":
        scheduler_job_runner.time = WakingClock(Path(path))  # type: ignore[assignment,attr-defined]
