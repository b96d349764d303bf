"""Runs in the image ingest: takes messages of JSON as an ingest of a topic does, without a broker. ``drive_rows.py FOLDER UNREADABLE``.

Each line of the input is a message of partition 3. The last line of output says how it ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from muster_ingest.rows import APART, Message, Parquet, Rows
from muster_ingest.values import Json


def told(folder: str, unreadable: str) -> dict[str, Any]:
    """Write the rows, and return how it ended."""
    good, apart = Parquet(Path(folder), 0), Parquet(Path(folder), 0, APART)
    rows = Rows("kafka://events/clicks", Json(), pa.struct([]), unreadable=unreadable, good=good, apart=apart)
    try:
        for offset, line in enumerate(sys.stdin):
            rows.take(Message(3, offset, None, None, line.encode()))
        files = rows.close()
    except Exception as error:  # whatever it is, the test looks at it
        return {"error": type(error).__name__, "message": str(error)}
    return {"files": [path for path, _, _ in files], "rows": rows.count, "unreadable": rows.unreadable}


print(json.dumps(told(*sys.argv[1:])))
