"""What the errors of sources mean, and how sources are listed where they fail now and then."""

from __future__ import annotations

import gzip
import ssl
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("error", "denied"),
    [
        (OSError("Forbidden: https://storage.googleapis.com/storage/v1/b/lake/o"), True),
        (OSError("the page says Forbidden: nobody knows why"), False),
        (PermissionError("no"), True),
    ],
)
def test_what_says_that_the_credentials_do_not_do(error: Exception, denied: bool) -> None:
    from muster_ingest.connection import Connection  # type: ignore[import-not-found]
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    assert Place("gs://lake/events", Connection()).denied(error) is denied


def test_what_a_connection_holds_is_hidden() -> None:
    from muster_ingest.connection import Connection  # type: ignore[import-not-found]

    extra = {"sasl.password": 12345678, "headers": {"X-Token": "word"}, "client.id": "muster", "anon": True}
    connection = Connection(login="ann", password="pass word", host="db.local", extra=extra)
    said = "ann:pass word@db.local\n  12345678 {'X-Token': 'word'} muster True"
    assert connection.hidden(said, ("client.id",)) == "***:***@*** *** {'X-Token': '***'} muster True"


def opened(source: str, fs: Any, root: str) -> Any:
    """Return a place as it is once it has begun, with a file system of the test's."""
    from muster_ingest.connection import Connection  # type: ignore[import-not-found]
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    place = Place(source, Connection())
    place.fs, place.root = fs, root
    return place


def patience(place: Any, seconds: float = 0.1) -> Any:
    from muster_ingest.fetching import Patience  # type: ignore[import-not-found]

    return Patience(place, seconds)


def failing(answer: Callable[[Any], Any], error: Exception) -> tuple[list[Any], Callable[[Any], Any]]:
    """Return what was asked for, and a function that fails for everything when it is asked for it first."""
    asked: list[Any] = []

    def ask(what: Any) -> Any:
        asked.append(what)
        if asked.count(what) == 1:
            raise error
        return answer(what)

    return asked, ask


def test_an_error_that_passes_repeats_one_page_of_a_list() -> None:
    pages = {"": {"IsTruncated": True, "NextContinuationToken": "b"}, "b": {}}
    asked, answer = failing(
        lambda token: {"Contents": [{"Key": f"{token}0", "Size": 1, "ETag": "tag"}], **pages[token]},
        ConnectionResetError("gone"),
    )
    fs = SimpleNamespace(call_s3=lambda _, **given: answer(given.get("ContinuationToken", "")))
    place = opened("s3://lake", fs, "lake")
    found = list(place.objects(patience(place).ask))
    assert [path for _, path, _, _ in found] == ["0", "b0"]
    assert asked == ["", "", "b", "b"]


def test_a_request_of_sftp_that_failed_is_repeated_with_a_new_connection() -> None:
    happened: list[str] = []
    file = {"name": "/x/a", "type": "file", "size": 1, "mtime": 1}
    asked, listed = failing(lambda folder: [file] if folder == "/x" else [], EOFError())
    fs = SimpleNamespace(
        connect_again=lambda: happened.append("connected"),
        client=SimpleNamespace(close=lambda: happened.append("closed")),
        ls=lambda folder, detail: listed(folder),
    )
    place = opened("sftp://host/x/", fs, "/x")
    assert [key for key, _, _, _ in place.objects(patience(place).ask)] == ["/x/a"]
    assert asked == ["/x", "/x"]
    assert happened == ["connected", "closed", "connected"]


def test_one_file_of_sftp_is_no_folder_where_its_server_fails_once() -> None:
    _, info = failing(lambda name: {"name": name, "type": "file", "size": 1, "mtime": 1}, EOFError())
    fs = SimpleNamespace(
        connect_again=lambda: None,
        client=SimpleNamespace(close=lambda: None),
        info=info,
        isfile=lambda _: False,
    )
    place = opened("sftp://host/x/a", fs, "/x/a")
    assert [path for _, path, _, _ in place.objects(patience(place).ask)] == ["a"]


def test_an_answer_that_something_is_not_there_starts_patience_anew() -> None:
    waiting = patience(opened("s3://lake", None, "lake"), 0.05)
    _, question = failing(lambda _: "answer", ConnectionResetError("gone"))
    _, gone = failing(lambda _: (_ for _ in ()).throw(FileNotFoundError("x")), ConnectionResetError("gone"))
    with pytest.raises(FileNotFoundError):
        waiting.ask("x", lambda: gone("x"))
    assert waiting.ask("y", lambda: question("y")) == "answer"


def test_a_source_that_is_away_is_told_of_once_a_minute_without_a_word_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from muster_ingest import fetching
    from muster_ingest.connection import Connection
    from muster_ingest.places import Place

    times = iter([0.0, 30.0, 59.0, 61.0, 90.0, 400.0])
    monkeypatch.setattr(fetching, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(fetching, "FIRST_PAUSE", 0.0)

    def question() -> None:
        raise ConnectionResetError("by secret.host")

    place = Place("s3://lake", Connection(host="secret.host"))
    with pytest.raises(Exception, match="does not answer, for 400 s"):
        patience(place, 300.0).ask("its list", question)
    assert capsys.readouterr().out.splitlines() == [
        f"s3://lake does not answer (ConnectionResetError at its list: by ***): asking again for up to {left} s"
        for left in (300, 239)
    ]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "the server speaks no TLS"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "shows a certificate that is not"),
    ],
)
def test_tls_that_is_not_to_be_had_is_not_waited_for(said: str, meant: str) -> None:
    def question() -> None:
        raise ssl.SSLError(1, said)

    with pytest.raises(Exception, match=meant):
        patience(opened("https://host/x", None, ""), 300.0).ask("its start", question)


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, 9),
        ({"contentEncoding": "gzip"}, -1),
        ({"contentEncoding": "identity"}, 9),
        ({"contentEncoding": "gzip", "size": 0}, 0),
        ({"content_settings": {"content_encoding": "GZIP"}}, -1),
        ({"content_settings": {"content_encoding": None}}, 9),
        ({"size": None}, -1),
    ],
)
def test_of_what_a_cloud_holds_compressed_no_size_is_known(more: dict[str, Any], size: int) -> None:
    file = {"name": "lake/x/a", "type": "file", "size": 9, "etag": "tag", **more}
    fs = SimpleNamespace(ls=lambda folder, detail: [file], info=lambda name: file)
    place = opened("gs://lake/x/", fs, "lake/x")
    assert list(place.objects(patience(place).ask)) == [("lake/x/a", "a", size, "tag")]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_gzip_is_decoded_piece_by_piece_in_bounded_memory(piece: int) -> None:
    from muster_ingest.encoded import Decoder  # type: ignore[import-not-found]

    stored = gzip.compress(b"a" * 1_000) + gzip.compress(b"second")
    decoder = Decoder("gzip", most=100)
    pieces = [stored[begin : begin + piece] for begin in range(0, len(stored), piece)]
    parts = [part for each in pieces for part in decoder.decoded(each)]
    decoder.end()
    assert b"".join(parts) == b"a" * 1_000 + b"second"
    assert max(map(len, parts)) <= 100


def test_gzip_whose_end_is_missing_is_none() -> None:
    from muster_ingest.encoded import Decoder

    decoder = Decoder("gzip")
    list(decoder.decoded(gzip.compress(b"text")[:-3]))
    with pytest.raises(zlib.error, match="its end is missing"):
        decoder.end()
    with pytest.raises(zlib.error):
        list(Decoder("gzip").decoded(b"plain text"))
