"""How every process of a ``muster up`` uses its one SQLite file; imported where Airflow sets its database up.

Airflow looks something up within a savepoint and then writes (a backfill creates its runs so). To
SQLite a savepoint outside of a transaction begins one that reads, and one that reads can begin to
write only if no other connection wrote since: else it is told at once that the database is locked, whatever
the timeout (https://www.sqlite.org/isolation.html, SQLITE_BUSY_SNAPSHOT). So what begins with a
savepoint begins to write right away, which waits for its turn.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

PATIENCE = {"timeout": 30}  # seconds that one of several processes waits for SQLite's one writer


@event.listens_for(Engine, "savepoint")
def _write_from_the_start(connection: Any, _name: str) -> None:
    raw = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection) and not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")
