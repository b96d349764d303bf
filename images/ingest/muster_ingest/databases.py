"""The databases of queries: how each is opened with a connection, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster_ingest import sqlite
from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError, SourceAway
from muster_ingest.fetching import Patience
from muster_ingest.schemas import MOST_DIGITS, decimal

BATCH_ROWS = 65_536
_KINDS = {"postgres": "postgres", "postgresql": "postgres", "sqlite": "sqlite", "duckdb": "duckdb"}
_REFUSED = (
    "authentication",
    "no password supplied",
    "permission denied",
    "no pg_hba.conf entry",
    "certificate verify failed",
    "signature failure",  # of another authority with the same name
    "server certificate for",
    "server does not support ssl",
)
_AWAY = (
    "could not connect",
    "connection refused",
    "server closed",
    "timeout",
    "timed out",
    "could not translate",
    "connection to server",
    "terminating connection",
    "could not receive data",
    "could not send data",
    "ssl syscall error",
)
_NO_DATABASE = re.compile(r'fatal:\s+database ".*" does not exist')

Read = Callable[[str, Collection[str]], pa.RecordBatchReader]
"""Reads a statement, and knows the columns whose type is set."""


class Database:
    """The database of one source.

    :ivar again: what the next run does where the database was away.

    :param patience_seconds: how long it may be away when it is connected to. :raises IngestError: the connection is of another kind.
    """

    again = "it reads the query from its beginning"

    def __init__(self, source: str, connection: Connection, patience_seconds: float) -> None:
        self.source, self._connection = source, connection
        kind = _KINDS.get(connection.kind)
        if kind is None:
            raise IngestError(
                f"{source}: connection {connection.conn_id!r} is of type {connection.kind!r:.60}; queries go to postgres, sqlite and duckdb"
            )
        self._kind = kind
        self._patience = Patience(self, patience_seconds)

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Lend a function that reads a statement as batches of Arrow.

        :raises IngestError: the connection is refused, or the statement cannot be read. :raises SourceAway: the database does not answer.
        """
        try:
            with self._connected() as read:
                yield read
        except (IngestError, SourceAway):
            raise
        except Exception as error:  # each database's library has errors of its own
            raise self._meant(error) from None

    @contextmanager
    def _connected(self) -> Iterator[Read]:
        connected = self._patience.ask("its start", self._connect)
        with closing(connected):
            if self._kind == "duckdb":
                yield lambda statement, _: connected.execute(statement).to_arrow_reader(BATCH_ROWS)
            elif self._kind == "sqlite":
                yield lambda statement, given: sqlite.read(connected, statement, given, BATCH_ROWS)
            else:
                with connected.cursor() as cursor:
                    yield lambda statement, _: _read_postgres(cursor, statement)

    def _connect(self) -> Any:
        if self._kind == "duckdb":
            import duckdb

            return duckdb.connect(_existing(self._connection, self.source), read_only=True)
        if self._kind == "sqlite":
            return sqlite.opened(_existing(self._connection, self.source))
        from adbc_driver_postgresql import dbapi

        return dbapi.connect(_postgres(self._connection))

    def denied(self, error: BaseException) -> bool:
        """Whether an error says that the credentials do not do."""
        state = _state(error)
        if state:
            return state.startswith("28") or state == "42501"
        return any(word in _judged(error) for word in _REFUSED)

    def passing(self, error: BaseException) -> bool:
        """Whether the same may work a little later."""
        if self._kind != "postgres":  # a file
            return False
        state = _state(error)
        if state:
            return state.startswith(("08", "57P"))
        judged = _judged(error)
        return any(word in judged for word in _AWAY) and not _NO_DATABASE.search(judged)

    def refused(self, error: BaseException) -> IngestError:
        """Name the connection whose credentials do not do; nothing of them is shown."""
        return IngestError(
            f"{self.source} refuses connection {self._connection.conn_id!r}: {self.said(error):.300}"
        )

    def _meant(self, error: Exception) -> Exception:
        if self.denied(error):
            return self.refused(error)
        if self.passing(error):
            return SourceAway(
                f"{self.source} does not answer any more ({self.said(error):.300}): run again, {self.again}"
            )
        if _state(error) == "3D000" or _NO_DATABASE.search(_judged(error)):
            return IngestError(
                f"{self.source}: there is no database {self._connection.schema!r:.100}: name another one as the schema of connection "
                f"{self._connection.conn_id!r}"
            )
        return IngestError(f"{self.source}: the query cannot be read: {self.said(error):.600}")

    def said(self, error: BaseException) -> str:
        """Return what an error says, on one line, without anything of the connection."""
        return self._connection.hidden(str(error))


def is_numeric(kind: pa.DataType) -> bool:
    """Whether it is PostgreSQL's ``numeric``, which its driver gives as text."""
    return isinstance(kind, pa.OpaqueType) and bool(kind.type_name == "numeric")


def _read_postgres(cursor: Any, statement: str) -> pa.RecordBatchReader:
    """Read a statement; a ``numeric`` is a decimal with as many digits as its values have, or stays text where there are too many, or NaN."""
    cursor.execute(f"select * from (\n{statement}\n) as whole limit 0")  # noqa: S608 - the author's own query
    fields = list(cursor.fetch_record_batch().schema)
    for number, field in enumerate(fields):
        if is_numeric(field.type):
            name = '"' + field.name.replace('"', '""') + '"'
            finite = f"max(case when {name}::text in ('NaN', 'Infinity', '-Infinity') then 1 else 0 end)"
            digits = f"max(length(split_part(abs({name})::text, '.', 1))), max(scale({name}))"
            cursor.execute(f"select {finite}, {digits} from (\n{statement}\n) as whole")  # noqa: S608 - the same
            odd, whole, scale = cursor.fetchone()
            if not odd and (whole or 1) + (scale or 0) <= MOST_DIGITS:
                fields[number] = field.with_type(decimal((whole or 1) + (scale or 0), scale or 0))
    cursor.execute(statement)
    reader, schema = cursor.fetch_record_batch(), pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            columns = [
                column if column.type == field.type else column.storage.cast(field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _state(error: BaseException) -> str:
    """Return the SQLSTATE; empty where the driver tells none: of a failed connect, and of what comes while rows are fetched."""
    return str(getattr(error, "sqlstate", None) or "")


def _judged(error: BaseException) -> str:
    """Return the part of an error's text in which words say what it is: not what the server says of the statement, and shows of it."""
    return re.split(r"LINE \d|ERROR: ", str(error))[0].lower()


def _existing(connection: Connection, source: str) -> str:
    """Return the database's file, which Airflow's providers take from the host or the schema."""
    file = connection.host or connection.schema
    if not Path(file).is_file():
        raise IngestError(
            f"{source}: connection {connection.conn_id!r} names no file that is there: need the whole path of the database as its host, or a "
            f"connection written as '{connection.kind}:////folder/file', with four slashes"
        )
    return file


def _postgres(connection: Connection) -> str:
    from urllib.parse import quote, urlencode

    user = quote(connection.login, safe="")
    word = f":{quote(connection.password, safe='')}" if connection.password else ""
    options = {
        name: connection.text(name)
        for name in ("sslmode", "sslrootcert", "connect_timeout")
        if connection.text(name)
    }
    if connection.ca:
        options.setdefault("sslmode", "verify-full")  # libpq's own default checks no certificate
    address = f"{quote(connection.host or 'localhost', safe='')}:{connection.port or 5432}"
    return f"postgresql://{user}{word}@{address}/{quote(connection.schema, safe='')}?{urlencode({'connect_timeout': '20', **options})}"
