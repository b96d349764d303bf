"""Errors of an ingest. The message names the source and what to do; it holds no credential."""

from __future__ import annotations


class IngestError(Exception):
    """The source cannot be made a version as it is: another try would find the same."""

    muster_advice = "mend what the message names and run again; earlier stages are kept"


class SourceAway(Exception):
    """The source does not answer. Another try goes on from what was fetched."""

    muster_advice = "run again once the source answers; what was fetched is kept"
