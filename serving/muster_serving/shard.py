"""One shard of a scoring: ``python -m muster_serving.shard ORDER``, a process that :mod:`muster_serving.scoring` starts."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - it runs in the image of the server
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from muster_serving.arrow import COMPRESSION, arrow_type
from muster_serving.column import Array, Column
from muster_serving.errors import RequestError, ServingError
from muster_serving.predictors import KNOWN
from muster_serving.scoring import BAD_ROWS, PARQUET, RowRange, ScoringError
from muster_serving.signature import ModelSignature

if TYPE_CHECKING:
    from muster_serving.predictor import Predictor
    from muster_serving.process.worker import AlonePredictor

_BLOCK_ROWS = 32768
_CSV_BLOCK_BYTES = 8 << 20
READ_BYTES = 1 << 20  # of each column at a time: a row group may be large


class Shard:
    """Scores pieces of files.

    :param keep: the columns of the rows that are written beside the outputs.
    :param skip: whether a row that cannot be scored is left out and noted, in place of an error.
    """

    def __init__(
        self,
        predictor: Predictor | AlonePredictor,
        *,
        keep: Sequence[str],
        rows_at_once: int | None,
        skip: bool = False,
    ) -> None:
        self._skip = skip
        self._bad: list[dict[str, Any]] = []
        self._predictor = predictor
        self._signature = predictor.signature
        self._keep = list(keep)
        self._names = list(dict.fromkeys([*self._signature.inputs, *keep]))
        self._rows_at_once = min(rows_at_once or self._signature.max_batch, self._signature.max_batch)
        if twice := sorted(set(keep) & set(self._signature.outputs)):
            raise ScoringError(f"keep names {twice[0]!r}, which is also an output of the model")

    def write(self, pieces: Sequence[RowRange], target: Path) -> int:
        """Score pieces into a file, which is complete or not there; return the number of rows.

        Rows that were left out are lines of JSON in a file beside it, with the ending :data:`BAD_ROWS`.

        :raises ScoringError: a row or a file cannot be scored, or no row can.
        """
        part, rows, writer = target.with_name(f".{target.name}"), 0, None
        part.unlink(missing_ok=True)
        try:
            for piece in pieces:
                for at, block in blocks(piece, self._names, self._signature):
                    table = self._scored(block, Path(piece.file).name, at)
                    writer = writer or pq.ParquetWriter(part, table.schema, compression=COMPRESSION)
                    writer.write_table(table)
                    rows += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise ScoringError(f"{Path(piece.file).name} cannot be read: {error}") from error
        finally:
            if writer:
                writer.close()
        if self._bad:
            if not rows:
                raise ScoringError(
                    f"no row can be scored; {self._bad[0]['file']}, row {self._bad[0]['row']}: {self._bad[0]['error']}"
                )
            lines = "".join(f"{json.dumps(in_json(each), default=str)}\n" for each in self._bad)
            target.with_suffix(BAD_ROWS).write_text(lines, encoding="utf-8")
        if writer is None:
            pq.write_table(self._empty(), part, compression=COMPRESSION)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(target)
        return rows

    def _scored(self, block: pa.RecordBatch, file: str, at: int) -> pa.Table:
        outputs: dict[str, list[Array]] = {name: [] for name in self._signature.outputs}
        size = self._rows_at_once
        encoded = {
            name: _values(column, block.column(name)) for name, column in self._signature.inputs.items()
        }
        scored: list[pa.RecordBatch] = []
        for begin, end in pairwise([*range(0, block.num_rows, size), block.num_rows]):
            for first, last, answer in self._calls(block, encoded, begin, end, file, at):
                scored.append(block.slice(first, last - first))
                for name, array in answer.items():
                    outputs[name].append(array)
        whole = pa.Table.from_batches(scored, block.schema)
        kept = {name: whole.column(name) for name in self._keep}
        return pa.table(
            kept | {name: _arrow(self._signature.outputs[name], parts) for name, parts in outputs.items()}
        )

    def _calls(
        self,
        block: pa.RecordBatch,
        encoded: Mapping[str, list[Any] | Array],
        begin: int,
        end: int,
        file: str,
        at: int,
    ) -> Iterator[tuple[int, int, dict[str, Array]]]:
        """Yield the answers to the rows from `begin` to before `end`, with the rows of each; one unless rows are left out."""
        inputs, rows = self._signature.inputs, end - begin
        where = f"{file}, row {at + begin}"
        columns: dict[str, list[Any] | Array] = {}
        for name, column in inputs.items():
            width = math.prod(column.tail)
            values = encoded[name][begin * width : end * width]
            # one row takes the endpoint's own way for one row, which takes values of JSON
            columns[name] = (
                plain(column, block.column(name).slice(begin, 1)).to_pylist() if rows == 1 else values
            )
        try:
            answer = self._predictor.predict(columns, rows)
        except ServingError as error:
            if self._skip and rows > 1:
                middle = (begin + end) // 2
                yield from self._calls(block, encoded, begin, middle, file, at)
                yield from self._calls(block, encoded, middle, end, file, at)
            elif self._skip:
                (values,) = block.slice(begin, 1).to_pylist()
                self._bad.append({"file": file, "row": at + begin, "error": str(error), "values": values})
            elif rows == 1:
                raise ScoringError(f"{where}: {error}") from error
            else:
                if isinstance(error, RequestError):
                    for row in range(begin, end):  # the message is to name the row
                        list(self._calls(block, encoded, row, row + 1, file, at))
                raise ScoringError(f"{where} and {rows - 1} more: {error}") from error
        else:
            yield begin, end, answer

    def _empty(self) -> pa.Table:
        outputs = self._signature.outputs
        return pa.table(
            {name: pa.array([], pa.null()) for name in self._keep}
            | {name: pa.array([], arrow_type(column)) for name, column in outputs.items()}
        )


def in_json(value: Any) -> Any:
    """Return a value as JSON can hold it: null for NaN, a text for an infinity."""
    if isinstance(value, dict):
        return {key: in_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(in_json, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if math.isinf(value) else None
    return value


def blocks(
    piece: RowRange, names: Sequence[str], signature: ModelSignature
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a piece in blocks, each with the number of its first row in the file.

    :raises ScoringError: a column is missing.
    """
    if piece.file.endswith(PARQUET):
        yield from _parquet_blocks(piece, names)
    else:
        yield from _csv_blocks(piece, names, signature)


def _parquet_blocks(piece: RowRange, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    file = pq.ParquetFile(piece.file, buffer_size=READ_BYTES)
    _check_names(piece, names, file.schema_arrow.names)
    assert piece.end is not None
    at = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at + rows > piece.begin and at < piece.end:
            first = at
            for batch in file.iter_batches(
                _BLOCK_ROWS, row_groups=[group], columns=list(names), use_threads=False
            ):
                begin, end = max(piece.begin - first, 0), min(piece.end - first, batch.num_rows)
                if begin < end:
                    yield first + begin, batch.slice(begin, end - begin)
                first += batch.num_rows
        at += rows


def _csv_blocks(
    piece: RowRange, names: Sequence[str], signature: ModelSignature
) -> Iterator[tuple[int, pa.RecordBatch]]:
    types = {name: arrow_type(column) for name, column in signature.inputs.items() if not column.tail}
    # Nothing between two commas is null where a text may be null, as DuckDB and pandas read it; NA is Namibia, too.
    texts = {name for name, column in signature.inputs.items() if column.datatype == "BYTES"}
    nullable = any(signature.inputs[name].nullable for name in texts)
    reader = pyarrow.csv.open_csv(
        piece.file,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            strings_can_be_null=nullable,
            quoted_strings_can_be_null=False,
            **({"null_values": [""]} if nullable else {}),
        ),
    )
    _check_names(piece, names, reader.schema.names)
    at = 0
    filled = [
        (n, reader.schema.get_field_index(n))
        for n in names
        if n in texts and not signature.inputs[n].nullable
    ]
    for batch in reader:
        for name, place in filled if nullable else ():
            batch = batch.set_column(place, name, batch.column(place).fill_null(""))
        for begin in range(0, batch.num_rows, _BLOCK_ROWS):
            yield at + begin, batch.slice(begin, _BLOCK_ROWS).select(list(names))
        at += batch.num_rows


def _check_names(piece: RowRange, names: Sequence[str], found: Sequence[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise ScoringError(
            f"{Path(piece.file).name} has no column {missing[0]!r}; it has {', '.join(found):.300}"
        )


def plain(column: Column, array: pa.Array) -> pa.Array:
    """Return a column, flat, with decimals as the numbers and dates as the texts that a request has in their place."""
    array = _flat(array)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_decimal(kind) and column.datatype != "BYTES":
        return array.cast(
            pa.int64() if column.datatype.startswith(("INT", "UINT")) and not kind.scale else pa.float64()
        )
    if pa.types.is_temporal(kind) and column.datatype == "BYTES":
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    return array


def _values(column: Column, array: pa.Array) -> list[Any] | Array:
    """Return a column's values, flat, as the predictor takes them: an array wherever that means the same as JSON's values."""
    array = plain(column, array)
    kind = array.type
    numbers = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and column.datatype.startswith("FP"))
    if array.null_count and not (
        numbers and column.nullable and column.datatype.startswith("FP")
    ):  # there null is NaN
        return list(array.to_pylist())
    if column.codes is not None and (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        coded = array.dictionary_encode()
        try:
            codes = column.array(coded.dictionary.to_pylist())
        except RequestError:  # of a value that is no category the row is named later
            return list(array.to_pylist())
        return np.asarray(codes)[coded.indices.to_numpy()]
    if column.takes_arrays and numbers:
        values = array.to_numpy(zero_copy_only=False)
        # as JSON's whole numbers become floats: by way of FP64
        return (
            values.astype(np.float64)
            if column.datatype.startswith("FP") and pa.types.is_integer(kind)
            else values
        )
    return list(array.to_pylist())


def _flat(array: pa.Array) -> pa.Array:
    while (
        pa.types.is_list(array.type)
        or pa.types.is_large_list(array.type)
        or pa.types.is_fixed_size_list(array.type)
    ):
        array = pc.list_flatten(array)
    return array


def _arrow(column: Column, parts: Sequence[Array]) -> pa.Array:
    kind = arrow_type(column)
    array = np.concatenate(parts) if parts else np.empty(0, column.dtype)
    if not column.tail:
        return pa.array(array, kind)
    width = math.prod(column.tail)
    offsets = np.arange(0, array.size + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(array.ravel(), kind.value_type))


def _load(folder: Path, trusted: Sequence[str]) -> Predictor | AlonePredictor:
    """Load a version as what serves it does: an author's image has no ONNX Runtime, the server's none of the author's libraries."""
    if any((folder / name).exists() for name in KNOWN):
        from muster_serving.process.worker import AlonePredictor

        return AlonePredictor(folder, trusted=trusted)
    from muster_serving.predictor import Predictor

    return Predictor(folder)


def main() -> None:
    """Score one shard; exit 1 with the reason as the last line where it cannot be scored."""
    order = json.loads(sys.argv[1])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        shard = Shard(
            _load(Path(order["model"]), order["trusted"]),
            keep=order["keep"],
            rows_at_once=order["rows_at_once"],
            skip=order["skip"],
        )
        shard.write([RowRange(**piece) for piece in order["pieces"]], Path(order["out"]))
    except (ServingError, ScoringError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
