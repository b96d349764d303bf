"""The frames between the front and a worker process, over a Unix socket.

::

    to the worker     u64 length of the rest · u32 requests · each request's u32 rows and u64 size · their bytes
    from the worker   u64 length of the rest · u32 parts · each part's u32 kind and u64 size · their bytes

A frame from the worker has one part for each request of the frame that it answers, in that order; or one part
that says how the worker itself is, and at its end another one: how many frames it had begun. Bytes of requests and answers are :mod:`muster_serving.process.layout`'s, all other
bytes are text in UTF-8.

A worker whose model streams gets one request a frame. It answers with frames of one PART: u32 rows, and the bytes of the
outputs. After each it waits for a frame of one request that has MORE or STOP in place of rows, and no bytes: so it is never
ahead of who reads. Its last frame is an ANSWER without bytes, or FAILED.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

# Of one request: its outputs, or why there are none: the model's fault, its client's, or the memory did not do.
ANSWER, FAILED, WRONG, SPENT = 0, 1, 6, 7
READY, REFUSED, ENDED = 2, 3, 4  # of the worker: loaded, the version cannot be loaded, how it ended
PART = 5  # of one request: some rows of its outputs, and there may be more
STOP, MORE = 0, 1

ROWS = struct.Struct("<I")

_HEAD = struct.Struct("<QI")
_PART = struct.Struct("<IQ")
_BUFFER_BYTES = 1 << 18

Part = tuple[int, bytes | memoryview]


def write(parts: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a frame.

    :param parts: each request's rows, or each part's kind, and its bytes.
    """
    heads = [_PART.pack(number, len(data)) for number, data in parts]
    length = 4 + _PART.size * len(parts) + sum(len(data) for _, data in parts)
    return b"".join([_HEAD.pack(length, len(parts)), *heads, *(data for _, data in parts)])


class FrameReader:
    """Takes frames out of the bytes that arrive."""

    def __init__(self) -> None:
        self._held = bytearray()

    def take(self, data: bytes) -> list[list[Part]]:
        """Return the frames that are whole now. Their bytes may be views of `data`."""
        if self._held:
            self._held += data
            if len(self._held) < _HEAD.size or len(self._held) < 8 + _HEAD.unpack_from(self._held)[0]:
                return []
            data, self._held = bytes(self._held), bytearray()
        frames = []
        at = 0
        while len(data) - at >= _HEAD.size:
            length, count = _HEAD.unpack_from(data, at)
            if len(data) - at < 8 + length:
                break
            frames.append(_parts(data, at + _HEAD.size, count))
            at += 8 + length
        if at < len(data):
            self._held += data[at:]
        return frames


def _parts(data: bytes, at: int, count: int) -> list[Part]:
    heads = [_PART.unpack_from(data, at + _PART.size * i) for i in range(count)]
    at += _PART.size * count
    view = memoryview(data)
    parts: list[Part] = []
    for number, size in heads:
        parts.append((number, view[at : at + size]))
        at += size
    return parts


class WorkerLine:
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(
            bytearray(_BUFFER_BYTES)
        )  # a new one for each frame costs three system calls
        self._reader = FrameReader()
        self._frames: list[list[Part]] = []

    def receive(self) -> list[Part] | None:
        """Return the next frame; None where the front hung up."""
        while not self._frames:
            length = self._connection.recv_into(self._buffer)
            if not length:
                return None
            self._frames = self._reader.take(bytes(self._buffer[:length]))
        return self._frames.pop(0)

    def send(self, parts: Sequence[tuple[int, bytes]]) -> None:
        """Send a frame."""
        self._connection.sendall(write(parts))
