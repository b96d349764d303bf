"""What is ingested: a source outside muster, and how the job that ingests it is told of it.

The program lies in the image ``ingest``. Nothing of a connection but its id, its type and the names of its extra fields is in a job's spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from muster.core.errors import SpecError
from muster.core.names import check_whole

ENTRYPOINT = "muster_ingest:ingest"
COMPACT_ENTRYPOINT = "muster_ingest:compact"
PACKAGE = "muster_ingest"
BEFORE = "before"
"""The input with the last version."""
SQL, KAFKA = "sql", "kafka"
_SCHEMES = (
    "s3",
    "s3a",
    "gs",
    "gcs",
    "abfs",
    "abfss",
    "az",
    "http",
    "https",
    "sftp",
    "ssh",
    "file",
    SQL,
    KAFKA,
)
VALUES = ("json", "avro", "raw")
"""How the values of a topic's messages are read."""
UNREADABLE, LOST = ("stop", "skip", "keep"), ("stop", "skip")
"""What is done about a message that cannot be read, and about offsets that the broker dropped."""
FIELDS = ("login", "password", "host", "port", "schema")
"""The fields of a connection that a job is given, each in a variable of its own."""
TYPES = (
    "bool",
    "int32",
    "int64",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp with time zone",
    "decimal(18,3)",
)
"""What a column of a query may be made; of decimals this is one."""
AWAY = "SourceAway: "
"""What the program's last words begin with where another try may find the source again."""

_CONNECTION = re.compile(r"[\w.:-]{1,250}\Z", re.ASCII)
_TOPIC = re.compile(r"/[\w.-]{1,249}\Z", re.ASCII)
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)\Z", re.ASCII)
_CONTAINERS = ("abfs", "abfss")  # CONTAINER@ACCOUNT is no user


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source: the files below an address, the rows of a query, or the messages of a topic.

    :param url: ``s3://bucket/prefix``, ``sql://CONNECTION``, or ``kafka://CONNECTION/topic``.
    :param connection: the id of the Airflow connection, but of a query or topic, whose address names it.
    :param query: the SQL of a query. `watermark`: a column of it that only grows.
    :param types: names of types, by columns of a query.
    :param values: how the messages of a topic are read, one of :data:`VALUES`. `until`: the time before which they are, in ISO 8601.
    :param most: how many rows a version gets at most, of a topic.
    :param unreadable: one of :data:`UNREADABLE`. `lost`: one of :data:`LOST`.
    :param streams: how many files are fetched at once.
    :param patience_seconds: how long it may be away before that ends the ingest.
    """

    url: str
    connection: str | None = None
    query: str | None = None
    watermark: str | None = None
    types: Mapping[str, str] | None = None
    values: str | None = None
    until: str | None = None
    most: int | None = None
    unreadable: str = UNREADABLE[0]
    lost: str = LOST[0]
    streams: int = 16
    patience_seconds: float = 300.0

    def __post_init__(self) -> None:
        check_url(self.url)
        self._check_stream()
        if self.connection is not None:
            check_connection(self.connection)
        check_whole("streams", self.streams, 1, 256)
        if self.is_query != (self.query is not None):
            raise SpecError("a source sql://CONNECTION needs query=, and no other source has one")
        if self.watermark is not None and not self.is_query:
            raise SpecError("only a query has a watermark; files are compared by size and ETag")
        if self.types is not None:
            if not self.is_query:
                raise SpecError("only a query has types=; files stay as they are")
            check_types(self.types)
        if self.names_connection and self.connection is not None:
            raise SpecError(f"the source {self.url} names its connection: leave connection= out")

    def _check_stream(self) -> None:
        given = (self.values, self.until, self.most, self.unreadable, self.lost)
        if not self.is_stream:
            if given != (None, None, None, UNREADABLE[0], LOST[0]):
                raise SpecError(
                    "values=, until=, most=, unreadable= and lost= belong to a source kafka://CONNECTION/topic"
                )
            return
        for name, value, known in (
            ("values", self.values, VALUES),
            ("unreadable", self.unreadable, UNREADABLE),
            ("lost", self.lost, LOST),
        ):
            if value not in known:
                raise SpecError(f"{name} is {value!r:.60}: need one of {', '.join(known)}")
        if self.until is not None:
            check_time(self.until)

    @property
    def is_query(self) -> bool:
        """Whether it is the rows of a query."""
        return self.url.startswith(f"{SQL}://")

    @property
    def is_stream(self) -> bool:
        """Whether it is the messages of a topic."""
        return self.url.startswith(f"{KAFKA}://")

    @property
    def names_connection(self) -> bool:
        """Whether its address names its connection."""
        return self.is_query or self.is_stream

    @property
    def conn_id(self) -> str | None:
        """The id of its Airflow connection, if it has one."""
        return urlsplit(self.url).netloc if self.names_connection else self.connection

    def param(self, *, kind: str = "", extras: Sequence[str] = ()) -> dict[str, Any]:
        """Return it as the job's param ``what``, which the version's record shows.

        :param kind: the type of its connection. `extras`: the names of the fields in its extra.
        """
        names: tuple[str, ...] = ("streams",)
        if self.is_query:
            names = ("query", "watermark", *(("types",) if self.types else ()))
        elif self.is_stream:
            names = ("values", "until", "most", "unreadable", "lost")
        found: dict[str, Any] = {"source": self.url}
        found |= {name: getattr(self, name) for name in (*names, "patience_seconds")}
        if "types" in found:
            found["types"] = dict(sorted(found["types"].items()))
        if self.conn_id is not None:
            found |= {"connection": self.conn_id, "kind": kind, "extras": sorted(extras)}
        return found


def variables(fields: Mapping[str, object], extras: Sequence[str]) -> dict[str, str]:
    """Return the variables of a job, each with the connection's field that it holds; fields without a value have none."""
    own = {f"INGEST_{name.upper()}": name for name in FIELDS if fields.get(name) not in (None, "")}
    return own | {f"INGEST_EXTRA_{number}": name for number, name in enumerate(sorted(extras))}


def check_url(value: object) -> str:
    """Return what may be ingested. :raises SpecError: it says what is wrong, and never shows a password."""
    if not isinstance(value, str) or "://" not in value:
        raise SpecError(
            f"{value!r:.80}: expected an address such as 's3://bucket/prefix', 'file:///folder' (a whole path), 'sql://CONNECTION' or "
            "'kafka://CONNECTION/topic'"
        )
    parts = urlsplit(value)
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise SpecError(f"{parts.scheme}:// is no kind of source; there are {known}")
    if "@" in parts.netloc and parts.scheme not in _CONTAINERS:
        raise SpecError(
            f"a {parts.scheme}:// source names a user or a password before '@', which would be stored: "
            "put them into an Airflow connection, and name that with connection="
        )
    if parts.query and parts.scheme not in ("http", "https"):
        raise SpecError(
            f"a {parts.scheme}:// source has a query after '?', which may hold a token: use an Airflow connection"
        )
    if parts.scheme == SQL and (parts.path.strip("/") or not _CONNECTION.match(parts.netloc)):
        raise SpecError(f"{value!r:.120}: expected 'sql://CONNECTION', the id of an Airflow connection")
    if parts.scheme == KAFKA and not (_TOPIC.match(parts.path) and _CONNECTION.match(parts.netloc)):
        raise SpecError(
            f"{value!r:.120}: expected 'kafka://CONNECTION/topic', the id of an Airflow connection and one topic"
        )
    if not (parts.netloc or parts.path.strip("/")):
        raise SpecError(f"{value!r:.80} names no bucket, host or folder")
    return value


def check_types(value: object) -> None:
    """Refuse what does not name a type for each column. :raises SpecError: it names the column."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{value!r:.60}: expected types by column, such as {{'amount': 'decimal(18,3)'}}")
    for column, kind in value.items():
        found = _DECIMAL.match(kind) if isinstance(kind, str) else None
        decimal = found is not None and 1 <= int(found[1]) <= 76 and int(found[2]) <= int(found[1])
        if not isinstance(column, str) or not (decimal or (kind in TYPES[:-1])):
            raise SpecError(f"{column!r:.60} is {kind!r:.60}: expected one of {', '.join(TYPES)}")


def check_time(value: object) -> str:
    """Return a time in ISO 8601; one without a zone is in UTC. :raises SpecError: it is none."""
    try:
        datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise SpecError(f"{value!r:.60}: expected a time such as '2026-11-26T10:00:00+00:00'") from None
    assert isinstance(value, str)
    return value


def check_connection(value: object) -> str:
    """Return what can be a connection's id. :raises SpecError: it cannot; it is not shown, since it may be a secret."""
    if not isinstance(value, str) or not _CONNECTION.match(value):
        raise SpecError("expected the id of an Airflow connection, such as 'aws_default'")
    return value
