"""Runs in the image ingest, as ``drive.py`` does, with a client that is what librdkafka's can be where a broker goes and comes back.

Its first answer on offsets holds none, and its first consumer hears nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import muster_ingest.topic
from confluent_kafka import OFFSET_INVALID, Consumer
from confluent_kafka.admin import AdminClient
from drive import told

SILENT_SECONDS = 1.0
asked, made = 0, 0


class Forgetful(AdminClient):
    """Tells no offset at first."""

    def list_offsets(self, places: Any, **how: Any) -> Any:
        global asked
        asked += 1
        if asked > 1:
            return super().list_offsets(places, **how)
        answers: dict[Any, Future[Any]] = {place: Future() for place in places}
        for future in answers.values():
            future.set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return answers


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


muster_ingest.topic.AdminClient, muster_ingest.topic.Consumer = Forgetful, Deaf
muster_ingest.topic.SILENT_SECONDS = SILENT_SECONDS
ended = told(*sys.argv[1:])
print(json.dumps({"asked": asked, "made": made, **ended}))
