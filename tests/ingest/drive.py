"""Runs in the image ingest: one ingest, whose result or error is the last line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from muster_ingest import ingest


def told(before: str, target: str, what: str) -> dict[str, Any]:
    """Ingest, and return how it ended."""
    try:
        return dict(ingest([Path(before)] if before else [], Path(target), what=json.loads(what)))
    except Exception as error:  # whatever it is, the test looks at it
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    print(json.dumps(told(*sys.argv[1:])))
