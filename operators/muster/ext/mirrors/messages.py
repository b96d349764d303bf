"""The messages between two store services, or a store and a service, one of which is the mirror of the other.

A version's documents are one line of JSON and then the bytes of RECORD.json and MANIFEST. Its files are sent as
pieces: a line of JSON each, and the bytes of a piece that is not in the version before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import BinaryIO

from muster.core import wire
from muster.core.errors import SpecError
from muster.core.names import check_volume
from muster.core.wire import parsed
from muster.ext.mirrors.base import Holding, VersionDocuments
from muster.volumes.commit_records import Place

CHUNK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a file.

    :param at: where it begins. :param first: where it begins in the file of the same path in the version before; None:
        its bytes follow.
    """

    path: str
    at: int
    size: int
    first: int | None = None

    def __post_init__(self) -> None:
        if min(self.at, self.size, self.first or 0) < 0:
            raise SpecError(f"a piece of {self.path!r:.120} begins at {self.at} and has {self.size} bytes")

    def line(self) -> bytes:
        """Return its line."""
        return json.dumps(wire.written(self)).encode() + b"\n"


def pieces(body: BinaryIO) -> Iterator[Piece]:
    """Yield the pieces of a body; the caller reads the bytes of each before the next. :raises SpecError: it is torn."""
    while line := body.readline(_LONGEST_LINE_BYTES):
        yield wire.build(Piece, document_of(line))


def wire_of(documents: VersionDocuments) -> bytes:
    """Return a version's documents as bytes."""
    head = {
        "volume": documents.place[0],
        "number": documents.place[1],
        "at": documents.at,
        "record": len(documents.record),
        "manifest": len(documents.manifest),
        **wire.written(documents.holding),
    }
    return b"\n".join([json.dumps(head).encode(), documents.record + documents.manifest])


def documents_of(data: bytes) -> VersionDocuments:
    """Return the documents that :func:`wire_of` wrote. :raises SpecError: they are torn."""
    line, _, rest = data.partition(b"\n")
    head = document_of(line)
    cut = _number(head, "record")
    if len(rest) != cut + _number(head, "manifest"):
        raise SpecError("a version's documents were cut off on their way")
    place = place_of(head)
    return VersionDocuments(place, rest[cut:], rest[:cut], float(head.get("at", 0.0)), holding_of(head))  # type: ignore[arg-type]


def place_of(document: Mapping[str, object]) -> Place:
    """Return the place that a message names."""
    return check_volume(str(document.get("volume", ""))), _number(document, "number")


def holding_of(document: Mapping[str, object]) -> Holding:
    """Return the holding that a message has beside the place."""
    return wire.build(
        Holding, {each.name: document[each.name] for each in fields(Holding) if each.name in document}
    )


def listing(owner: str, holdings: Mapping[Place, Holding]) -> Iterator[bytes]:
    """Yield the lines of a listing: the owner, and then each version."""
    yield json.dumps({"owner": owner}).encode() + b"\n"
    for (volume, number), holding in holdings.items():
        yield json.dumps({"volume": volume, "number": number, **wire.written(holding)}).encode() + b"\n"


def listed(lines: Iterable[bytes]) -> tuple[str, dict[Place, Holding]]:
    """Return owner and versions of a listing."""
    owner, found = "", dict[Place, Holding]()
    for line in lines:
        document = document_of(line)
        if "owner" in document:
            owner = str(document["owner"])
        else:
            found[place_of(document)] = holding_of(document)
    return owner, found


def document_of(data: bytes) -> dict[str, object]:
    """Return a message that is one object of JSON. :raises SpecError: it is none."""
    return parsed(data, what=f"message of a mirror {data!r:.120}")


def _number(document: Mapping[str, object], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or value < 0:
        raise SpecError(f"{name} is {value!r:.60} in a message of a mirror: need a whole number, 0 or more")
    return value
