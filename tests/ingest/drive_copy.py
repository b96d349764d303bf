"""Runs in the image ingest, given what ``drive.py`` is: sends the folder that is the version before to the source."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from muster_ingest.connection import Connection
from muster_ingest.copying import send


def told(folder: str, _target: str, what: str) -> dict[str, Any]:
    """Send, and return how it ended."""
    given = json.loads(what)
    try:
        return dict(send(Path(folder), given, Connection.of_environment(given)))
    except Exception as error:  # whatever it is, the test looks at it
        return {"error": type(error).__name__, "message": str(error)}


print(json.dumps(told(*sys.argv[1:])))
