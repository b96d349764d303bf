"""Checks the headers that describe a request's body, and refuses bodies that would be misread.

A body is JSON in UTF-8, or JSON and binary tensors after it (:mod:`muster_serving.binary`).
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_serving.errors import RequestError

JSON_LENGTH = b"inference-header-content-length"
BINARY = b"application/octet-stream"

_USUAL = b"application/json"
_FORM = "application/x-www-form-urlencoded"  # the type that `curl -d` sends for any body
_CHARSETS = ("", "utf-8", "utf8", "us-ascii")


def json_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Check a body's headers; return how many of its bytes are JSON, None if all are.

    :param headers: names in lower case.
    :raises RequestError: 415, an unsupported type or encoding; 400, the length is no number.
    """
    length, kind = None, _USUAL
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == JSON_LENGTH:
            length = _number(value)
        elif name == b"content-encoding":
            _check_encoding(value)
    if kind != _USUAL:
        _check_type(kind.decode("latin-1"), binary=length is not None)
    return length


def _number(value: bytes) -> int:
    text = value.decode("latin-1").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"Inference-Header-Content-Length: found {text!r:.40}, expected a number of bytes")
    return int(text)


def _check_encoding(value: bytes) -> None:
    text = value.decode("latin-1").strip()
    if text.lower() not in ("", "identity"):
        raise RequestError(
            f"Content-Encoding: found {text!r:.40}; this server reads bodies that are not compressed",
            status=415,
        )


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
