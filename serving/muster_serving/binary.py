"""Binary tensors: the values of tensors as bytes after the JSON of a request or an answer, in the JSON's order.

Source: the binary tensor data extension of the Open Inference Protocol
(https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/extension_binary_data.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it

from muster_serving.column import DATATYPES, Array, Column
from muster_serving.errors import RequestError

_LENGTH = struct.Struct("<I")


class Tail:
    """The bytes after a body's JSON."""

    def __init__(self, body: bytes, json_length: int) -> None:
        """Begin after the JSON. :raises RequestError: the body is shorter than the stated length of its JSON."""
        if json_length > len(body):
            raise RequestError(
                f"Inference-Header-Content-Length is {json_length}, the whole body has {len(body)} bytes"
            )
        self._body = body
        self._at = json_length

    def take(self, column: Column, size: Any) -> list[Any] | Array:
        """Return the next tensor's values, flat.

        :param size: its ``binary_data_size``.
        :raises RequestError: bytes are missing, or are not values of the column's data type.
        """
        where = f"input {column.name!r}"
        left = len(self._body) - self._at
        if type(size) is not int or not 0 <= size <= left:
            raise RequestError(
                f"{where}: binary_data_size is {size!r:.40}, {left} bytes are left after the JSON and the "
                "tensors before it"
            )
        raw = self._body[self._at : self._at + size]
        self._at += size
        return _texts(where, raw) if column.datatype == "BYTES" else _numbers(where, column, raw)

    def check_end(self) -> None:
        """Raise RequestError where bytes are left that no tensor takes."""
        if left := len(self._body) - self._at:
            raise RequestError(
                f"{left} bytes are left after the last tensor: no binary_data_size counts them"
            )


NOTHING = Tail(b"", 0)


def flag(where: str, parameters: Any, name: str, *, default: bool) -> bool:
    """Return a boolean parameter. :raises RequestError: it is no boolean, or `parameters` is no object."""
    if parameters is None:
        return default
    value = checked(where, parameters).get(name, default)
    if type(value) is not bool:
        raise RequestError(f"{where}: {name} is {value!r:.40}, expected true or false")
    return value


def checked(where: str, parameters: Any) -> Mapping[str, Any]:
    """Return a request's or a tensor's parameters. :raises RequestError: they are no object."""
    if type(parameters) is not dict:
        raise RequestError(f"{where}: parameters is {parameters!r:.40}, expected an object")
    return parameters


def encode(datatype: str, array: Array) -> bytes:
    """Return an output's values as bytes, row by row."""
    if datatype == "BYTES":
        texts = [str(value).encode() for value in array.ravel().tolist()]
        return b"".join(_LENGTH.pack(len(text)) + text for text in texts)
    return array.astype(_little_endian(datatype), copy=False).tobytes()


def _little_endian(datatype: str) -> np.dtype[Any]:
    return np.dtype(DATATYPES[datatype]).newbyteorder("<")


def _numbers(where: str, column: Column, raw: bytes) -> list[Any] | Array:
    dtype = _little_endian(column.datatype)
    if len(raw) % dtype.itemsize:
        raise RequestError(
            f"{where}: {len(raw)} bytes are no whole number of {column.datatype}, which has {dtype.itemsize} bytes"
        )
    if column.datatype == "BOOL" and raw.translate(None, b"\0\1"):
        raise RequestError(f"{where}: found a byte that is neither 0 nor 1, expected BOOL")
    array: Array = np.frombuffer(raw, dtype)
    return array if column.takes_arrays and array.size > 1 else array.tolist()


def _texts(where: str, raw: bytes) -> list[Any]:
    """Read texts: each follows its length."""
    texts: list[Any] = []
    at = 0
    while at < len(raw):
        begin = at + _LENGTH.size
        at = begin + (_LENGTH.unpack_from(raw, at)[0] if begin <= len(raw) else len(raw))
        if at > len(raw):
            raise RequestError(f"{where}: the text at position {len(texts)} goes beyond its tensor's bytes")
        try:
            texts.append(raw[begin:at].decode("utf-8"))
        except UnicodeDecodeError:
            raise RequestError(f"{where}: the text at position {len(texts)} is not UTF-8") from None
    return texts
