"""Makes rows of spool files: ``python -m muster_serving.collect``, which muster runs for each hour of requests.

With ``--listen SOCKET`` it takes such orders from one client, one a line, and answers each with a line, ``{"error": …}`` where it failed.

It reads an order from stdin, ``{"spool": [FILE, …], "earlier": FOLDER or null, "out": FOLDER}``, writes the Parquet files of the
hour into `out`, those of `earlier` among them, and prints ``{"rows": ROWS, "read": {FILE: OFFSET}}``: how many rows are new, and up to
where each spool file is in `out`. Each Parquet file tells in its metadata which spool files it was made from, up to where: so nothing
is read twice, however often this is repeated and whatever killed it before. A request that cannot be read stops no other: it is
copied as it is to ``_unread`` in `out`, and counted as ``unread`` in the answer. ``keep`` is what the head of the newest revision's files says of how long hours stay.

A row has ``id`` (of its request), ``row`` (its place in it, from 0), ``time``, ``revision``, ``model``, ``request_id`` (the client's own),
``client`` where clients have tokens, and ``input_NAME`` and ``output_NAME`` for each column, with ``_hash`` at the end where it is hashed; one of several values a row is a
list, row by row.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from muster_serving import spool
from muster_serving.arrow import COMPRESSION, arrow_type
from muster_serving.column import Column, is_null
from muster_serving.errors import ServingError
from muster_serving.signature import ModelSignature

READ = b"muster.spool"
BLOCK_FRAMES, BLOCK_BYTES = 4096, 32 << 20
UNREAD, OFFSETS, WHY = "_unread", "offsets.json", "why.txt"  # readers of Parquet pass by what begins so
_LONGEST_FIRST_LINE = 16 << 20
_CLIENT_SECONDS = 300.0
_MEMORY_SHARE = 0.6  # of its container's, for one order
_CGROUP_MEMORY = "/sys/fs/cgroup/memory.max"

_PYTHON: Mapping[str, type[int | float]] = {"INT": int, "FP": float}  # pyarrow takes 2**24 + 1 for no float32

_CLIENT = pa.field("client", pa.string())
_OWN = [
    pa.field("id", pa.string()),
    pa.field("row", pa.int32()),
    pa.field("time", pa.timestamp("us", tz="UTC")),
    pa.field("revision", pa.string()),
    pa.field("model", pa.string()),
    pa.field("request_id", pa.string()),
]


def collect(files: Sequence[Path], earlier: Path | None, out: Path) -> dict[str, Any]:
    """Write one hour's rows; see the module."""
    parts = sorted(earlier.glob("*.parquet")) if earlier else []
    for part in parts:
        _link(part, out / part.name)
    read, unread = offsets(parts), Unread(earlier, out)
    read |= {name: max(offset, read.get(name, 0)) for name, offset in unread.offsets.items()}
    by_revision: dict[str, list[Path]] = defaultdict(list)
    heads: dict[str, Mapping[str, Any]] = {}
    for file in files:
        try:
            head = spool.read_head(file)
            by_revision[head["revision"]].append(file)
            heads[head["revision"]] = head
        except ServingError as error:
            if file.name not in unread.offsets:
                read[file.name] = unread.add(file, error)
    rows = sum(_write(several, read, out, unread) for _, several in sorted(by_revision.items()))
    return {
        "rows": rows,
        "read": {file.name: read.get(file.name, 0) for file in files},
        "unread": unread.count,
        "keep": heads[max(heads, key=lambda name: (len(name), name))].get("keep")
        if heads
        else None,  # r10 is newer than r9
    }


class Unread:
    """What of the spool files cannot be read: copied as it is, and left out of the rows.

    :ivar count: how many requests, those of this order; what is no request at all is one.
    :ivar offsets: up to where spool files are in the rows and here.
    """

    def __init__(self, earlier: Path | None, out: Path) -> None:
        self._out = out / UNREAD
        self.count = 0
        self.offsets: dict[str, int] = {}
        if earlier and (earlier / UNREAD).is_dir():
            shutil.copytree(earlier / UNREAD, self._out, copy_function=shutil.copyfile)
            self.offsets = json.loads((self._out / OFFSETS).read_text("utf-8"))

    def add(self, file: Path, why: Exception, *, first: int = 0, end: int | None = None) -> int:
        """Set aside what is between two offsets; all that is left where no end is known. Return the offset after it."""
        self._out.mkdir(exist_ok=True)
        with file.open("rb") as source, (self._out / file.name).open("ab") as target:
            if not target.tell() and first:
                target.write(
                    source.readline(_LONGEST_FIRST_LINE)
                )  # so that it can be read once that is mended
            source.seek(first)
            left = end - first if end is not None else file.stat().st_size - first
            while left > 0 and (piece := source.read(min(left, 1 << 20))):
                target.write(piece)
                left -= len(piece)
            after = source.tell()
        self.count += 1
        self.offsets[file.name] = max(after, self.offsets.get(file.name, 0))
        (self._out / OFFSETS).write_text(json.dumps(self.offsets), "utf-8")
        with (self._out / WHY).open("a", encoding="utf-8", errors="backslashreplace") as reasons:
            reasons.write(f"{file.name}, byte {first}: {type(why).__name__}: {why!s:.300}\n")
        return after


def offsets(parts: Sequence[Path]) -> dict[str, int]:
    """Return up to where each spool file is in some Parquet files."""
    found: dict[str, int] = {}
    for part in parts:
        told = (pq.read_metadata(part).metadata or {}).get(READ, b"{}")
        for name, offset in json.loads(told).items():
            found[name] = max(found.get(name, 0), offset)
    return found


def rows_of(frame: spool.Frame, head: Mapping[str, Any], signature: ModelSignature) -> list[dict[str, Any]]:
    """Return the rows of one request. :raises ServingError: it cannot be read."""
    schema = _schema(signature, head)
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    _add(columns, frame, head, signature)
    return list(pa.table(columns, schema=schema).to_pylist())


def _write(files: Sequence[Path], read: dict[str, int], out: Path, unread: Unread) -> int:
    """Write the new rows of one revision's files; set in `read` up to where they are written now."""
    head = spool.read_head(files[0])
    try:
        revision, signature = head["revision"], ModelSignature.parse(head["signature"])
        schema = _schema(signature, head)
    except (ServingError, KeyError, TypeError) as error:
        for file in files:
            if file.name not in unread.offsets:
                read[file.name] = unread.add(file, error)
        return 0
    target = out / f"{revision}-{1 + len(list(out.glob(f'{revision}-*.parquet'))):03}.parquet"
    rows, done = 0, dict[str, int]()
    with pq.ParquetWriter(target, schema, compression=COMPRESSION) as writer:
        for file in files:
            for frames, offset in _blocks(file, unread, after=read.get(file.name, 0)):
                for block in _tables(file, frames, head, signature, schema, unread):
                    writer.write_table(block)
                    rows += block.num_rows
                done[file.name] = offset
        writer.add_key_value_metadata({READ: json.dumps(done)})
    if not rows:
        target.unlink()
    read.update(done)
    return rows


Placed = tuple[spool.Frame, int, int]  # between these offsets


def _blocks(file: Path, unread: Unread, *, after: int) -> Iterator[tuple[list[Placed], int]]:
    """Yield the frames of one file in blocks, each with the offset after them."""
    block: list[Placed] = []
    offset, size = after, 0
    try:
        for frame, end in spool.frames(file, after=after):
            block.append((frame, offset, end))
            offset = end
            size += len(frame.body) + len(frame.answer)
            if len(block) >= BLOCK_FRAMES or size >= BLOCK_BYTES:
                yield block, offset
                block, size = [], 0
    except ServingError as error:  # it is not known where the next one begins
        yield block, offset
        yield [], unread.add(file, error, first=offset)
    else:
        yield block, offset


def _tables(
    file: Path,
    frames: list[Placed],
    head: Mapping[str, Any],
    signature: ModelSignature,
    schema: pa.Schema,
    unread: Unread,
) -> Iterator[pa.Table]:
    """Yield the rows of frames, together if that can be; what cannot be read is found by halves, and set aside."""
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    try:
        for frame, _, _ in frames:
            _add(columns, frame, head, signature)
        if columns["id"]:
            yield pa.table(columns, schema=schema)
        return
    except MemoryError:
        raise
    except Exception as error:  # a server may have written anything
        if len(frames) == 1:
            ((_, first, end),) = frames
            unread.add(file, error, first=first, end=end)
            return
    half = len(frames) // 2
    yield from _tables(file, frames[:half], head, signature, schema, unread)
    yield from _tables(file, frames[half:], head, signature, schema, unread)


def _add(
    columns: dict[str, list[Any]], frame: spool.Frame, head: Mapping[str, Any], signature: ModelSignature
) -> None:
    request = frame.request(signature)
    rows = request.rows
    own = (frame.identity, None, frame.at, head["revision"], head["model"], request.identity)
    for field, value in zip(_OWN, own, strict=True):
        columns[field.name] += range(rows) if field.name == "row" else [value] * rows
    if _CLIENT.name in columns:
        columns[_CLIENT.name] += [frame.client] * rows
    hashed = set(head["hashed"])
    for side, given, known in (
        ("input", request.inputs, signature.inputs),
        ("output", request.outputs, signature.outputs),
    ):
        for name, column in known.items():
            if (into := columns.get(_called(side, name, hashed))) is not None:
                values = given.get(name)
                into += (
                    [None] * rows if values is None else _rows(column, values, rows, hashed=name in hashed)
                )


def _rows(column: Column, values: list[Any], rows: int, *, hashed: bool) -> list[Any]:
    """Return one value, or one list, for each row: numbers as the server made them of JSON's 7.0 or 7; null as None, however it came."""
    kind = None if hashed else _PYTHON.get(column.datatype.rstrip("0123456789").removeprefix("U"))
    if kind or column.nullable:
        values = [None if is_null(value) else kind(value) if kind else value for value in values]
    width = math.prod(column.tail)
    return [values[i * width : (i + 1) * width] for i in range(rows)] if column.tail else values


def _schema(signature: ModelSignature, head: Mapping[str, Any]) -> pa.Schema:
    leave_out, hashed = head["leave_out"], head["hashed"]
    fields = [*_OWN, *([_CLIENT] if head.get("clients") else [])]
    for side, columns in (("input", signature.inputs), ("output", signature.outputs)):
        for name, column in columns.items():
            if name not in leave_out:
                kind = arrow_type(column)
                if name in hashed:
                    kind = pa.list_(pa.string()) if column.tail else pa.string()
                fields.append(pa.field(_called(side, name, hashed), kind))
    return pa.schema(fields)


def _called(side: str, name: str, hashed: Collection[str]) -> str:
    """Return the name of a column of rows; that of a hashed one tells so, since it compares with nothing else."""
    return f"{side}_{name}_hash" if name in hashed else f"{side}_{name}"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what an order says; return the answer, or ``{"error": …}`` where a file cannot be read, whatever is in it."""
    try:
        return collect(
            [Path(file) for file in order["spool"]],
            Path(order["earlier"]) if order["earlier"] else None,
            Path(order["out"]),
        )
    except Exception as error:  # a server may have written anything
        return {"error": f"{type(error).__name__}: {error}"}


def apart(order: Mapping[str, Any]) -> bytes:
    """Carry an order out in a process of its own, whose end costs this order alone; return the answer as JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            _bound_memory()
            with os.fdopen(writing, "wb") as out:
                out.write(json.dumps(_carry_out(order)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        answer = told.read()
    _, status = os.waitpid(child, 0)
    if answer:
        return answer
    ended = os.waitstatus_to_exitcode(status)
    why = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
    return json.dumps({"error": f"the process that read them ended by {why}"}).encode()


def _bound_memory() -> None:
    """Have this process run out of memory by itself, before its container does: then all of that would be ended."""
    try:
        most = int(Path(_CGROUP_MEMORY).read_text("ascii"))
    except (OSError, ValueError):  # there is no limit
        return
    (mapped,) = (
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text("ascii").splitlines()
        if line.startswith("VmData:")
    )
    most = mapped + int(_MEMORY_SHARE * most)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def listen(path: Path) -> None:
    """Carry out the orders of one client, until it hangs up.

    :raises TimeoutError: none came in :data:`_CLIENT_SECONDS`.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(_CLIENT_SECONDS)
        door.bind(str(path))
        door.listen(1)
        client, _ = door.accept()
    client.settimeout(None)
    with client, client.makefile("rwb") as line:
        for order in line:
            line.write(apart(json.loads(order)) + b"\n")
            line.flush()


def main() -> None:
    """Carry out the order on stdin, or those of a socket; exit with the reason where a file cannot be read."""
    if sys.argv[1:2] == ["--listen"]:
        listen(Path(sys.argv[2]))
        return
    found = _carry_out(json.load(sys.stdin))
    if "error" in found:
        sys.exit(found["error"])
    print(json.dumps(found))  # noqa: T201 its answer


if __name__ == "__main__":
    main()
