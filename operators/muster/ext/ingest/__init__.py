"""Versions of data that comes from elsewhere: files of object stores, rows of databases, messages of topics."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    operators={
        "CompactOperator": "muster.ext.ingest.compact",
        "IngestOperator": "muster.ext.ingest.operator",
        "TopicTrigger": "muster.ext.ingest.topic",
    },
    triggers={"TopicTrigger": "muster.ext.ingest.topic"},
)
