"""Makes a version of a topic: the files of the last one, and in new ones the messages from its offsets to where the topic ends now.

The offsets up to which a version goes lie in its listing, so rows and offsets are one commit. An attempt begins where the last version ends:
what one before it has written is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster_ingest import listing
from muster_ingest.avro import Registry
from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError
from muster_ingest.listing import CARRIED, LISTING, STREAM, next_number
from muster_ingest.rows import APART, File, Parquet, Rows, known_columns
from muster_ingest.topic import Span, Topic
from muster_ingest.values import values_of


@dataclass
class _State:
    """How far the last version goes, and what it holds."""

    files: list[File] = field(default_factory=list)
    topic: str = ""
    topic_id: str = ""
    values: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    unreadable: int = 0
    lost: int = 0


def read_topic(
    base: Path | None, target: Path, what: Mapping[str, Any], connection: Connection
) -> dict[str, float]:
    """Do it; `target` stays empty where there is nothing new.

    :raises IngestError: the topic, a message or the last version is not as it has to be. :raises SourceAway: the broker does not answer.
    """
    listing.empty(target)
    topic = Topic(what["source"], connection, float(what.get("patience_seconds") or 300.0))
    state = _state(base, what["source"])
    ingest = _Ingest(topic, state, what)
    values = values_of(what["values"], lambda: Registry(connection, topic.patience.ask))
    rows = Rows(
        what["source"],
        values,
        _known(base, state),
        unreadable=what["unreadable"],
        good=Parquet(target, next_number(state.files)),
        apart=Parquet(target, next_number(state.files, f"{APART}/"), APART),
    )
    offsets = ingest.read(rows)
    new = rows.close()
    told = {
        "rows": rows.count,
        "unreadable": rows.unreadable,
        "lost": ingest.lost,
        "behind": ingest.behind(offsets),
        "files": len(state.files) + len(new),
        "bytes": sum(size for _, size, _ in [*state.files, *new]),
        "fetched": len(new),
        "kept": len(state.files),
        "gone": 0,
    }
    if not rows.count and not rows.unreadable and not ingest.goes_on(offsets):
        if base is None:
            raise IngestError(
                f"{topic.source} holds no message: nothing is committed. Run again when the first one has come"
            )
        print(f"{topic.source} holds nothing new", flush=True)
        return told
    stream = {
        "topic": topic.name,
        "topic_id": ingest.topic_id,
        "values": what["values"],
        # A broker that is behind may not know all partitions yet: what was read of the others stays known.
        "offsets": {
            str(partition): offset for partition, offset in sorted((state.offsets | offsets).items())
        },
        "rows": state.rows + rows.count,
        "unreadable": state.unreadable + rows.unreadable,
        "lost": state.lost + ingest.lost,
    }
    lines = [listing.line(*each) for each in [*state.files, *new]]
    first = listing.first_line({"url": what["source"]}, **{STREAM: stream})
    (target / LISTING).write_text(first + "".join(lines), encoding="utf-8")
    if base is not None:
        (target / CARRIED).write_text("".join(f"{path}\n" for path, _, _ in state.files), encoding="utf-8")
    return told


class _Ingest:
    """From where to where each partition is read."""

    def __init__(self, topic: Topic, state: _State, what: Mapping[str, Any]) -> None:
        self._topic, self._most, self._known = topic, what.get("most"), state.offsets
        self.topic_id, partitions = topic.look()
        if state.topic_id and self.topic_id != state.topic_id:
            raise IngestError(
                f"{topic.source}: the topic was made anew (its id was {state.topic_id}, it is {self.topic_id}), so the last version's offsets "
                "say nothing about it: ingest it into another volume or partition"
            )
        if state.values not in ("", what["values"]):
            raise IngestError(
                f"{topic.source}: the last version was read with values={state.values!r}, this ingest has {what['values']!r}: ingest it into "
                "another volume or partition"
            )
        oldest, high = topic.oldest(partitions), topic.ends(partitions)
        self._ends = high
        if what.get("until"):
            since = topic.since(partitions, _millis(what["until"]))
            self._ends = {
                each: high[each] if since[each] < 0 else min(since[each], high[each]) for each in partitions
            }
        self._first = {each: state.offsets.get(each, oldest[each]) for each in partitions}
        self._refuse_truncated(high)
        self.lost = self._lost(oldest, what["lost"])

    def read(self, rows: Rows) -> dict[int, int]:
        """Read as much as is to be read, and return the offsets behind it."""
        at = dict(self._first)
        while any(at[each] < self._ends[each] for each in at):
            left = None if self._most is None else self._most - rows.taken
            if left is not None and left <= 0:
                break
            spans = _shared(at, self._ends, left)
            for message in self._topic.read(spans):
                rows.take(message)
            at = {each: span.at for each, span in spans.items()}
        return at

    def goes_on(self, offsets: Mapping[int, int]) -> bool:
        """Whether offsets without a message have to be kept: unread by a version, they would count as lost once the broker drops them."""
        return bool(self._known) and (
            self.lost > 0 or any(offsets[each] > self._first[each] for each in offsets)
        )

    def behind(self, offsets: Mapping[int, int]) -> int:
        """Return how many offsets are left before the one at which this ingest was to end."""
        return sum(max(0, self._ends[each] - offsets[each]) for each in offsets)

    def _lost(self, oldest: Mapping[int, int], way: str) -> int:
        """Return how many offsets the broker dropped unread, and go on behind them. :raises IngestError: that is not wanted."""
        gone = {each: oldest[each] - first for each, first in self._first.items() if first < oldest[each]}
        if gone and way == "stop":
            partition = next(iter(gone))
            raise IngestError(
                f"{self._topic.source}: the broker dropped {sum(gone.values()):,} offsets that no version holds; in partition {partition} the last "
                f"version ends at offset {self._first[partition]:,}, and the oldest message is at {oldest[partition]:,}. Nothing is committed; "
                "lost='skip' counts them and goes on"
            )
        self._first |= {each: oldest[each] for each in gone}
        return sum(gone.values())

    def _refuse_truncated(self, high: Mapping[int, int]) -> None:
        for partition, first in self._first.items():
            if first > high[partition]:
                raise IngestError(
                    f"{self._topic.source}: partition {partition} ends at offset {high[partition]:,}, and the last version at {first:,}: the broker "
                    "lost what it had. Ingest it into another volume or partition"
                )


def _shared(at: Mapping[int, int], ends: Mapping[int, int], most: int | None) -> dict[int, Span]:
    """Return what is read of each partition: all or, of `most` messages together, its share at most."""
    spans = {each: Span(at[each], max(at[each], ends[each])) for each in at}
    if most is not None:
        by_size = sorted(spans.values(), key=lambda span: span.end - span.at)
        for rank, span in enumerate(by_size):
            # One each where there are fewer than partitions: the smallest go first, and are done sooner.
            span.rows = min(span.end - span.at, max(1, most // (len(spans) - rank)), most)
            most -= span.rows
    return spans


def _state(base: Path | None, source: str) -> _State:
    """Read how far the last version goes. :raises IngestError: it is none of this topic."""
    if base is None:
        return _State()
    name = source.partition("://")[2].partition("/")[2]
    listed = base / LISTING
    head: dict[str, Any] = {}
    if listed.is_file():
        with listed.open(encoding="utf-8") as file:
            head = listing.head(file.readline())
    said = head.get(STREAM) or {}
    if said.get("topic") != name:
        of = head.get("source", {}).get("url")
        raise IngestError(
            f"{source}: the last version of the volume is {f'of {of}' if of else 'of no ingest'}, and would be left out of the new one: ingest the "
            "topic into another volume or partition"
        )
    return _State(
        files=list(listing.read(listed, head["source"])),
        topic=name,
        topic_id=said["topic_id"],
        values=said["values"],
        offsets={int(partition): offset for partition, offset in said["offsets"].items()},
        rows=said["rows"],
        unreadable=said["unreadable"],
        lost=said["lost"],
    )


def _known(base: Path | None, state: _State) -> pa.StructType:
    """Return the columns of the newest file: each is written with all that were known."""
    paths = [path for path, _, _ in state.files if "/" not in path]
    return known_columns(base / paths[-1]) if base is not None and paths else pa.struct([])


def _millis(until: str) -> int:
    time = datetime.fromisoformat(until)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
