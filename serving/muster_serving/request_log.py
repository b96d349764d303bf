"""The log of one revision's requests: each is appended to a spool file by a thread, within a second of its answer.

The server's part is small on purpose: a request's body and its answer are kept as they are, and decoded later by
:mod:`muster_serving.collect` in another process. Only where columns are left out or hashed does the thread decode them:
such values are never on the disk.

A spool file has the requests of one revision, process and hour, in :mod:`muster_serving.spool`'s form. The process that
writes it holds its lock, so a free lock tells that nothing is added any more, however the process ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from random import random
from typing import Any

import orjson

from muster_serving import spool
from muster_serving.answer import PREDICTION, HttpAnswer
from muster_serving.column import is_null
from muster_serving.metrics import LOGGED
from muster_serving.protocol import Question
from muster_serving.signature import ModelSignature

PAUSE_SECONDS = 0.25
_MOST_WAITING_BYTES = 64 << 20
_KEEP_FREE_BYTES = 512 << 20
_KEEP_FREE_SHARE = 0.05
_SAY_SECONDS = 60.0
_HASH_BYTES = 16
KEY = "key"

logger = logging.getLogger("muster.serving")


@dataclass(frozen=True, kw_only=True)
class LogOrder:
    """What of a revision's requests is kept, and where.

    :param folder: of the deployment's spool files.
    :param share: of the answered requests, above 0 to 1.
    :param leave_out: columns that are not kept; `hashed`: columns of which a keyed hash is kept.
    :param keep: how long the hours stay, for the one that commits them; see ``RequestLog`` of muster's.
    :param clients: whether each request is kept with the name of its client.
    :param key: of the hashes (BLAKE2b, RFC 7693): without it, a guess at a value cannot be checked.
    """

    folder: Path
    share: float
    leave_out: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    key: bytes = b""
    clients: bool = False
    keep: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, order: Mapping[str, Any]) -> LogOrder:
        """Read the keeper's order."""
        return cls(
            folder=Path(order["folder"]),
            share=float(order["share"]),
            leave_out=frozenset(order["leave_out"]),
            hashed=frozenset(order["hashed"]),
            key=bytes.fromhex(order["key"]),
            clients=bool(order.get("clients")),
            keep={word: order[word] for word in spool.KEEP if word in order},
        )

    @classmethod
    def in_pod(cls, order: Mapping[str, Any]) -> LogOrder:
        """Read the order of a pod's command, whose key is in the folder. Without a key, hashed columns are left out."""
        try:
            key = (Path(order["folder"]) / KEY).read_text("ascii")
        except OSError as error:  # users are answered all the same
            logger.error("request log: no key (%s); columns that are to be hashed are left out", error)
            return cls.read(
                {**order, "key": "", "hashed": [], "leave_out": [*order["leave_out"], *order["hashed"]]}
            )
        return cls.read({**order, "key": key})


class RequestLogWriter:
    """Takes the answered requests of one revision. :meth:`close` writes what is left.

    A request never waits for the disk, and never fails with it: what cannot be written is dropped, counted and told.

    :param name: the deployment's. :param model: the version's address.
    """

    def __init__(
        self, order: LogOrder, signature: ModelSignature, *, name: str, revision: str, model: str | None
    ) -> None:
        self._order = order
        self._signature = signature
        self._kept, self._lost = (LOGGED.labels(name, revision, outcome) for outcome in ("kept", "dropped"))
        self._head = orjson.dumps(
            {
                **spool.about(clients=order.clients),
                "deployment": name,
                "revision": revision,
                "model": model or "",
                "signature": signature.document,
                "leave_out": sorted(order.leave_out),
                "hashed": sorted(order.hashed),
                "keep": dict(order.keep),
            }
        )
        self._ids = f"{name}-%x-{secrets.token_hex(4)}-%x"
        self._count = 0
        self._hides = bool(order.leave_out or order.hashed)
        self._waiting: deque[spool.Frame] = deque()
        self._hour, self._began, self._ends = "", 0.0, 0.0  # of the last request that was written
        self._taken_bytes = self._written_bytes = 0  # each is written by one thread alone
        self._dropped, self._said = 0, -_SAY_SECONDS
        self._file: _SpoolFile | None = None
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"log-{revision}", daemon=True)
        self._thread.start()

    def keep(self, asked: Question, answer: HttpAnswer) -> HttpAnswer:
        """Take an answered request, or leave it: return its answer, with the prediction's id where it was taken."""
        share = self._order.share
        if answer.status != 200 or (share < 1 and random() >= share):  # noqa: S311 no secret depends on it
            return answer
        if self._taken_bytes - self._written_bytes > _MOST_WAITING_BYTES:
            self._drop(1, "the disk is slower than the requests")
            return answer
        now = time.time()
        self._count += 1
        identity = self._ids % (int(now * 1000), self._count)
        frame = spool.Frame.of(identity, now, asked, answer, client=self._order.clients)
        self._taken_bytes += frame.size
        self._waiting.append(frame)
        if self._closing:  # its revision was unloaded while this request was under way
            self._thread.join()
            self._write_waiting()
            self._end_file()
        elif not self._wake.is_set():
            self._wake.set()
        return HttpAnswer(200, answer.body, (*answer.headers, (PREDICTION, identity.encode())))

    def close(self) -> None:
        """Write what is waiting, and end the file. Idempotent."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._file.left() if self._file else None)
            if not self._closing:
                time.sleep(PAUSE_SECONDS)  # many requests are one write
            self._wake.clear()
            self._write_waiting()
            if self._file and self._file.left() <= 0:
                self._end_file()
        self._write_waiting()
        self._end_file()

    def _write_waiting(self) -> None:
        by_hour: dict[str, list[spool.Frame]] = {}
        while self._waiting:
            taken = self._waiting.popleft()
            by_hour.setdefault(self._hour_of(taken.at / 1e6), []).append(taken)
        for hour, several in by_hour.items():
            try:
                self._write(hour, several)
            except OSError as error:
                self._drop(len(several), error.strerror or str(error))
            except Exception as error:  # whatever these requests met, the next ones are kept
                logger.exception("request log")
                self._drop(len(several), f"{type(error).__name__}: {error}")
            self._written_bytes += sum([each.size for each in several])

    def _hour_of(self, at: float) -> str:
        """Return a request's hour; most have that of the one before."""
        if not self._began <= at < self._ends:
            self._hour = spool.hour_of(at)
            self._ends = spool.end_of(self._hour)
            self._began = self._ends - 3600
        return self._hour

    def _write(self, hour: str, several: Sequence[spool.Frame]) -> None:
        """Append requests of one hour. :raises OSError: it cannot be done; nothing of them is in the file then."""
        frames = [frame for each in several if (frame := self._written_frame(each))]
        _check_room(self._order.folder)
        if self._file is None or self._file.hour != hour:
            self._end_file()
            self._file = _SpoolFile(self._order.folder, hour, self._head)
        self._file.append(b"".join(frames))
        self._kept.inc(len(frames))

    def _written_frame(self, frame: spool.Frame) -> bytes:
        """Write one request as it goes into the file; nothing where that could not be read again, or not be hidden."""
        try:
            if self._hides:
                frame = frame.with_columns(self._hidden(frame.request(self._signature)))
            written = frame.written()
        except Exception as error:  # whatever this one meets, those beside it are kept
            self._drop(1, f"a request cannot be read again: {type(error).__name__}: {error}")
            return b""
        if len(written) <= spool.LONGEST_FRAME_BYTES:
            return written
        self._drop(1, f"a request and its answer have more than {spool.LONGEST_FRAME_BYTES} bytes")
        return b""

    def _hidden(self, request: spool.LoggedRequest) -> spool.LoggedRequest:
        inputs, outputs = self._without(request.inputs), self._without(request.outputs)
        return replace(request, inputs=inputs, outputs=outputs)

    def _without(self, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        return {
            name: [self._hash(value) for value in values] if name in self._order.hashed else values
            for name, values in columns.items()
            if name not in self._order.leave_out
        }

    def _hash(self, value: Any) -> str | None:
        if is_null(value):
            return None  # as it stands in a column that is not hashed
        return blake2b(orjson.dumps(value), key=self._order.key, digest_size=_HASH_BYTES).hexdigest()

    def _end_file(self) -> None:
        ended, self._file = self._file, None
        if ended:
            ended.close()

    def _drop(self, requests: int, why: str) -> None:
        """Count requests that are lost to the log, and say so at most once a minute."""
        self._lost.inc(requests)
        self._dropped += requests
        now = time.monotonic()
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            logger.error(
                "request log: %d requests are not kept (%s); they were answered. Free disk space below %s",
                self._dropped,
                why,
                self._order.folder,
            )
            self._dropped = 0


class _SpoolFile:
    """One spool file that this process writes. It has its name from the moment that its lock is held."""

    def __init__(self, folder: Path, hour: str, head: bytes) -> None:
        """Begin it. :raises OSError: the disk is full, say; nothing is left of it."""
        self.hour = hour
        self._ends = spool.end_of(hour)
        name = f"{hour}.{os.getpid()}-{secrets.token_hex(4)}{spool.SUFFIX}"
        part = folder / f".{name}"
        self._handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._length = 0
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            self.append(head + b"\n")
            part.rename(folder / name)
        except OSError:
            part.unlink(missing_ok=True)
            os.close(self._handle)
            raise

    def append(self, data: bytes) -> None:
        """Add bytes, all or none. :raises OSError: none were added."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError:
            os.ftruncate(self._handle, self._length)
            os.lseek(self._handle, self._length, os.SEEK_SET)
            raise
        self._length += len(data)

    def left(self) -> float:
        """Seconds until its hour is over."""
        return max(self._ends - time.time(), 0.0)

    def close(self) -> None:
        """End it, on the disk."""
        with contextlib.suppress(OSError):  # what is not synced now, the kernel writes later
            os.fsync(self._handle)
        os.close(self._handle)


def _check_room(folder: Path) -> None:
    """Leave the disk some room: the store and the keeper need it more. :raises OSError: there is too little."""
    found = os.statvfs(folder)
    free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < min(_KEEP_FREE_BYTES, _KEEP_FREE_SHARE * whole):
        raise OSError(errno.ENOSPC, f"only {free >> 20} MiB are free on the disk")
