"""What a client does while its service is away, and what it says when it stays away."""

import json
import re
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest
from tests.unit.volumes.service.gang import make_spec
from tests.unit.volumes.service.process import Service
from tests.waiting import GUARD_SECONDS

from muster.core import errors
from muster.core.errors import NotFound, SpecError, StoreError, Unavailable
from muster.volumes.service import refusals, tokens
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.connection import Connection

NAMES = b'{"kind":"Names","schema":1,"names":["a"]}'


def answer(status, body=b"", *, length=None):
    head = f"HTTP/1.1 {status} x\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


@contextmanager
def serving(*answers):
    """Listen, and answer one connection after the other with the bytes given; None hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard = []

        def serve():
            for each in answers:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the client asked less often than was expected, and the test says so
                    return
                with connection:
                    if each is not None:
                        heard.append(connection.recv(65536))
                        connection.sendall(each)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        finally:
            thread.join(GUARD_SECONDS)
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def ask(tmp_path):
    def volumes(url, *, patience_seconds=10):
        with ServiceStore(url, token="t", cache=tmp_path, patience_seconds=patience_seconds) as store:
            return store.volumes()

    return volumes


@pytest.mark.parametrize(
    "first",
    [
        None,
        answer(502),
        answer(503),
        answer(504),
        b"",
        b"HTTP/1.1 200 OK\r\n",
        answer(200, NAMES, length=999),
    ],
)
def test_a_service_that_comes_back_is_asked_again(ask, first):
    with serving(first, first, answer(200, NAMES)) as (url, _):
        assert ask(url) == ["a"]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 500, 501, 302])
def test_what_was_answered_is_not_asked_again(ask, status):
    with serving(answer(status, b"<html>no</html>")) as (url, heard):
        with pytest.raises(
            StoreError, match=f"answered HTTP {status} '<html>no</html>': is that the address"
        ):
            ask(url)
        assert len(heard) == 1


def test_a_service_that_stays_away_is_told_in_one_message(ask):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(
            Unavailable, match=rf"{url} does not answer \(.*refused.*for 0.2 s: is it running"
        ):
            ask(url, patience_seconds=0.2)


def test_a_token_goes_to_nobody_else(ask):
    redirect = b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
    with serving(redirect) as (url, _), pytest.raises(StoreError, match="HTTP 307"):
        ask(url)


@pytest.mark.parametrize("url", ["", "muster-store:8470", "ftp://x", "file:///etc/passwd"])
def test_an_address_must_be_one(ask, url):
    with pytest.raises(SpecError, match="expected its address"):
        ask(url)


def test_every_error_comes_back_as_it_was_raised():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.MusterError):
            body = json.dumps(refusals.document(kind("so"))).encode()
            back = refusals.read(body, status=refusals.status_of(kind("so")), where="x")
            assert (type(back), str(back)) == (kind, "so")
    assert (
        type(
            refusals.read(
                json.dumps(refusals.document(tokens.TokenRefused("no"))).encode(), status=401, where="x"
            )
        )
        is StoreError
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"error":"SystemExit","message":""}', b'{"error":"json"}', b"\xff"]
)
def test_what_is_not_the_services_own_is_named(body):
    assert type(refusals.read(body, status=418, where="http://x")) is StoreError


def test_the_same_errors_cross_the_wire(store):
    with pytest.raises(NotFound, match="no job no-such-job"):
        store.ledger.spec("no-such-job")
    with pytest.raises(NotFound, match="no volume"):
        store.resolve("no/such")
    with pytest.raises(SpecError, match="segment"):
        store.count("../x")


def test_a_lost_answer_to_own_is_still_a_yes(store, service):
    store.ledger.create("owned-1", make_spec())
    assert store.ledger.own("owned-1", owner="me", expected=None)
    assert store.ledger.own("owned-1", owner="me", expected=None)  # as a second try would
    assert not store.ledger.own("owned-1", owner="you", expected=None)


def test_many_statuses_in_one_request(store):
    for name in ("many-1", "many-2"):
        store.ledger.create(name, make_spec())
    assert [status.job_id for status in store.ledger.statuses(["many-2", "gone-1", "many-1"])] == [
        "many-2",
        "many-1",
    ]


def test_a_connection_tells_that_nobody_is_there_any_more():
    """Whose node went with its network sends nothing, not even a word that it is gone: the kernel has to ask."""
    with connected(None) as found:
        idle, every, probes, unread = options(found)
    assert idle + every * probes <= 3
    assert unread <= 3000


@pytest.mark.parametrize("content", [lambda: iter([b"x"]), b"x" * (64 << 10)])
def test_what_sends_much_waits_for_who_reads_nothing_for_a_while(content):
    """For TCP_USER_TIMEOUT an end whose disk or threads are busy is the same as one that is gone."""
    with connected(content) as found:
        idle, every, probes, unread = options(found)
    assert idle + every * probes <= 3
    assert unread >= 60_000


@pytest.mark.slow
def test_a_service_that_reads_nothing_for_longer_than_it_may_be_gone_gets_all_of_an_upload():
    data, got, go_on = b"x" * (16 << 20), [], threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as sent:
                go_on.wait(4.5)  # more than an end that is gone gets
                while (line := sent.readline()).strip():
                    got.append(line)
                got.append(sent.read(len(data)))
                connection.sendall(answer(200, NAMES))

        thread = threading.Thread(target=serve)
        thread.start()
        with closing(Connection(f"http://127.0.0.1:{listening.getsockname()[1]}", token="t")) as connection:
            connection.request("PUT", "/v1/code/x", content=data)
        thread.join()
    assert got[-1] == data


@contextmanager
def connected(content):
    """The socket by which a request with this body is sent."""
    with serving(answer(200, NAMES)) as (url, _), closing(Connection(url, token="t")) as connection:
        method = "GET" if content is None else "PUT"
        with connection.sent(method, "/v1/volumes", content=content) as response:
            yield response.extensions["network_stream"].get_extra_info("socket")
            response.read()


def options(found):
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    named = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    return [found.getsockopt(socket.IPPROTO_TCP, option) for option in named]


def test_certificates_that_cannot_be_read_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(SpecError, match=r"https://store.*No such file.*SSL_CERT_FILE, which is .*none.pem"):
        Connection("https://store", token="t")
    Connection("http://store", token="t").close()


def test_a_service_that_stays_away_is_told_once_and_that_it_is_back(ask, caplog, monkeypatch):
    monkeypatch.setattr("muster.volumes.service.connection.SAID_AFTER_SECONDS", 0.0)
    with serving(None, None, None, answer(200, NAMES)) as (url, _):
        assert ask(url) == ["a"]
    away, back = [record.getMessage() for record in caplog.records]
    assert re.match(rf"the store service at {url} does not answer \(.+\): asking again for up to 10 s", away)
    assert re.match(rf"the store service at {url} answers again, after [0-9.]+ s", back)


def test_a_moment_of_absence_is_not_told(ask, caplog):
    with serving(None, answer(200, NAMES)) as (url, _):
        assert ask(url) == ["a"]
    assert caplog.records == []


RECORD = {"volume": "a/b", "digest": "b3:0", "created": 1.0, "job_id": "j", "output": "o"}


def record(number):
    return {**RECORD, "number": number}


def test_many_records_are_one_request(tmp_path):
    found = {"kind": "Records", "schema": 1, "records": [record(2), record(1)]}
    with (
        serving(answer(200, json.dumps(found).encode())) as (url, heard),
        ServiceStore(url, token="t", cache=tmp_path) as store,
    ):
        assert [each.number for each in store.records(["a/b@2", "a/b@1"])] == [2, 1]
    assert [request.split()[1] for request in heard] == [b"/v1/records"]


def test_a_version_that_is_not_there_is_no_call_that_is_not_there(tmp_path):
    missing = {"error": "NotFound", "message": "no such version"}
    with (
        serving(answer(404, json.dumps(missing).encode())) as (url, _),
        ServiceStore(url, token="t", cache=tmp_path) as store,
        pytest.raises(NotFound, match="no such version"),
    ):
        store.records(["a/b@2"])


@pytest.mark.parametrize(("shift", "way"), [(300, "ahead of"), (-300, "behind")])
def test_a_clock_that_is_far_off_is_told_once(tmp_path, caplog, shift, way):
    """Nothing of the store's is decided by a client's clock, so all calls do."""
    with Service(tmp_path) as service:
        shifted = Connection(service.url, token=service.token(), clock=lambda: time.time() + shift)
        with closing(shifted) as connection:
            for _ in range(3):
                assert connection.request("GET", "/v1/volumes").status_code == 200
            assert abs(connection.ahead_seconds - shift) < 60
    (told,) = caplog.messages
    assert f"this machine's clock is {abs(shift):d} s {way} the store service's" in re.sub(
        r"(29|30)\d s", "300 s", told
    )
    assert "timedatectl" in told


def test_clocks_that_agree_and_an_answer_without_a_time_are_not_told(tmp_path, caplog):
    with Service(tmp_path) as service, closing(Connection(service.url, token=service.token())) as connection:
        connection.request("GET", "/v1/volumes")
        assert abs(connection.ahead_seconds) < 60
    with serving(answer(200, NAMES)) as (url, _), closing(Connection(url, token="t")) as connection:
        connection.request("GET", "/v1/volumes")
        assert connection.ahead_seconds == 0
    assert caplog.messages == []


@pytest.mark.parametrize("shift", [300, -300])
def test_a_token_that_was_made_by_a_clock_minutes_off_counts(shift):
    """Airflow's pods make theirs for six hours, people for days; a job's is made and read by one service."""
    six_hours = tokens.Token(kind=tokens.TokenKind.OPERATOR, expires=time.time() + shift + 6 * 3600)
    assert tokens.verify((b"k" * 32,), tokens.sign((b"k" * 32,), six_hours)) == six_hours


def test_a_token_that_has_expired_by_a_clock_that_is_ahead_says_both_times():
    late = tokens.Token(kind=tokens.TokenKind.OPERATOR, expires=time.time() - 300)
    with pytest.raises(
        tokens.TokenRefused, match=r"expired at 20\S+ \S+ UTC, by the clock .* says 20\S+ \S+ UTC"
    ):
        tokens.verify((b"k" * 32,), tokens.sign((b"k" * 32,), late))
