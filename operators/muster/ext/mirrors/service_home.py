"""A store service as a home of versions: what a mirror reads from, and writes to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from muster.core import wire
from muster.core.errors import Corrupt, MusterError, NotFound, Unavailable
from muster.ext.mirrors.base import (
    Holding,
    Home,
    KeepsCode,
    MirrorBusy,
    Tell,
    VersionDocuments,
    read_at_source,
)
from muster.ext.mirrors.delta import LEAST_BYTES, Stretch, delta
from muster.ext.mirrors.messages import Piece, document_of, documents_of, listed, wire_of
from muster.volumes.commit_records import Place
from muster.volumes.manifest import Entry
from muster.volumes.service.archives import in_chunks
from muster.volumes.service.client import ServiceStore

_REQUEST_BYTES = 64 << 20
_REQUEST_PIECES = 2_000
_RENEW_SECONDS = 30.0
_TRIES = 4


class _Over(Exception):
    """The service does not know the session any more: it has restarted, or nothing was asked for two minutes."""


class ServiceHome(KeepsCode):
    """The versions of a store service. A large file that has changed is sent as what differs from the one before.

    :param owned: whether to close the store's connections with it.
    """

    def __init__(self, store: ServiceStore, *, owned: bool = False) -> None:
        super().__init__(store)
        self._owned = owned
        self._store, self._connection = store, store.connection
        self._session = f"/v1/mirror/{os.urandom(8).hex()}"
        self._asked = time.monotonic()
        self._received: dict[Place, tuple[Home, VersionDocuments | None]] = {}

    @property
    def where(self) -> str:
        """The service's address."""
        return self._store.url

    def owner(self) -> str:
        """Return the uuid of the store that gave the versions their numbers."""
        answer = self._connection.request("GET", "/v1/mirror", query={"only": "owner"})
        return listed(answer.content.splitlines())[0]

    def holdings(self, volumes: Collection[str] = ()) -> dict[Place, Holding]:
        """Return every committed version."""
        query = {"volumes": ",".join(volumes)} if volumes else {}
        answer = self._connection.request("GET", "/v1/mirror", query=query, slow=True)
        return listed(answer.content.splitlines())[1]

    def documents(self, place: Place) -> VersionDocuments:
        """Return the documents of a version."""
        query = {"volume": place[0], "number": place[1]}
        return documents_of(self._connection.request("GET", "/v1/mirror/documents", query=query).content)

    def local(self, place: Place) -> Path | None:  # noqa: ARG002 - the protocol's
        """Return None: its files are elsewhere."""
        return None

    def read(
        self,
        documents: VersionDocuments,
        entries: Sequence[Entry],
        *,
        first: int = 0,
        size: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of these files; a broken connection is gone on with."""
        before, _ = documents.entries.span(entries[0].path)
        end = before + (sum(entry.size_bytes for entry in entries) if size is None else first + size)
        return self._connection.stretch("/v1/data", first=before + first, end=end, address=documents.address)

    def code(self, digest: str) -> Path | None:
        """Return the folder of a code snapshot, fetched."""
        try:
            return self._store.code(digest)
        except NotFound:
            return None

    def own(self, owner: str, *, adopt: bool = False) -> None:
        """Make this the mirror of a store, or that store."""
        asked = json.dumps({"owner": owner, "adopt": adopt}).encode()
        self._connection.request("POST", "/v1/mirror/own", content=asked, slow=True)

    def free(self) -> None:
        """Free the space of what was deleted there at once."""
        self._connection.request("POST", "/v1/mirror/free", slow=True)

    def receive(
        self, documents: VersionDocuments, source: Home, *, base: VersionDocuments | None, tell: Tell
    ) -> None:
        """Send what is missing of a version."""
        self._received[documents.place] = (source, base)
        try:
            self._send(documents, source, base, tell)
        except Corrupt:
            if base is None or base.place == documents.place:  # a repair keeps only what it has read
                raise
            self._send(documents, source, None, tell)  # the version before may be damaged there

    def _send(
        self, documents: VersionDocuments, source: Home, base: VersionDocuments | None, tell: Tell
    ) -> None:
        for _ in range(_TRIES):
            try:
                return self._send_once(documents, source, base, tell)
            except _Over:
                continue
        raise self._restarting(f"it was sent {documents.address}")

    def _send_once(
        self, documents: VersionDocuments, source: Home, base: VersionDocuments | None, tell: Tell
    ) -> None:
        waiting, size = list[Piece](), 0

        def beat() -> None:
            if time.monotonic() - self._asked > _RENEW_SECONDS:
                self._put(documents, source, [], tell)  # the session goes on

        missing, has_base = self._begin(documents, base)
        before = base if has_base and base is not None and base.place != documents.place else None
        for piece in _pieces_of(documents, source, before, missing, beat=beat):
            waiting.append(piece)
            size += 0 if piece.first is not None else piece.size
            if size >= _REQUEST_BYTES or len(waiting) >= _REQUEST_PIECES:
                self._put(documents, source, waiting, tell)
                waiting, size = [], 0
        if waiting:
            self._put(documents, source, waiting, tell)

    def _begin(
        self, documents: VersionDocuments, base: VersionDocuments | None
    ) -> tuple[dict[str, int], bool]:
        """Return the files that are missing, with how many bytes of each are there; and whether the base is.

        :raises Busy: another mirror brings the version.
        """
        query = {} if base is None else {"base": base.place[1]}
        answer = self.ask("PUT", "drafts", query=query, content=wire_of(documents))
        if answer.get("busy"):
            raise MirrorBusy(
                f"{documents.address} is brought to {self.where} by another mirror now: it is waited for"
            )
        missing = answer.get("missing")
        parts = {str(path): int(size) for path, size in missing.items()} if isinstance(missing, dict) else {}
        return parts, bool(answer.get("base"))

    def _put(self, documents: VersionDocuments, source: Home, pieces: Sequence[Piece], tell: Tell) -> None:
        query = {"volume": documents.place[0], "number": documents.place[1]}

        def body() -> Iterator[bytes]:
            for piece in pieces:
                yield piece.line()
                if piece.first is None and piece.size:
                    entry = documents.entries[piece.path]
                    yield from source.read(documents, [entry], first=piece.at, size=piece.size)

        if self.ask("PUT", "pieces", query=query, content=lambda: in_chunks(body())).get("over"):
            raise _Over
        tell(sum(piece.size for piece in pieces if piece.first is None))

    def publish(self, versions: Sequence[VersionDocuments]) -> None:
        """Make received versions visible."""
        left = list(versions)
        for _ in range(_TRIES):
            answer = self.ask("POST", "publish", content=_places(left))
            over = answer.get("over") or []
            assert isinstance(over, list)
            again = {(str(each["volume"]), int(each["number"])) for each in over}
            left = [documents for documents in left if documents.place in again]
            if not left:
                break
            for documents in left:
                source, base = self._received[documents.place]
                self._send(documents, source, base, lambda _: None)
        for documents in versions:
            self._received.pop(documents.place, None)
        if left:
            raise self._restarting("versions were made visible")

    def _restarting(self, meanwhile: str) -> Unavailable:
        return Unavailable(
            f"{self.where} has ended {_TRIES} sessions while {meanwhile}: it restarts, or hears nothing for two minutes; begin "
            "again, what has arrived is kept"
        )

    def mark(self, place: Place, holding: Holding) -> None:
        """Set the marks of a version."""
        asked = {"volume": place[0], "number": place[1], **wire.written(holding)}
        self._connection.request("POST", "/v1/mirror/mark", content=json.dumps(asked).encode())

    def verify(self, documents: VersionDocuments, *, drop: bool = False) -> list[str]:
        """Have a version's files read again, where they are."""
        asked = self.ask("POST", "verify", query={"drop": int(drop)}, content=_places([documents]))
        found = asked.get(documents.address, [])
        return list(map(str, found)) if isinstance(found, list) else []

    def close(self) -> None:
        """End the session; drafts stay."""
        with suppress(MusterError):  # it is away, or of an earlier release: its session ends by itself
            self._connection.request("DELETE", self._session)
        if self._owned:
            self._store.close()

    def ask(
        self,
        verb: str,
        call: str,
        *,
        query: Mapping[str, object] | None = None,
        content: Callable[[], Iterator[bytes]] | bytes,
    ) -> dict[str, object]:
        """Return the answer to one request of the session, which goes on by it."""
        answer = self._connection.request(
            verb, f"{self._session}/{call}", query=query, content=content, slow=True
        )
        self._asked = time.monotonic()
        return document_of(answer.content)


def _pieces_of(
    documents: VersionDocuments,
    source: Home,
    base: VersionDocuments | None,
    missing: Mapping[str, int],
    *,
    beat: Callable[[], None] = lambda: None,
) -> Iterator[Piece]:
    """Yield the pieces of the missing files; of a large file that the base has too, only what differs is new.

    :param beat: called now and then, while files are read.
    """
    folder = source.local(documents.place)
    before = source.local(base.place) if base is not None else None
    for path, there in missing.items():
        entry = documents.entries[path]
        stretches: Iterator[Stretch] = iter([Stretch(0, entry.size_bytes, None)])
        old = base.entries.get(path) if base is not None else None
        large = old is not None and min(entry.size_bytes, old.size_bytes) >= LEAST_BYTES
        if large and folder is not None and before is not None:
            stretches = _differences(f"{before}/{path}", f"{folder}/{path}", beat)
        yield from _cut(path, stretches, there)


def _differences(before: str, now: str, beat: Callable[[], None]) -> Iterator[Stretch]:
    """Yield what differs. :raises Corrupt: one of the two files is gone, or its disk fails."""
    with read_at_source(before), read_at_source(now):
        yield from delta(before, now, beat=beat)


def _cut(path: str, stretches: Iterator[Stretch], there: int) -> Iterator[Piece]:
    """Yield stretches as pieces of at most a request's bytes, without what is there."""
    for each in stretches:
        begin, end = max(each.at, there), each.at + each.size
        if begin == end == 0:
            yield Piece(path=path, at=0, size=0)
        while begin < end:
            size = min(end - begin, _REQUEST_BYTES)
            yield Piece(
                path=path,
                at=begin,
                size=size,
                first=None if each.first is None else each.first + begin - each.at,
            )
            begin += size


def _places(versions: Sequence[VersionDocuments]) -> bytes:
    return json.dumps(
        {"places": [{"volume": each.place[0], "number": each.place[1]} for each in versions]}
    ).encode()
