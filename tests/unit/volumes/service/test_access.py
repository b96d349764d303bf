"""Who may what: every request needs a token, and a job's counts for its own few alone."""

import json
import re
from urllib.parse import quote

import httpx
import pytest
from tests.unit.volumes.service.gang import Gang, make_spec

from muster.core.errors import StoreError
from muster.volumes.folder import FolderStore
from muster.volumes.service.app import create_app
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.tokens import TokenKind, job_token, operator_token

OPEN = ("/healthz", "/livez", "/term")  # they say nothing but that the service is there, and which one
_GONE = "/v1/jobs/{job_id}/attempts/{attempt}/replicas/{role}/{index}/gone"
OF_JOBS = {"/v1/jobs/{job_id}/bundle", "lines", "seal", _GONE, "outlook"}


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    """Every route of the service, as its application has them."""
    app = create_app(FolderStore(tmp_path_factory.mktemp("routes") / "store"), keys=(b"k" * 32,))
    routes = [route for each in app.routes for route in getattr(each, "routes", [each])]
    return [(method, route.path) for route in routes for method in route.methods if method != "HEAD"]


@pytest.fixture(scope="module")
def job(service):
    with Gang(service, "access-1", make_spec()) as gang:
        gang.bundle().raise_for_status()
        yield gang


def filled(path):
    values = {"job_id": "access-1", "attempt": "1", "role": "main", "index": "0"}
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: values.get(found[1], "x"), path)


@pytest.fixture(scope="module")
def asked(service):
    """Ask any path in any name."""
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        yield lambda token, method, path: client.request(
            method, filled(path), headers={} if token is None else {"authorization": token}
        )


def test_nothing_is_answered_without_a_token(asked, routes):
    assert len(routes) > 35
    for method, path in routes:
        for token in (None, "Basic eDp5", "Bearer x"):
            answer = asked(token, method, path)
            if path not in OPEN:
                assert (answer.status_code, answer.json()["error"]) == (401, "StoreError"), (
                    method,
                    path,
                    token,
                )


def test_a_jobs_token_counts_for_its_own_five_requests_alone(service, asked, routes, job):
    token = "Bearer " + job_token(service.keys, "access-1", attempt=1, lifetime_seconds=60)
    for method, path in routes:
        answer = asked(token, method, path)
        own = path in OF_JOBS or path.rpartition("/")[2] in OF_JOBS or path in OPEN
        assert (answer.status_code != 401) == own, (method, path, answer.text)


SWEEPS = {("POST", "/v1/gc/collect"), ("POST", "/v1/upkeep/sweep")}
CLICKS = {("POST", f"/v1/{mark}") for mark in ("pin", "unpin", "retire", "reinstate")} | {
    ("DELETE", "/v1/leases/{holder}"),
    ("POST", "/v1/jobs/{job_id}/log"),
    ("POST", "/v1/logs/{kind}/{name}/events"),
    ("POST", "/v1/searches/{search_id}/events"),
    ("PUT", "/v1/jobs/{job_id}/status"),
    ("PUT", "/v1/jobs/{job_id}/tally"),
}
READS = {
    ("POST", path)
    for path in ("/v1/records", "/v1/statuses", "/v1/specs", "/v1/gc/plan", "/v1/usage", "/v1/usage/budgets")
}


TOKENS = {("POST", "/v1/tokens"), ("GET", "/v1/tokens"), ("POST", "/v1/tokens/{token_id}/end")}


@pytest.mark.parametrize("kind", [TokenKind.READER, TokenKind.SWEEPER, TokenKind.PAGE])
def test_a_token_with_fewer_rights_changes_nothing_else(service, asked, routes, kind):
    token = "Bearer " + operator_token(service.keys, lifetime_seconds=60, kind=kind)
    allowed = READS | {TokenKind.SWEEPER: SWEEPS, TokenKind.PAGE: CLICKS | TOKENS}.get(kind, set())
    for method, path in routes:
        reads = method == "GET" and not path.startswith(("/v1/predictions", "/v1/tokens"))
        reads = reads and not {path, path.rpartition("/")[2]} & OF_JOBS
        answer = asked(token, method, path)
        assert (answer.status_code != 401) == (reads or path in OPEN or (method, path) in allowed), (
            method,
            path,
            answer.text,
        )


@pytest.mark.parametrize("whose", ["another job", "another attempt", "expired", "tampered", "another key"])
def test_a_token_that_is_not_this_jobs_is_refused(service, store, job, whose):
    token = {
        "another job": job_token(service.keys, "access-2", attempt=1, lifetime_seconds=60),
        "another attempt": job_token(service.keys, "access-1", attempt=2, lifetime_seconds=60),
        "expired": job_token(service.keys, "access-1", attempt=1, lifetime_seconds=-1),
        "tampered": job_token(service.keys, "access-1", attempt=1, lifetime_seconds=60)[:-4] + "AAAA",
        "another key": job_token((b"x" * 32,), "access-1", attempt=1, lifetime_seconds=60),
    }[whose]
    query = {"attempt": 1, "role": "main", "index": 0, "pod": "pod-0-0"}
    with service.asking(token) as pods:
        answers = [
            pods.get("/v1/jobs/access-1/bundle", params=query),
            pods.post(f"{job.path()}/lines", params={"offset": 0}, content=b"not mine\n"),
            pods.put(f"{job.path()}/seal", content=job.sealing({"out/x": b"1"})),
        ]
    assert {answer.status_code for answer in answers} <= {401, 409}
    assert store.ledger.read("access-1")[0] == b""
    assert store.sealed("access-1") is None


def test_a_client_whose_token_is_renewed_goes_on(service, tmp_path):
    held = [operator_token(service.keys, lifetime_seconds=-1)]
    with ServiceStore(service.url, token=lambda: held[-1], cache=tmp_path) as client:
        with pytest.raises(StoreError, match="the token expired at"):
            client.volumes()
        held.append(operator_token(service.keys, lifetime_seconds=60, kind=TokenKind.READER))
        assert isinstance(client.volumes(), list)


def test_an_operators_token_counts_for_a_job_too(service, job):
    with service.asking(operator_token(service.keys, lifetime_seconds=60)) as operator:
        answer = operator.post(f"{job.path()}/lines", params={"offset": 0}, content=b"")
        assert answer.status_code == 200


def test_an_unknown_path_and_method_are_told(service):
    with service.asking("x") as pods:
        for answer in (pods.get("/v2/nothing"), pods.delete("/v1/volumes"), pods.get("/")):
            assert answer.json()["error"] == "SpecError"
            assert "knows no" in answer.json()["message"]


def test_who_only_looks_whether_it_lives_needs_no_token(service):
    assert httpx.get(f"{service.url}/healthz", trust_env=False).text == "ok\n"


HOSTILE = [
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "a/../../b",
    "\x00",
    "a\nb",
    "a" * 300,
    "é",
    "..%00",
    "-",
    ".",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out_of_the_store(service, store, job, name):
    quoted = quote(name, safe="")
    before = sorted(path for path in service.root.rglob("*") if "access-1" not in str(path))
    with service.asking(operator_token(service.keys, lifetime_seconds=60)) as operator:
        for method, path in (
            ("PUT", f"/v1/jobs/{quoted}"),
            ("GET", f"/v1/jobs/{quoted}/status"),
            ("POST", f"/v1/jobs/{quoted}/log?request=x"),
            ("POST", f"/v1/jobs/{quoted}/attempts"),
            ("PUT", f"/v1/jobs/{quoted}/worker"),
            ("PUT", f"/v1/leases/{quoted}"),
            ("GET", f"/v1/code/{quoted}"),
            ("PUT", f"/v1/code/{quoted}"),
            ("PUT", f"/v1/uploads/{quoted}?volume=x"),
            ("PUT", f"/v1/uploads/{'0' * 16}?volume={quoted}"),
            ("PUT", f"/v1/uploads/{'0' * 16}?volume=x&partition={quoted}"),
            ("GET", f"/v1/versions?volume={quoted}"),
            ("GET", f"/v1/resolve?address={quoted}"),
            ("GET", f"/v1/data?address={quoted}"),
            ("GET", f"/v1/manifest?address=volume%3A%2F%2F{quoted}%401"),
            ("GET", f"/v1/files/{quoted}"),
            ("GET", f"/v1/files/x%401/{quoted}"),
            ("GET", f"/v1/jobs/access-1/bundle?attempt=1&restart={quoted}&role=main&index=0"),
            ("GET", f"/v1/jobs/access-1/bundle?attempt=1&role={quoted}&index=0"),
            ("GET", f"/v1/jobs/access-1/bundle?attempt=1&role=main&index=0&pod={quoted}"),
            ("PUT", f"/v1/jobs/access-1/attempts/1/replicas/{quoted}/0/seal"),
            ("POST", f"/v1/jobs/access-1/attempts/1/replicas/main/{quoted}/lines?offset=0"),
            ("POST", f"/v1/jobs/access-1/attempts/{quoted}/replicas/main/0/lines?offset=0"),
        ):
            answer = operator.request(method, path, content=b"x\n" if method != "GET" else None)
            assert 400 <= answer.status_code < 500, (method, path, answer.text)
            assert set(json.loads(answer.content)) == {"error", "message"}
    assert sorted(path for path in service.root.rglob("*") if "access-1" not in str(path)) == before
