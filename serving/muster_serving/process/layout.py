"""Rows of a signature's tensors as bytes: one packed record a row, and the texts after all records.

A record holds a value of each tensor in the signature's order, little-endian; of a text its length in bytes, of a text
with closed categories its place in their list. So rows of several requests are one batch when their bytes are joined. Null
is NaN, a length of 2**32 - 1, the place -1; beside any other value that may be null a byte says whether it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np  # noqa: TID253 - a model needs it anyway; nothing that Airflow parses imports it

from muster_serving.column import DATATYPES, Array, Column

_SIZED = str.maketrans("lL", "qQ")  # NumPy's letters for 64 bits; struct's of that name have 32
_FORMATS = {
    name: "I" if name == "BYTES" else np.dtype(dtype).char.translate(_SIZED)
    for name, dtype in DATATYPES.items()
}
_NULL = 0xFFFF_FFFF


class RecordLayout:
    """The records of the inputs, or of the outputs, of one signature."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self._columns = list(columns)
        formats = [(_format(column), column.tail) for column in self._columns]
        names = [f"f{i}" for i in range(len(formats))]
        fields = [(name, *each) for name, each in zip(names, formats, strict=True)]
        self._fields = list(zip(names, self._columns, strict=True))
        self._nulls = {f: f"null-{f}" for f, c in self._fields if c.marks_nulls and not _is_text(c)}
        fields += [(self._nulls[f], "?", c.tail) for f, c in self._fields if f in self._nulls]
        self._record = np.dtype(fields)
        self._texts = [column for column in self._columns if _is_text(column)]
        self._lists = {
            column.name: np.array([*column.codes, None], dtype=object)  # of which None has the place -1, too
            for column in self._columns
            if column.is_coded
        }
        tails = any(column.tail for column in self._columns)
        self._row = None if self._nulls or tails else self._one_row()
        self._alone = len(self._columns) == 1 and not self._texts and not self._nulls and not self._lists
        self._format = formats[0][0]  # of the one that is alone

    @property
    def joins(self) -> bool:
        """Whether the bytes of several requests, joined, are those of one: no text comes after the records."""
        return not self._texts

    def pack_values(self, values: Mapping[str, list[Any] | Array], rows: int) -> bytes:
        """Return the bytes of a request's values, checked by their columns.

        :param values: of every tensor a flat list of JSON values, or an array where its column takes one.
        :raises RequestError: a column refuses a value.
        """
        if rows == 1 and self._row is not None:
            row = [column.value(values[column.name][0]) for column in self._columns]
            return self._packed_row(self._row, row) if self._texts else self._row.pack(*row)
        arrays = {c.name: c.array(values[c.name]).reshape(rows, *c.tail) for c in self._columns}
        return self.pack(arrays, rows)

    def pack(self, arrays: Mapping[str, Array], rows: int) -> bytes:
        """Return the bytes of arrays that are as the columns say."""
        if self._alone:
            column = self._columns[0]
            return np.ascontiguousarray(arrays[column.name], self._format).tobytes()
        records = np.empty(rows, self._record)
        encoded: dict[str, list[bytes]] = {}
        for field, column in self._fields:
            if _is_text(column):
                texts = arrays[column.name].ravel().tolist()
                parts = [b"" if text is None else str(text).encode() for text in texts]
                encoded[column.name] = parts
                lengths = np.fromiter(map(len, parts), np.uint32, len(parts))
                if column.nullable:
                    lengths[[text is None for text in texts]] = _NULL
                records[field] = lengths.reshape(rows, *column.tail)
            elif field in self._nulls:
                nulls = arrays[column.name] == None  # noqa: E711 - of each object
                records[self._nulls[field]] = nulls
                records[field] = np.where(nulls, 0, arrays[column.name])
            else:
                records[field] = arrays[column.name]
        return b"".join([records.tobytes(), *self._by_row(encoded, rows)])

    def unpack(self, data: bytes | memoryview, rows: int) -> dict[str, Array]:
        """Return the arrays of some bytes: their own copies, a text with categories as that text."""
        if self._alone:
            column = self._columns[0]
            flat: Array = np.frombuffer(data, self._format).copy()
            return {column.name: flat.reshape(rows, *column.tail) if column.tail else flat}
        if rows == 1 and self._row is not None and self._texts:
            return self._unpacked_row(self._row, memoryview(data))
        records = np.frombuffer(data, self._record, count=rows)
        arrays: dict[str, Array] = {}
        for field, column in self._fields:
            found = records[field]
            texts = self._lists.get(column.name)
            if texts is not None:
                arrays[column.name] = texts[found]
            elif field in self._nulls:
                arrays[column.name] = found.astype(object)
                arrays[column.name][records[self._nulls[field]]] = None
            elif not _is_text(column):
                arrays[column.name] = found.copy()
        if self._texts:
            arrays |= self._read_texts(records, memoryview(data)[records.nbytes :], rows)
            arrays = {column.name: arrays[column.name] for column in self._columns}
        return arrays

    def _one_row(self) -> struct.Struct:
        kinds = {c.name: "q" if c.is_coded else _FORMATS[c.datatype] for c in self._columns}
        return struct.Struct("<" + "".join(kinds.values()))

    def _packed_row(self, record: struct.Struct, row: list[Any]) -> bytes:
        texts = []
        for place, column in enumerate(self._columns):
            if _is_text(column):
                text = row[place]
                texts.append(b"" if text is None else text.encode())
                row[place] = _NULL if text is None else len(texts[-1])
        return b"".join([record.pack(*row), *texts])

    def _unpacked_row(self, record: struct.Struct, data: memoryview) -> dict[str, Array]:
        at, arrays = record.size, {}
        for column, value in zip(self._columns, record.unpack_from(data), strict=True):
            texts = self._lists.get(column.name)
            if texts is not None:
                value, kind = texts[value], object
            elif not _is_text(column):
                kind = column.dtype
            else:
                kind, size = object, 0 if value == _NULL else value
                value = None if value == _NULL else str(data[at : at + size], "utf-8")
                at += size
            arrays[column.name] = np.array([value], dtype=kind)
        return arrays

    def _by_row(self, encoded: Mapping[str, list[bytes]], rows: int) -> list[bytes]:
        """Return all texts in the order of the rows."""
        if not encoded:
            return []
        several = {name: len(parts) // rows for name, parts in encoded.items()}
        return [
            text
            for row in range(rows)
            for name, parts in encoded.items()
            for text in parts[row * several[name] : (row + 1) * several[name]]
        ]

    def _read_texts(self, records: Array, heap: memoryview, rows: int) -> dict[str, Array]:
        lengths = {c.name: records[f].reshape(rows, -1).tolist() for f, c in self._fields if _is_text(c)}
        found: dict[str, list[str | None]] = {name: [] for name in lengths}
        at = 0
        for row in range(rows):
            for name, several in lengths.items():
                for length in several[row]:
                    if length == _NULL:
                        found[name].append(None)
                        continue
                    found[name].append(str(heap[at : at + length], "utf-8"))
                    at += length
        return {c.name: np.array(found[c.name], dtype=object).reshape(rows, *c.tail) for c in self._texts}


def _is_text(column: Column) -> bool:
    return column.datatype == "BYTES" and column.codes is None


def _format(column: Column) -> np.dtype[Any]:
    if _is_text(column):
        return np.dtype("<u4")
    return np.dtype(np.int64 if column.is_coded else DATATYPES[column.datatype]).newbyteorder("<")
