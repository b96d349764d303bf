"""Runs in the image ingest: one ingest, whose result or error is the last line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster_ingest import ingest


def main(before: str, target: str, what: str) -> None:
    """Ingest, and say how it ended."""
    try:
        told = ingest([Path(before)] if before else [], Path(target), what=json.loads(what))
    except Exception as error:  # whatever it is, the test looks at it
        told = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told))


main(*sys.argv[1:])
