"""Runs in the image ingest, as ``drive.py`` does, with a client that is what librdkafka's can be where a broker goes and comes back.

Its first answer on offsets holds none, and its first consumer hears nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import muster_ingest.topic
from confluent_kafka import OFFSET_INVALID, Consumer
from confluent_kafka.admin import AdminClient
from muster_ingest import ingest

SILENT_SECONDS = 1.0
asked, made = 0, 0


class Forgetful(AdminClient):
    """Tells no offset at first."""

    def list_offsets(self, places: Any, **how: Any) -> Any:
        global asked
        asked += 1
        if asked > 1:
            return super().list_offsets(places, **how)
        told: dict[Any, Future[Any]] = {place: Future() for place in places}
        for future in told.values():
            future.set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return told


class Deaf(Consumer):
    """Hears nothing, if it is the first one."""

    def __init__(self, *given: Any, **how: Any) -> None:
        global made
        made += 1
        self._deaf = made == 1
        super().__init__(*given, **how)

    def consume(self, most: int, seconds: float) -> Any:
        if not self._deaf:
            return super().consume(most, seconds)
        threading.Event().wait(seconds)
        return []


def main(before: str, target: str, what: str) -> None:
    """Ingest, and say how it ended."""
    muster_ingest.topic.AdminClient, muster_ingest.topic.Consumer = Forgetful, Deaf
    muster_ingest.topic.SILENT_SECONDS = SILENT_SECONDS
    told = ingest([Path(before)] if before else [], Path(target), what=json.loads(what))
    print(json.dumps({"asked": asked, "made": made, **told}))


main(*sys.argv[1:])
