"""SQLite settings of every process that shares an Airflow's database here; imported where Airflow sets it up.

Airflow reads within a savepoint and then writes (for example when a backfill creates its runs). In SQLite a
savepoint outside of a transaction begins a read transaction, which can become a write transaction only if no
other connection wrote since: otherwise it fails at once with "database is locked", whatever the timeout
(https://www.sqlite.org/isolation.html, SQLITE_BUSY_SNAPSHOT). So a transaction that begins with a savepoint
takes the write lock right away, and waits for it.

Each commit of a write-ahead log would wait for the disk. It waits only when the log is folded into the database
(``synchronous=NORMAL``, https://www.sqlite.org/pragma.html#pragma_synchronous): a process that is killed loses nothing,
and a power cut may lose the newest commits, never the database. What was made is known from the store and its ledger.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine


class _Connection(sqlite3.Connection):
    """One of Airflow's own: other databases of the same process keep their settings."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.execute("PRAGMA synchronous=NORMAL")


# Seconds that a process waits for SQLite's write lock.
PATIENCE = {"timeout": 30, "factory": _Connection}


@event.listens_for(Engine, "savepoint")
def _write_from_the_start(connection: Any, _name: str) -> None:
    raw = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection) and not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")
