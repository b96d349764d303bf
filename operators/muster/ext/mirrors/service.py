"""Calls by which a store service is a mirror, or is mirrored: what it has, a version's documents, and pieces of its files.

Versions arrive in a session, which is one run of ``muster volumes mirror`` or ``restore``. It holds the locks of its
drafts. A session without a request for :data:`IDLE_SECONDS` is over once another one asks, and so is each one when the
service restarts: its drafts stay, and are gone on with. A request without pieces does no more than have it go on.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from muster.core.address import pinned
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.names import check_request, check_volume
from muster.ext.mirrors.base import MirrorBusy, VersionDocuments
from muster.ext.mirrors.drafts import Filling
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.messages import (
    CHUNK_BYTES,
    Piece,
    document_of,
    documents_of,
    holding_of,
    listing,
    pieces,
    place_of,
    wire_of,
)
from muster.volumes.commit_records import Place
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.service.calls import LIMIT_JSON_BYTES, Bind, Call, Served, route

IDLE_SECONDS = 120.0


@dataclass
class Arrival:
    """A version that arrives: its documents and files, and the folder of the version before it."""

    documents: VersionDocuments
    filling: Filling | None
    before: Path | None


@dataclass
class Session:
    """One run of a mirror. Its requests take turns: one that was sent again may find the first still at work."""

    home: FolderHome
    arrivals: dict[Place, Arrival] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)
    busy: int = 0
    asked: float = field(default_factory=time.monotonic)


class Sessions:
    """The sessions of one service."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}

    @contextmanager
    def asked(self, name: str) -> Iterator[Session]:
        """Lend a session for one request, a new one where it is not known."""
        check_request(name)
        with self._lock:
            self._end_idle(but=name)
            if name not in self._open:
                self._open[name] = Session(FolderHome(self._store))
            session = self._open[name]
            session.busy += 1
        try:
            with session.turn:
                yield session
        finally:
            with self._lock:
                session.busy -= 1
                session.asked = time.monotonic()

    def end(self, name: str) -> None:
        """End a session: its drafts stay."""
        with self._lock:
            if (session := self._open.pop(check_request(name), None)) is not None:
                session.home.close()

    def _end_idle(self, *, but: str) -> None:
        for name, session in list(self._open.items()):
            if name != but and not session.busy and time.monotonic() - session.asked > IDLE_SECONDS:
                del self._open[name]
                session.home.close()


def routes(served: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    calls = Calls(served.store)
    at, session = "/v1/mirror", "/v1/mirror/{session}"
    yield route("GET", at, calls.listing, turns="working")
    yield route("GET", f"{at}/documents", calls.documents)
    yield route("POST", f"{at}/own", calls.own, turns="working", text=LIMIT_JSON_BYTES)
    yield route("POST", f"{at}/mark", calls.mark, text=LIMIT_JSON_BYTES)
    yield route("POST", f"{at}/free", calls.free, turns="working")
    yield route("PUT", f"{session}/drafts", calls.begin, turns="working")
    yield route("PUT", f"{session}/pieces", calls.receive, turns="working")
    yield route("POST", f"{session}/publish", calls.publish, turns="working", text=LIMIT_JSON_BYTES)
    yield route("POST", f"{session}/verify", calls.verify, turns="working", text=LIMIT_JSON_BYTES)
    yield route("DELETE", session, calls.end)


class Calls:
    """The calls of one service."""

    def __init__(self, store: FolderStore) -> None:
        self._home = FolderHome(store)
        self._sessions = Sessions(store)

    def listing(self, call: Call) -> Response:
        """Send every version with its digest and marks, or only whose they are."""
        if call.query("only", "") == "owner":
            return Response(b"".join(listing(self._home.owner(), {})), media_type="application/x-ndjson")
        asked = [check_volume(name) for name in call.query("volumes", "").split(",") if name]
        found = listing(self._home.owner(), self._home.holdings(asked))
        return StreamingResponse(iter([b"".join(found)]), media_type="application/x-ndjson")

    def documents(self, call: Call) -> Response:
        """Send the documents of a version."""
        place = check_volume(call.query("volume")), call.query_number("number")
        return Response(wire_of(self._home.documents(place)), media_type="application/octet-stream")

    def own(self, call: Call) -> None:
        """Make this store the mirror of another one, or that one itself."""
        asked = document_of(call.text)
        self._home.own(str(asked.get("owner", "")), adopt=bool(asked.get("adopt", False)))

    def free(self, call: Call) -> None:  # noqa: ARG002 - it is about the whole mirror
        """Free the space of what was deleted."""
        self._home.free()

    def mark(self, call: Call) -> None:
        """Set the marks of a version."""
        asked = document_of(call.text)
        self._home.mark(place_of(asked), holding_of(asked))

    def begin(self, call: Call) -> Response:
        """Begin a version, or go on with it; answer which files are missing, and how much of each is there."""
        documents = documents_of(call.body(limit_bytes=None).read())
        documents.origin  # noqa: B018 - raises where it is another version's
        number, place = call.query_number("base", 0), documents.place
        with self._sessions.asked(call.part("session")) as session:
            base = self._base(session, documents, number) if number else None
            try:
                with translated(f"receive {documents.address}"):
                    filling = session.home.begin(documents, base)
            except MirrorBusy:
                return _json({"busy": True})
            before = session.home.folder(base.place) if base is not None else None
            arrival = session.arrivals[place] = Arrival(documents, filling, before)
            _complete(session, arrival)
            missing = {} if filling is None else filling.missing
            parts = {path: filling.part_bytes(each) for path, each in missing.items()} if filling else {}
            return _json({"missing": parts, "base": base is not None})

    def _base(self, session: Session, documents: VersionDocuments, number: int) -> VersionDocuments | None:
        """Return the version before; None where it is not here, or was not complete when its session ended.

        A repair names the version itself, whose documents here may be what is damaged.
        """
        place = documents.place[0], number
        if place == documents.place:
            return documents
        if (known := session.arrivals.get(place)) is not None:
            return known.documents
        try:
            return self._home.documents(place)
        except (NotFound, Corrupt):
            return None

    def receive(self, call: Call) -> Response:
        """Take pieces of a version's files; answer whether the version is to be begun again."""
        place = check_volume(call.query("volume")), call.query_number("number")
        body = call.body(limit_bytes=None)
        with self._sessions.asked(call.part("session")) as session:
            arrival = session.arrivals.get(place)
            if arrival is None or arrival.filling is None:
                return _json({"over": True})
            with translated(f"receive {arrival.documents.address}"):
                for piece in pieces(body):
                    _take(arrival, arrival.filling, piece, body)
                _complete(session, arrival)
        return _json({})

    def publish(self, call: Call) -> Response:
        """Make versions visible that have all their files; answer those that are to be begun again."""
        with self._sessions.asked(call.part("session")) as session:
            arrivals, over = list[Arrival](), list[dict[str, object]]()
            for place in _places(call):
                if (arrival := session.arrivals.get(place)) is not None:
                    arrivals.append(arrival)
                elif not self._is_here(place):  # else an earlier try of this request has done it
                    over.append({"volume": place[0], "number": place[1]})
            session.home.publish([arrival.documents for arrival in arrivals])
            for arrival in arrivals:
                del session.arrivals[arrival.documents.place]
        return _json({"over": over})

    def _is_here(self, place: Place) -> bool:
        try:
            return bool(self._home.documents(place).holding.digest)
        except (NotFound, Corrupt):
            return False

    def verify(self, call: Call) -> Response:
        """Read versions again; answer what is wrong with each. With `drop` these do not count as there any more."""
        drop = bool(call.query_number("drop", 0))
        with self._sessions.asked(call.part("session")) as session:
            wrong = {}
            for place in _places(call):
                try:
                    found = session.home.verify(self._home.documents(place), drop=drop)
                except Corrupt as error:
                    found = [str(error)]
                    if drop:
                        session.home.drop(place)
                if found:
                    wrong[pinned(*place)] = found
        return _json(wrong)

    def end(self, call: Call) -> None:
        """End a session."""
        self._sessions.end(call.part("session"))


def _json(document: object) -> Response:
    return Response(json.dumps(document), media_type="application/json")


def _complete(session: Session, arrival: Arrival) -> None:
    """Complete a draft that has all its files: later versions may share them."""
    if arrival.filling is not None and arrival.filling.whole:
        session.home.end(arrival.documents, arrival.filling)


def _places(call: Call) -> list[Place]:
    asked = document_of(call.text).get("places")
    if not isinstance(asked, list):
        raise SpecError("the request names no places")
    return [place_of(each) for each in asked]


def _take(arrival: Arrival, filling: Filling, piece: Piece, body: BinaryIO) -> None:
    """Append one piece to its file, but what is there of it already."""
    entry = filling.entries.get(piece.path)
    if entry is None or piece.at + piece.size > entry.size_bytes:
        raise SpecError(f"{piece.path!r:.120} is no file of {arrival.documents.address}, or is shorter there")
    there = entry.size_bytes if piece.path in filling.frozen else filling.part_bytes(entry)
    if there < piece.at:
        raise SpecError(f"{piece.path!r:.120} has {there} bytes, and a piece from {piece.at} on was sent")
    skipped = min(there - piece.at, piece.size)
    if piece.first is None:
        deque(_chunks(body, skipped), maxlen=0)
        chunks = _chunks(body, piece.size - skipped)
    else:
        chunks = _from_before(arrival, piece, skipped)
    if skipped < piece.size or (entry.size_bytes == there == 0 and piece.path not in filling.frozen):
        filling.write(entry, chunks, lambda _: None)


def _from_before(arrival: Arrival, piece: Piece, skipped: int) -> Iterator[bytes]:
    if arrival.before is None or piece.first is None:
        raise SpecError(f"a piece of {piece.path!r:.120} is one of the version before, and none was named")
    with (arrival.before / "data" / piece.path).open("rb") as file:
        file.seek(piece.first + skipped)
        yield from _chunks(file, piece.size - skipped)


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = file.read(min(CHUNK_BYTES, size))
        if not chunk:
            raise SpecError("a piece of a file was cut off on its way")
        size -= len(chunk)
        yield chunk
