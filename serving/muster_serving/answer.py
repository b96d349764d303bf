"""A model server's answer, independent of the server around it: status, body and headers."""

from __future__ import annotations

from typing import NamedTuple

import orjson

Headers = tuple[tuple[bytes, bytes], ...]

JSON: Headers = ((b"content-type", b"application/json"),)
REVISION = b"muster-revision"
MODEL = b"muster-model"
PREDICTION = b"muster-prediction"
READ = ("GET", "HEAD")
CLIENT_LEFT = 499  # no client gets it: a status for the counts, as in nginx's log


class HttpAnswer(NamedTuple):
    """Status, body and headers; the server around it adds the Content-Length.

    :param outside: the inputs with a value that no training row had, as far as the signature records what these had.
    :param places: the bins of its values, where requests are counted by them (:mod:`muster_serving.histograms`).
    :param sent: whether the client has it, as events: its status says how they ended.
    """

    status: int
    body: bytes
    headers: Headers = JSON
    outside: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None
    sent: bool = False


def refusal(message: str, status: int, headers: Headers = ()) -> HttpAnswer:
    """Return an error as JSON: the same form for every path, protocol and status."""
    written = message.encode("utf-8", "backslashreplace").decode()  # it may quote what UTF-8 cannot hold
    return HttpAnswer(status, orjson.dumps({"error": written}), JSON + headers)


def not_there(method: str, path: str) -> HttpAnswer:
    """Refuse a path that this server does not have."""
    return refusal(
        f"{method:.20} {path!r:.80}: there is no such page here; GET /docs lists what there is", 404
    )


def not_allowed(method: str, path: str, allowed: tuple[str, ...]) -> HttpAnswer:
    """Refuse a method that a path does not have, and name its methods."""
    words = ", ".join(allowed)
    return refusal(
        f"{method:.20} {path!r:.80}: this page takes {words}", 405, ((b"allow", words.encode("ascii")),)
    )


def which(revision: str, model: str | None) -> Headers:
    """Return the headers that name the revision, and the version, of an answer.

    :param model: the version's address, such as ``volume://flights/model@8``, where it is known.
    """
    named = ((REVISION, revision.encode("latin-1", "replace")),)
    return (*named, (MODEL, model.encode("latin-1", "replace"))) if model else named
