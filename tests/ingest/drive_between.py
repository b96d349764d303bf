"""Runs in the image ingest, as ``drive.py`` does, and waits for a line between two questions to the broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster_ingest import ingest
from muster_ingest.topic import Topic

ends = Topic.ends


def waits(topic: Topic, partitions: list[int]) -> dict[int, int]:
    """Say that the oldest messages are known, and wait."""
    print("between", flush=True)
    sys.stdin.readline()
    return ends(topic, partitions)


def main(before: str, target: str, what: str) -> None:
    """Ingest, and say how it ended."""
    Topic.ends = waits  # type: ignore[method-assign]
    print(json.dumps(ingest([Path(before)] if before else [], Path(target), what=json.loads(what))))


main(*sys.argv[1:])
