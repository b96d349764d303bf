"""SQLite settings of every process that shares an Airflow's database here; imported where Airflow sets it up.

Airflow reads within a savepoint and then writes (for example when a backfill creates its runs). In SQLite a
savepoint outside of a transaction begins a read transaction, which can become a write transaction only if no
other connection wrote since: otherwise it fails at once with "database is locked", whatever the timeout
(https://www.sqlite.org/isolation.html, SQLITE_BUSY_SNAPSHOT). So a transaction that begins with a savepoint
takes the write lock right away, and waits for it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

PATIENCE = {"timeout": 30}  # seconds that a process waits for SQLite's write lock


@event.listens_for(Engine, "savepoint")
def _write_from_the_start(connection: Any, _name: str) -> None:
    raw = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection) and not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")
