"""Joins the small Parquet files of a version into large ones, with the same rows in the same order.

Files are joined with their neighbours, in the order of the version's listing, so of each partition of a stream the offsets still grow. A large file
stays where it is. The listing's first line stays, too: the next ingest goes on where it would have gone on.

Versions have many thousand small files, so time and memory grow with their number, and not with its square.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from muster_ingest import listing
from muster_ingest.errors import IngestError
from muster_ingest.listing import CARRIED, LISTING, STREAM

PARTITION, OFFSET = "_partition", "_offset"
GEO = b"geo"  # where GeoParquet says which columns are geometries, of which coordinates
_APART = "_"  # a folder whose name begins so holds what is kept apart from the rows
_BATCH_ROWS = 8_192
_GROUP_BYTES, _GROUP_ROWS = 32 << 20, 1 << 20
"""What is collected before it is written: with a batch, all that is in memory."""


@dataclass(frozen=True)
class Part:
    """One Parquet file of the version before."""

    path: str
    size: int
    rows: int
    schema: pa.Schema


class Compacting:
    """The work on one version.

    :param base: the version. :param target: the folder of the new one. :param large_bytes: the size of a large file.
    """

    def __init__(self, base: Path, target: Path, *, large_bytes: int) -> None:
        self._base, self._target, self._large = base, target, large_bytes
        self._lines = _listed(base)
        # A table of the author's own may keep these columns, and a message of it be there twice.
        self._streamed = self._lines is not None and STREAM in listing.head(self._lines[0])
        self._joined: set[str] = set()
        self._sizes: dict[str, tuple[int, str]] = {}

    def run(self) -> dict[str, float]:
        """Join what is small; leave the target empty where nothing is to be joined."""
        parts = self._parts()
        groups = list(_groups(parts, self._large))
        if groups:
            schemas = [_united(group) for group in groups]  # what cannot be joined is told before all work
            for done, (group, schema) in enumerate(zip(groups, schemas, strict=True), 1):
                self._join(group, schema)
                print(f"muster: files={done}/{len(groups)}", flush=True)
            self._finish()
        before, size = len(parts), sum(part.size for part in parts)
        gone = sum(part.size for group in groups for part in group)
        told = {
            "files_before": before,
            "files": before - sum(len(group) - 1 for group in groups),
            "bytes_before": size,
            "bytes": size - gone + sum(written for written, _ in self._sizes.values()),
            "rows": sum(part.rows for part in parts),
        }
        print(
            f"{told['files_before']:,} Parquet files, {told['bytes_before']:,} B, become {told['files']:,}, {told['bytes']:,} B"
            if groups
            else f"nothing to join: {before:,} Parquet files, {size:,} B",
            flush=True,
        )
        return told

    def _paths(self) -> list[str]:
        """Return the Parquet files in their order: that of the listing, else by name."""
        if self._lines is not None:
            found = [path for path, _, _ in self._lines[1]]
        else:
            found = sorted(_files(self._base))
        return [path for path in found if path.endswith(".parquet") and not path.startswith(_APART)]

    def _parts(self) -> list[Part]:
        """Return what the files are; neighbours of one schema share it, for it takes more memory than all else."""
        parts: list[Part] = []
        for path in self._paths():
            part = self._part(path)
            if parts and part.schema.equals(parts[-1].schema, check_metadata=True):
                part = replace(part, schema=parts[-1].schema)
            parts.append(part)
        return parts

    def _part(self, path: str) -> Part:
        file = self._base / path
        try:
            footer = pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise IngestError(f"{path!r:.200} is no Parquet file that can be read: {error!s:.300}") from None
        return Part(path, file.stat().st_size, footer.num_rows, footer.schema.to_arrow_schema())

    def _join(self, group: Sequence[Part], schema: pa.Schema) -> None:
        """Write a group as one file, under the name of its first, and read it again."""
        target = self._target / group[0].path
        target.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for table in _collected(batch for part in group for batch in _batches(self._base, part, schema)):
                writer.write_table(table)
        rows = sum(part.rows for part in group)
        found = pq.read_metadata(target).num_rows
        if found != rows:
            raise IngestError(
                f"{target.name} has {found:,} rows, the files that it joins have {rows:,}: nothing is committed"
            )
        if self._streamed:
            before = _offsets(self._base / part.path for part in group)
            if _offsets([target]) != before:
                raise IngestError(
                    f"{target.name} has other offsets than the files that it joins: nothing is committed"
                )
        with target.open("rb") as file:
            self._sizes[group[0].path] = (
                target.stat().st_size,
                hashlib.file_digest(file, "sha256").hexdigest(),
            )
        self._joined.update(part.path for part in group)

    def _finish(self) -> None:
        """Say what stays, and write the listing with its first line as it was."""
        stays = [path for path in _files(self._base) if path not in self._joined and path != LISTING]
        (self._target / CARRIED).write_text("".join(f"{path}\n" for path in stays), encoding="utf-8")
        if self._lines is None:
            return
        first, files = self._lines
        with (self._target / LISTING).open("w", encoding="utf-8") as file:
            file.write(first)
            for path, size, digest in files:
                if path not in self._joined:
                    file.write(listing.line(path, size, digest))
                elif path in self._sizes:  # the first of its group, whose name it has
                    file.write(listing.line(path, *self._sizes[path]))


def _listed(base: Path) -> tuple[str, list[tuple[str, int, str]]] | None:
    """Return a listing's first line and its files; None where no ingest made the version.

    :raises IngestError: the next ingest compares the files themselves, so they must stay.
    """
    file = base / LISTING
    if not file.is_file():
        return None
    with file.open(encoding="utf-8") as opened:
        first = opened.readline()
    head = listing.head(first)
    source: Mapping[str, Any] = head.get("source") or {}
    if STREAM not in head and not source.get("watermark"):
        raise IngestError(
            f"the files of {source.get('url', 'an unknown source')} stay as they are: each ingest compares them with the source; join them in "
            "a volume of its own"
        )
    return first, list(listing.read(file, source))


def _files(base: Path) -> list[str]:
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def _groups(parts: Sequence[Part], large: int) -> Iterator[list[Part]]:
    """Yield neighbours in one folder that are to become one file: small ones, until they are large together."""
    group, size = list[Part](), 0
    for part in parts:
        small = part.size < large / 2
        if group and not (small and _go_together(group[-1], part)):
            if len(group) > 1:
                yield group
            group, size = [], 0
        if small:
            group.append(part)
            size += part.size
        if size >= large:
            yield group
            group, size = [], 0
    if len(group) > 1:
        yield group


def _go_together(one: Part, other: Part) -> bool:
    """Tell whether two files are of one folder and, of GeoParquet, say the same of their geometries: one file has room for one such note."""
    return Path(one.path).parent == Path(other.path).parent and _geo(one.schema) == _geo(other.schema)


def _geo(schema: pa.Schema) -> bytes | None:
    return (schema.metadata or {}).get(GEO)


def _united(parts: Sequence[Part]) -> pa.Schema:
    """Return a schema with all columns of files that become one, each of a type that holds what every file has, and their common metadata.

    Other files have no say in it. The next ingest takes the columns that it knows from the newest file of the listing: what this one is joined
    with only adds to them.

    :raises IngestError: no type holds what a column has.
    """
    united, latest = parts[0].schema.remove_metadata(), parts[0]
    for part in parts[1:]:
        if part.schema.equals(latest.schema):
            continue
        try:
            united = pa.unify_schemas([united, part.schema.remove_metadata()], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise IngestError(
                f"{part.path!r:.200} cannot become one file with those before it: {error!s:.300}. Nothing is changed; make the column of "
                "one type where the files are written, or keep the two kinds in folders of their own"
            ) from None
        latest = part
    noted = _noted(parts)
    return united.with_metadata(noted) if noted else united


def _noted(parts: Sequence[Part]) -> dict[bytes, bytes]:
    """Return what the metadata of all the files say alike, such as which column is the index of pandas.

    What differs is true of a part of the rows alone.
    """
    noted, latest = dict[bytes, bytes](parts[0].schema.metadata or {}), parts[0]
    for part in parts[1:]:
        if part.schema is not latest.schema:
            said = part.schema.metadata or {}
            noted = {key: value for key, value in noted.items() if said.get(key) == value}
            latest = part
    return noted


def _batches(base: Path, part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(base / part.path) as file:
        for batch in file.iter_batches(_rows_at_once(file.metadata)):
            yield pa.RecordBatch.from_arrays([_column(batch, field, part) for field in schema], schema=schema)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """Return how many rows of a file are some 32 MiB: large messages come a few at a time."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(_BATCH_ROWS, _GROUP_BYTES * metadata.num_rows // max(1, size)))


def _column(batch: pa.RecordBatch, field: pa.Field, part: Part) -> pa.Array:
    """Return a column in the type that all files have; null where the file has none."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    try:
        return batch.column(field.name).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise IngestError(
            f"{part.path!r:.200}: its column {field.name!r:.100} cannot become {field.type}, the type of the files that it is joined with: "
            f"{error!s:.300}. Nothing is changed"
        ) from None


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches joined into what makes a good row group."""
    held, size, rows = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        held.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, size, rows = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _offsets(files: Iterator[Path] | Sequence[Path]) -> dict[int, tuple[int, int, str]]:
    """Return of each partition of a stream how many rows there are, the last offset, and a digest of all offsets in their order.

    :raises IngestError: they do not grow.
    """
    rows, last = dict[int, int](), dict[int, int]()
    digests = dict[int, Any]()
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[PARTITION, OFFSET]):
                for number in pc.unique(batch.column(PARTITION)).to_pylist():
                    own = pc.filter(
                        batch.column(OFFSET).cast(pa.int64()), pc.equal(batch.column(PARTITION), number)
                    )
                    grows = pc.all(pc.less(own[:-1], own[1:])).as_py() is not False
                    if not grows or own[0].as_py() <= last.get(number, -1):
                        raise IngestError(
                            f"the offsets of partition {number} do not grow in {path.name}: a message is there twice. Nothing is changed; "
                            "retire this version, and the next ingest reads from where the one before it ends"
                        )
                    rows[number] = rows.get(number, 0) + len(own)
                    last[number] = own[-1].as_py()
                    digests.setdefault(number, hashlib.sha256()).update(
                        memoryview(own.buffers()[1])[: 8 * len(own)]
                    )
    return {number: (rows[number], last[number], digests[number].hexdigest()) for number in rows}
