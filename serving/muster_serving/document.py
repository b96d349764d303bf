"""Reads a body's JSON: UTF-8 without a byte order mark, one object, no name twice in an object (RFC 8259)."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from typing import Any

import orjson

from muster_serving.errors import RequestError


def read(body: bytes) -> dict[str, Any]:
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
        raise RequestError(f"the body is {kind(document)}, expected a JSON object")
    return document


def kind(value: Any) -> str:
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
