"""Runs in the image ingest, as ``drive.py`` does, with a topic that ends before it was told to: one that was made anew meanwhile."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import muster_ingest.topic
from muster_ingest import ingest
from muster_ingest.topic import Topic

SILENT_SECONDS = 0.2
ends = Topic.ends


def later(topic: Topic, partitions: list[int]) -> dict[int, int]:
    """Tell of five messages more than there are."""
    return {partition: end + 5 for partition, end in ends(topic, partitions).items()}


def main(before: str, target: str, what: str) -> None:
    """Ingest, and say how it ended."""
    Topic.ends = later  # type: ignore[method-assign]
    muster_ingest.topic.SILENT_SECONDS = SILENT_SECONDS
    try:
        told = ingest([Path(before)] if before else [], Path(target), what=json.loads(what))
    except Exception as error:  # whatever it is, the test looks at it
        told = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told))


main(*sys.argv[1:])
