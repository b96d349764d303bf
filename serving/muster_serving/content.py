"""Checks the headers that describe a request's body, unpacks it, reads its JSON, and refuses bodies that would be misread.

A body is JSON in UTF-8, or JSON and binary tensors after it (:mod:`muster_serving.binary`); as it is, or packed by gzip or zlib.
The JSON has no byte order mark, and is one object with no name twice in an object (RFC 8259).
"""

from __future__ import annotations

import json
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable
from typing import Any

import orjson

from muster_serving.body import check_length
from muster_serving.errors import RequestError

JSON_LENGTH = b"inference-header-content-length"
BINARY = b"application/octet-stream"

_PACKED = ("gzip", "x-gzip", "deflate")
_USUAL = b"application/json"
_FORM = "application/x-www-form-urlencoded"  # the type that `curl -d` sends for any body
_CHARSETS = ("", "utf-8", "utf8", "us-ascii")


def json_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Check a body's headers; return how many of its bytes are JSON, None if all are.

    :param headers: names in lower case.
    :raises RequestError: 415, an unsupported type; 400, the length is no number.
    """
    length, kind = None, _USUAL
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == JSON_LENGTH:
            length = _number(value)
    if kind != _USUAL:
        _check_type(kind.decode("latin-1"), binary=length is not None)
    return length


def _number(value: bytes) -> int:
    text = value.decode("latin-1").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"Inference-Header-Content-Length: found {text!r:.40}, expected a number of bytes")
    return int(text)


def is_packed(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body is packed. :raises RequestError: 415, in a way that is not known."""
    text = ""
    for name, value in headers:  # the first of several counts
        if name == b"content-encoding":
            text = value.decode("latin-1").strip()
            break
    if text and text.lower() not in ("identity", *_PACKED):
        raise RequestError(
            f"Content-Encoding: found {text!r:.40}; this server reads bodies as they are, by gzip or by deflate",
            status=415,
        )
    return text.lower() in _PACKED


def unpacked(body: bytes, *, most: int) -> bytes:
    """Unpack a body, and no more of it than it may have.

    :param most: how many bytes. :raises RequestError: it is longer, 413; or is not packed as its header says.
    """
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # either of the two
    try:
        found = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not what its Content-Encoding says: {error}") from None
    check_length(len(found), most)
    if not unpacking.eof or unpacking.unused_data:
        raise RequestError("the body is not what its Content-Encoding says: it is cut off, or more follows")
    return found


def _check_type(text: str, *, binary: bool) -> None:
    kind, *parameters = (part.strip().lower() for part in text.split(";"))
    known = kind in ("", _USUAL.decode(), _FORM) or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not known and not (binary and kind == BINARY.decode()):
        hint = "; with binary tensors, Inference-Header-Content-Length is needed" * (kind == BINARY.decode())
        raise RequestError(f"Content-Type: found {text!r:.80}, expected application/json{hint}", status=415)
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in _CHARSETS:
            raise RequestError(f"Content-Type: found {text!r:.80}, expected JSON in UTF-8", status=415)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    :raises RequestError: it is not JSON, not UTF-8 or no object, or an object has a name twice.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = _slowly(body)
    else:
        if type(document) is dict and body.count(b":") != _names(document):
            _slowly(body)  # a text holds a colon, objects are nested deeper, or a name occurs twice
    if type(document) is not dict:
        raise RequestError(f"the body is {kind_of(document)}, expected a JSON object")
    return document


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, for error messages."""
    if value is None:
        return "nothing"
    kinds = {
        dict: "an object",
        list: "a list" if value else "an empty list",
        str: "text",
        bool: "true or false",
    }
    return kinds.get(type(value), "a number")


def _names(document: dict[str, Any]) -> int:
    """Count the names of an object, of its objects, and of those in its lists and their parameters: each had one colon."""
    count = len(document)
    for value in document.values():
        if type(value) is dict:
            count += len(value)
        elif type(value) is list and value and type(value[0]) is dict:
            try:
                count += sum(map(dict.__len__, value))
            except TypeError:  # some items are no objects
                return -1
            count += sum(len(item["parameters"]) for item in value if type(item.get("parameters")) is dict)
    return count


def _slowly(body: bytes) -> Any:
    """Read and check each name. NaN and Infinity are accepted here, so that a later error can name their field."""
    if body.startswith(BOM_UTF8):
        raise RequestError("the body is not JSON: it begins with a byte order mark; send UTF-8 without one")
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        reason = (
            f"byte {error.start} is not UTF-8; binary tensors need the header Inference-Header-Content-Length"
        )
        raise RequestError(f"the body is not JSON: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {str(error) or type(error).__name__:.200}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise RequestError(f"the body has the name {twice!r:.80} twice in one object")
    return found
