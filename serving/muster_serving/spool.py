r"""The form of a spool file: answered requests as they came, until :mod:`muster_serving.collect` makes rows of them.

The first line is JSON: the deployment, the revision, its version and its signature. Then come frames::

    TIME ID KIND JSON_LENGTH BODY_LENGTH ANSWER_JSON_LENGTH ANSWER_LENGTH[ CLIENT]\n BODY ANSWER

TIME is in microseconds since the epoch. KIND says what BODY and ANSWER are: ``v2`` and ``v1`` a request and an answer of
the protocols, ``columns`` two objects of lists by name. A length of JSON is -1 where no binary tensors follow it. CLIENT
is there in files of format 2, which muster before clients had names does not read. A file
that was cut off, by a full disk or a loss of power, ends in a part of a frame, which is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from muster_serving import protocol
from muster_serving.answer import HttpAnswer
from muster_serving.content import JSON_LENGTH
from muster_serving.errors import ServingError
from muster_serving.protocol import Question
from muster_serving.signature import ModelSignature

FORMAT, FORMAT_OF_CLIENTS = 1, 2
SUFFIX = ".spool"
HOUR = "%Y-%m-%dT%H"

_HEAD = re.compile(rb"(\d+) ([\x21-\x7e]+) (v1|v2|columns) (-?\d+) (\d+) (-?\d+) (\d+)(?: ([\x21-\x7e]+))?\Z")
_LONGEST_HEAD = 512
_LONGEST_FIRST_LINE = 16 << 20
_REVISION = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_FIELDS = {"revision": str, "model": str, "signature": dict, "leave_out": list, "hashed": list}

KEEP = ("keep_partitions", "partition_days")
LONGEST_FRAME_BYTES = 64 << 20  # a request and its answer


class SpoolError(ServingError):
    """A spool file cannot be read."""


@dataclass(frozen=True, kw_only=True)
class LoggedRequest:
    """One answered request.

    :param identity: the ``id`` that the client gave it, if any.
    :param inputs: a list of values for each column, row by row, flat where a row has several; `outputs` likewise.
    """

    rows: int
    identity: str | None
    inputs: Mapping[str, list[Any]]
    outputs: Mapping[str, list[Any]]


class Frame(NamedTuple):
    """One request as it lies in a file. `at` is in microseconds since the epoch."""

    at: int
    identity: str
    kind: str
    json_length: int | None
    body: bytes
    answer_length: int | None
    answer: bytes
    client: str | None = None

    @classmethod
    def of(cls, identity: str, at: float, asked: Question, answer: HttpAnswer, *, client: bool) -> Frame:
        """Take a request as it came, and its answer. :param at: in seconds. :param client: whether to keep who asked."""
        length = None
        for name, value in answer.headers:
            if name == JSON_LENGTH:
                length = int(value)
        kind = "v1" if asked.call.verb == ":predict" else "v2"
        whose = asked.client.name if client and asked.client else None
        return cls(int(at * 1e6), identity, kind, asked.json_length, asked.body, length, answer.body, whose)

    @property
    def size(self) -> int:
        """How many bytes request and answer have."""
        return len(self.body) + len(self.answer)

    def request(self, signature: ModelSignature) -> LoggedRequest:
        """Decode it. :raises ServingError: it does not follow the signature."""
        if self.kind == "columns":
            asked, outputs = orjson.loads(self.body), orjson.loads(self.answer)
            return LoggedRequest(
                rows=asked["rows"], identity=asked["id"], inputs=asked["columns"], outputs=outputs
            )
        inputs, rows, identity = protocol.read_request(
            signature, self.body, v1=self.kind == "v1", json_length=self.json_length
        )
        outputs = protocol.read_answer(signature, self.answer, json_length=self.answer_length)
        return LoggedRequest(rows=rows, identity=identity, inputs=inputs, outputs=outputs)

    def with_columns(self, request: LoggedRequest) -> Frame:
        """Return it with these columns alone: others are hidden."""
        asked = {"rows": request.rows, "id": request.identity, "columns": request.inputs}
        body, answer = orjson.dumps(asked), orjson.dumps(request.outputs)
        return Frame(self.at, self.identity, "columns", None, body, None, answer, self.client)

    def written(self) -> bytes:
        """Return it as it lies in a file."""
        return b"%d %b %b %d %d %d %d%b\n%b%b" % (
            self.at,
            self.identity.encode("ascii"),
            self.kind.encode("ascii"),
            _number(self.json_length),
            len(self.body),
            _number(self.answer_length),
            len(self.answer),
            b" " + self.client.encode("ascii") if self.client else b"",
            self.body,
            self.answer,
        )


def hour_of(at: float) -> str:
    """Return the hour of a time in seconds since the epoch, in UTC: ``2026-11-26T07``, a partition's name."""
    return datetime.fromtimestamp(at, timezone.utc).strftime(HOUR)


def end_of(hour: str) -> float:
    """Return when an hour is over, in seconds since the epoch."""
    began = datetime.strptime(hour, HOUR).replace(tzinfo=timezone.utc)
    return (began + timedelta(hours=1)).timestamp()


def about(*, clients: bool) -> dict[str, Any]:
    """Return how a file's head begins. :param clients: whether its requests are kept with the names of their clients."""
    return {"format": FORMAT_OF_CLIENTS, "clients": True} if clients else {"format": FORMAT}


def read_head(path: Path) -> dict[str, Any]:
    """Return the first line of a file. :raises SpoolError: it is none of ours, or of another release's."""
    with path.open("rb") as file:
        line = file.readline(_LONGEST_FIRST_LINE)
    try:
        head: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SpoolError(f"{path}: the first line is no JSON: {error}") from error
    if type(head) is not dict or head.get("format") not in (FORMAT, FORMAT_OF_CLIENTS):
        raise SpoolError(f"{path}: this muster reads spool files of format {FORMAT} and {FORMAT_OF_CLIENTS}")
    for field, kind in _FIELDS.items():
        if type(head.get(field)) is not kind:
            raise SpoolError(f"{path}: {field} is {head.get(field)!r:.60}, expected a {kind.__name__}")
    if not _REVISION.match(head["revision"]):  # files are called by it
        raise SpoolError(f"{path}: revision is {head['revision']!r:.60}, expected a name such as r8")
    return head


def frames(path: Path, *, after: int = 0) -> Iterator[tuple[Frame, int]]:
    """Yield the whole frames of a file, each with the offset after it; what may come after them is part of one.

    :param after: an offset that was yielded before; 0 for the first frame.
    :raises SpoolError: a frame says that it is longer than any that a server writes.
    """
    with path.open("rb") as file:
        file.readline(_LONGEST_FIRST_LINE)
        file.seek(max(after, file.tell()))
        while (match := _HEAD.match(file.readline(_LONGEST_HEAD).rstrip(b"\n"))) is not None:
            at, identity, kind = int(match[1]), match[2].decode("ascii"), match[3].decode("ascii")
            json_length, length, answer_length, answers = (int(match[i]) for i in range(4, 8))
            if length + answers > LONGEST_FRAME_BYTES:
                raise SpoolError(
                    f"{path}: a request of {match[5].decode():.20} and an answer of {match[7].decode():.20} bytes; "
                    f"at most {LONGEST_FRAME_BYTES} are read"
                )
            body, answer = file.read(length), file.read(answers)
            if len(body) < length or len(answer) < answers:
                return
            client = match[8].decode("ascii") if match[8] else None
            lengths = _length(json_length), _length(answer_length)
            yield Frame(at, identity, kind, lengths[0], body, lengths[1], answer, client), file.tell()


def _number(length: int | None) -> int:
    return -1 if length is None else length


def _length(number: int) -> int | None:
    return None if number < 0 else number
