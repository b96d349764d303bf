"""Who may ask a model server, and how much: tokens, limits, and what is told of both."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import Server
from tests.serving.test_control import (  # noqa: F401 - fixtures among them
    BODY,
    INFER,
    Commanded,
    models,
    run,
    server,
)
from tests.waiting import GUARD_SECONDS, until

from muster.backends.releases.tokens import ENDED_KEPT, MOST_CLIENTS

pytestmark = [pytest.mark.slow, pytest.mark.data]

KEY = "the-key-of-muster-itself"
SHOP, BANK = "token-of-the-shop", "token-of-the-bank"
V1 = "/v1/models/line:predict"
ROWS = {"inputs": {"x": [3.0]}}
NOWHERE = 1e-6  # requests a second: none comes back within a test


def token(client: str, word: str, ended: float | None = None) -> dict[str, Any]:
    digest = hashlib.sha256(word.encode()).hexdigest()
    return {"client": client, "digest": digest, "made": 1.0, "ended": ended}


def admit(of: Commanded, *tokens: dict[str, Any], needed: bool = True, limits: Any = None) -> None:
    assert of.do("admit", needed=needed, key=KEY, tokens=tokens, limits=limits) == {"id": 1}


def limits(**more: Any) -> dict[str, Any]:
    return {"rate": None, "burst": None, "body_bytes": 16 << 20, **more}


def bearer(word: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {word}"}


def ask(of: Server, word: str = "", *, path: str = INFER, body: Any = BODY) -> tuple[int, Any]:
    return of.ask("POST", path, body, **(bearer(word) if word else {}))


def counted(of: Commanded) -> dict[tuple[str, str], float]:
    """What the server has counted of clients, by name and outcome."""
    page = of.private.ask("GET", "/metrics", **{"Muster-Key": KEY})[1]
    found = re.findall(
        r'muster_client_requests_total\{client="(.*)",model="line",outcome="(.*)"\} (\S+)', page
    )
    return {(client, outcome): float(number) for client, outcome, number in found if float(number)}


@pytest.fixture
def serving(server: Commanded, models: dict[str, str]) -> Commanded:  # noqa: F811
    """A server whose users need a token."""
    admit(server, token("shop", SHOP), token("bank", BANK))
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("open")
    return server


def test_a_request_needs_a_token_that_counts(serving: Commanded) -> None:
    status, headers, text = serving.public.exchange("POST", INFER, BODY)
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="line"')
    assert "send the header Authorization: Bearer TOKEN" in json.loads(text)["error"]
    status, headers, text = serving.public.exchange("POST", INFER, BODY, **bearer("guessed"))
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="line", error="invalid_token"')
    assert "guessed" not in text.decode()
    assert ask(serving.public, SHOP)[1]["outputs"][0]["data"] == [3.0]
    assert ask(serving.public, BANK, path=V1, body=ROWS)[0] == 200
    assert ask(serving.public, "", path=V1, body=ROWS)[0] == 401
    assert counted(serving) == {("", "denied"): 3, ("shop", "accepted"): 1, ("bank", "accepted"): 1}


def test_refusals_are_none_of_the_revision(serving: Commanded) -> None:
    for _ in range(5):
        ask(serving.public)
    ask(serving.public, SHOP)
    page = serving.private.ask("GET", "/metrics", **{"Muster-Key": KEY})[1]
    found = re.findall(r'muster_requests_total\{model="line",outcome="(\w+)",revision="r1"\} (\S+)', page)
    assert {outcome: float(number) for outcome, number in found} == {
        "answered": 1,
        "refused": 0,
        "failed": 0,
        "left": 0,
    }


HOSTILE = (
    "",
    "Bearer",
    "Bearer ",
    "Basic c2hvcDpzaG9w",
    f"Token {SHOP}",
    SHOP,
    f"Bearer {SHOP}, Bearer {BANK}",
    f"Bearer {SHOP}\x00",
    f"Bearer {SHOP[:-1]}",
    f"Bearer {SHOP}x",
    "Bearer " + "x" * 16000,
    "Bearer \xff\xfe\x80",
    f"Bearer {hashlib.sha256(SHOP.encode()).hexdigest()}",
)


def test_a_hostile_header_gets_nothing_and_breaks_nothing(serving: Commanded) -> None:
    for value in HOSTILE:
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: {value}\r\nContent-Length: 2\r\n\r\n{{}}"
        with socket.create_connection(("127.0.0.1", serving.public.port), timeout=GUARD_SECONDS) as client:
            client.sendall(head.encode("latin-1"))
            assert client.recv(1 << 12).split(b" ", 2)[1] in (b"401", b"400"), value
    assert ask(serving.public, SHOP)[0] == 200


def test_two_headers_are_refused_and_the_scheme_is_any_case(serving: Commanded) -> None:
    several = f"Authorization: bearer   {SHOP}\r\n"
    for headers, status in ((several, b"200"), (several * 2, b"401")):
        body = json.dumps(BODY)
        request = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"
        with socket.create_connection(("127.0.0.1", serving.public.port), timeout=GUARD_SECONDS) as client:
            client.sendall(request.encode())
            assert client.recv(1 << 12).split(b" ", 2)[1] == status


def test_a_token_in_the_url_or_the_body_is_not_taken(serving: Commanded) -> None:
    for query in (f"?token={SHOP}", f"?access_token={SHOP}", f"?Authorization=Bearer%20{SHOP}"):
        assert ask(serving.public, path=INFER + query)[0] == 401
    assert ask(serving.public, body={**BODY, "access_token": SHOP})[0] == 401


def test_health_is_for_all_and_every_other_page_needs_a_token(serving: Commanded) -> None:
    for path in ("/", "/v2/health/live", "/v2/health/ready", "/v2/models/line/ready"):
        assert serving.public.ask("GET", path)[0] == 200, path
    for path in ("/docs", "/openapi.json", "/metrics", "/v2", "/v2/models/line", "/v1/models", "/nowhere"):
        assert serving.public.ask("GET", path)[0] == 401, path
    for path in ("/docs", "/openapi.json", "/metrics", "/v2", "/v2/models/line", "/v1/models"):
        assert serving.public.ask("GET", path, **bearer(SHOP))[0] == 200, path
    assert serving.public.ask("GET", "/nowhere", **bearer(SHOP))[0] == 404


def test_a_token_is_ended_while_its_client_is_connected(serving: Commanded) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", serving.public.port, timeout=GUARD_SECONDS)) as kept:

        def once() -> tuple[int, Any]:
            kept.request("POST", INFER, json.dumps(BODY), bearer(SHOP))
            answer = kept.getresponse()
            return answer.status, json.loads(answer.read())

        assert once()[0] == 200
        same = kept.sock
        admit(serving, token("shop", SHOP, ended=86400.0), token("bank", BANK))
        status, answer = once()
        assert kept.sock is same
        assert (status, answer["error"]) == (
            401,
            "the token of shop was ended on 1970-01-02 00:00 UTC: ask for a new one",
        )
    assert ask(serving.public, BANK)[0] == 200
    assert counted(serving)["shop", "denied"] == 1


def test_all_the_clients_that_there_may_be_are_told_in_one_command(serving: Commanded) -> None:
    many = [token(f"client-{number}", f"token-{number}") for number in range(MOST_CLIENTS)]
    over = [token(f"once-{number}", f"over-{number}", ended=86400.0) for number in range(ENDED_KEPT)]
    admit(serving, *over, *many)
    assert ask(serving.public, f"token-{MOST_CLIENTS - 1}")[0] == 200
    assert ask(serving.public, "over-0")[0] == 401


def test_each_client_has_its_own_rate(serving: Commanded) -> None:
    admit(serving, token("shop", SHOP), token("bank", BANK), limits=limits(rate=NOWHERE, burst=3))
    assert Counter(ask(serving.public, SHOP)[0] for _ in range(10)) == {200: 3, 429: 7}
    status, headers, text = serving.public.exchange("POST", INFER, BODY, **bearer(SHOP))
    assert (status, int(headers["retry-after"]) > 1) == (429, True)
    assert "client shop has" in json.loads(text)["error"]
    assert Counter(ask(serving.public, BANK, path=V1, body=ROWS)[0] for _ in range(4)) == {200: 3, 429: 1}
    assert serving.public.ask("GET", "/v2/models/line", **bearer(SHOP))[0] == 200  # pages are not limited
    found = counted(serving)
    assert (found["shop", "accepted"], found["shop", "limited"]) == (3, 8)
    assert (found["bank", "accepted"], found["bank", "limited"]) == (3, 1)


def test_a_client_that_stays_is_as_far_from_its_limit_as_it_was(serving: Commanded) -> None:
    few = limits(rate=NOWHERE, burst=2)
    admit(serving, token("shop", SHOP), limits=few)
    assert ask(serving.public, SHOP)[0] == ask(serving.public, SHOP)[0] == 200
    admit(serving, token("shop", SHOP), token("bank", BANK), limits=few)
    assert ask(serving.public, SHOP)[0] == 429


def test_requests_come_back_with_time(serving: Commanded) -> None:
    admit(serving, token("shop", SHOP), limits=limits(rate=5.0, burst=1))
    statuses = Counter[int]()
    while statuses[200] < 3:  # 0.2 seconds each
        statuses[ask(serving.public, SHOP)[0]] += 1
    assert statuses.keys() <= {200, 429}


def test_without_tokens_all_share_one_rate_and_muster_itself_has_none(
    server: Commanded,  # noqa: F811
    models: dict[str, str],  # noqa: F811
) -> None:
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("admit", needed=False, limits=limits(rate=NOWHERE, burst=2))
    server.do("open")
    assert Counter(ask(server.public)[0] for _ in range(5)) == {200: 2, 429: 3}
    assert Counter(ask(server.private)[0] for _ in range(5)) == {200: 5}
    assert "for all clients together" in ask(server.public)[1]["error"]


def test_a_body_has_its_limit(serving: Commanded) -> None:
    admit(serving, token("shop", SHOP), limits=limits(body_bytes=1000))
    assert ask(serving.public, SHOP)[0] == 200
    for rows in (300, 30000):  # one piece, and many
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows], "data": [1.5] * rows}]}
        status, answer = ask(serving.public, SHOP, body=body)
        assert (status, "at most 1000 are read" in answer["error"]) == (413, True)
    assert ask(serving.public, SHOP)[0] == 200


def test_a_long_body_without_a_token_is_not_kept(serving: Commanded) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {15 << 20}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", serving.public.port), timeout=GUARD_SECONDS) as client:
        client.sendall(head.encode())
        assert client.recv(1 << 12).split(b" ", 2)[1] == b"401"  # before any of the body


def test_the_private_port_is_muster_s_own(serving: Commanded) -> None:
    path = "/v2/models/line/versions/r1/infer"
    for headers in ({}, bearer(SHOP), {"Muster-Key": ""}, {"Muster-Key": KEY[:-1]}):
        assert serving.private.ask("POST", path, BODY, **headers)[0] == 401
        assert serving.private.ask("POST", f"/routed/r1{INFER}", BODY, **headers)[0] == 401
        assert serving.private.ask("GET", "/metrics", **headers)[0] == 401
    assert serving.private.ask("POST", path, BODY, **{"Muster-Key": KEY})[0] == 200
    assert serving.public.ask("POST", INFER, BODY, **{"Muster-Key": KEY})[0] == 401


def test_another_process_takes_a_client_s_request(run: Any, models: dict[str, str]) -> None:  # noqa: F811
    with ExitStack() as stack:
        first, second = (stack.enter_context(run()) for _ in range(2))
        for one, revision in ((first, "r1"), (second, "r2")):
            admit(one, token("shop", SHOP), limits=limits(rate=NOWHERE, burst=5))
            one.do("load", revision, folder=models[revision])
        first.share(r1=0, r2=100, ports={"r2": second.private.port})
        first.do("open")
        assert Counter(ask(first.public, SHOP)[0] for _ in range(7)) == {200: 5, 429: 2}
        assert first.public.ask("GET", "/v2/models/line", **bearer(SHOP))[1]["versions"] == ["r2"]
        page = second.private.ask("GET", "/metrics", **{"Muster-Key": KEY})[1]
        assert 'muster_requests_total{model="line",outcome="answered",revision="r2"} 5.0' in page
        assert counted(first)["shop", "accepted"] == 5
        assert ("shop", "accepted") not in counted(second)


def test_no_token_is_ever_written(serving: Commanded) -> None:
    ask(serving.public, SHOP)
    ask(serving.public, "wrong-" + SHOP)
    ask(serving.public, SHOP, body=b"\xff")
    ask(serving.public, path=f"{INFER}?token={SHOP}")
    with socket.create_connection(("127.0.0.1", serving.public.port), timeout=GUARD_SECONDS) as client:
        client.sendall(f"POST {INFER} NONSENSE\r\nAuthorization: Bearer {SHOP}\r\n\r\n".encode())
        client.recv(1 << 12)
    log = serving.public.log.read_text()
    assert SHOP not in log
    assert KEY not in log
    assert SHOP not in serving.private.ask("GET", "/metrics", **{"Muster-Key": KEY})[1]


def test_on_a_cluster_a_file_and_muster_itself_tell_of_tokens(
    command: list[str],
    run_server: Any,
    models: dict[str, str],  # noqa: F811
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    monkeypatch.setenv("MUSTER_KEY", KEY)
    words = [*command, "line", f"--model={models['r1']}", "--revision=r1"]
    words += [f"--port={port}", f"--tokens={folder}", "--limits", json.dumps(limits(rate=NOWHERE, burst=4))]

    def document(writes: int, *tokens: dict[str, Any]) -> dict[str, Any]:
        # as muster.core.wire writes it: without what is not set
        known = [{key: value for key, value in each.items() if value is not None} for each in tokens]
        return {"kind": "Tokens", "schema": 1, "writes": writes, "tokens": known}

    def bring(text: str) -> None:
        """As the kubelet: whole, by a rename."""
        (folder / "new").write_text(text)
        (folder / "new").rename(folder / "tokens.json")

    with run_server(words, port=port, ready="/v2/health/ready", log=tmp_path / "log") as alone:
        assert ask(alone, SHOP)[0] == 401
        bring(json.dumps(document(1, token("shop", SHOP))))
        assert until(lambda: ask(alone, SHOP)[0] == 200)
        ended = document(2, token("shop", SHOP, ended=1.0), token("bank", BANK))
        for headers, status in (({}, 401), (bearer(SHOP), 404), ({"Muster-Key": "x"}, 401)):
            assert alone.ask("POST", "/muster/tokens", ended, **headers)[0] == status
        assert alone.ask("POST", "/muster/tokens", ended, **{"Muster-Key": KEY})[0] == 200
        assert (ask(alone, SHOP)[0], ask(alone, BANK)[0]) == (401, 200)
        bring("nonsense")
        assert until(lambda: "the tokens read before stand" in alone.log.read_text())
        late = json.dumps(document(1, token("shop", SHOP)))  # the kubelet is
        os.mkfifo(folder / "new")
        (folder / "new").rename(folder / "tokens.json")
        (folder / "tokens.json").write_text(late)  # ends once the server reads it
        bring(late)
        assert alone.ask("POST", "/muster/tokens", document(2), **{"Muster-Key": KEY})[0] == 200
        assert (ask(alone, SHOP)[0], ask(alone, BANK)[0]) == (401, 200)
        assert Counter(ask(alone, BANK)[0] for _ in range(4)) == {200: 2, 429: 2}
        path = "/v2/models/line/versions/r1/infer"
        own = Counter(alone.ask("POST", path, BODY, **{"Muster-Key": KEY})[0] for _ in range(9))
        assert own == {200: 9}
        assert alone.ask("POST", "/muster/tokens", b"[1]", **{"Muster-Key": KEY})[0] == 400
        assert KEY not in Path(f"/proc/{alone.process.pid}/cmdline").read_text()
