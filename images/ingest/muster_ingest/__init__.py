"""Makes a version of outside data: the objects of a store, the rows of a query, or the messages of a topic. IngestOperator runs it as a job.
CompactOperator has the small files of such a version joined.

The job's folder of checkpoints becomes the version, so what one attempt has fetched is there for the next one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def ingest(before: list[Path], checkpoints: Path, *, what: dict[str, Any]) -> dict[str, float]:
    """Bring `checkpoints` to the state of the source as it is now; leave it empty where `before` holds that already.

    :param before: the last version, if there is one.
    :param what: the source, as IngestOperator describes it.
    :return: how many files the version has and how large they are, and how many were fetched, kept and gone.
    """
    from muster_ingest.connection import Connection

    connection = Connection.of_environment(what)
    base = before[0] if before else None
    if what["source"].startswith("sql://"):
        from muster_ingest.sql import read_query

        return read_query(base, checkpoints, what, connection)
    if what["source"].startswith("kafka://"):
        from muster_ingest.stream import read_topic

        return read_topic(base, checkpoints, what, connection)
    from muster_ingest.objects import Ingest

    return Ingest(base, checkpoints, what, connection).run()


def compact(before: list[Path], data: Path, *, large_mib: int) -> dict[str, float]:
    """Join the small Parquet files of `before` into large ones in `data`; leave it empty where there is nothing to join.

    :param before: the last version.
    :param large_mib: the size that files should have; one of half of it stays as it is.
    :return: how many files there were and are, their bytes, and their rows, which stay the same.
    """
    from muster_ingest.compacting import Compacting

    return Compacting(before[0], data, large_bytes=large_mib << 20).run()
