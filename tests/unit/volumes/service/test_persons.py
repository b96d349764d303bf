"""Tokens of persons: each reaches what it was made for, through every call of the service, until it is ended."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service, until

from muster.core.data import Input
from muster.core.errors import MusterError, NotFound, SpecError, StoreError
from muster.core.status import JobState, JobStatus
from muster.core.wire import dumps, plain
from muster.volumes.folder import FolderStore
from muster.volumes.service import persons
from muster.volumes.service.app import create_app
from muster.volumes.service.archives import ArchiveMember, pack
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.persons import MOST_TOKENS, PersonRights, PersonTokens
from muster.volumes.service.table import TABLE
from muster.volumes.service.tokens import Token, TokenKind, sign

VISION = PersonRights(teams=("vision",), reads=("sight",), shared=("common",), queues=("vision",))
SPEECH = PersonRights(teams=("speech",), reads=("lines",), shared=("common",), queues=("speech",))
WHOLE = PersonRights(reads=("",), changes=("",))
MARKS = ("birdsong", "lines/", "hearing")
"""What no answer to team vision may hold, but where the request itself said it."""

JOBS = {
    "birdsong-1": ("lines/model", "speech"),
    "sight-1": ("sight/model", "vision"),
    "common-1": ("common/rows", "speech"),
}


def changing(rights: PersonRights) -> PersonRights:
    return dataclasses.replace(rights, changes=rights.reads)


@pytest.fixture(scope="module")
def made(service: Service, store: ServiceStore) -> None:
    """What both teams have: a committed job each, with a log, and one of a shared volume."""
    ancestor = store.add("lines/birdsong", service.key)
    for job_id, (volume, queue) in JOBS.items():
        spec = make_spec(outputs={"out": volume})
        origin = dataclasses.replace(spec.origin, dag_id="seeing" if queue == "vision" else "hearing")
        given = {} if queue == "vision" else {"rows": Input(versions=(ancestor.pinned,))}
        spec = dataclasses.replace(
            spec, queue=queue, origin=origin, inputs=given, name=f"{origin.dag_id}.train"
        )
        with Gang(service, job_id, spec) as gang:
            gang.finish({"out/birdsong.csv" if queue == "speech" else "out/a.csv": b"birdsong\n"})
            until(lambda job_id=job_id: store.ledger.status(job_id), lambda status: status.state.ended)
        store.ledger.append(job_id, f"{job_id} said this\n".encode())


def token(store: ServiceStore, rights: PersonRights, user: str = "ana", **more: Any) -> str:
    given = {"token_name": "laptop", "lifetime_seconds": 3600.0, **more}
    return store.make_token(user, rights=rights, **given).token


def client(service: Service, text: str, tmp_path: Path) -> ServiceStore:
    return service.client(str(tmp_path), token=text, patience_seconds=0)


def test_a_person_reads_what_is_the_teams(service, store, made, tmp_path) -> None:
    mine = client(service, token(store, VISION), tmp_path)
    assert mine.volumes() == ["common/rows", "sight/model"]
    assert mine.ledger.jobs() == ["sight-1"]
    assert (mine.path("sight/model@latest") / "a.csv").read_bytes() == b"birdsong\n"
    assert (mine.path("common/rows@1") / "birdsong.csv").read_bytes() == b"birdsong\n"
    assert mine.record("sight/model@1").job_id == "sight-1"
    assert mine.ledger.read("sight-1")[0] == b"sight-1 said this\n"
    assert [each.job_id for each in mine.ledger.statuses(["sight-1", "birdsong-1", "none"])] == ["sight-1"]
    assert [*mine.ledger.specs(["birdsong-1", "sight-1"])] == ["sight-1"]


def test_a_shared_versions_record_says_nothing_of_who_made_it(service, store, made, tmp_path) -> None:
    mine, theirs = (client(service, token(store, each), tmp_path) for each in (VISION, SPEECH))
    for told in (mine.record("common/rows@1"), mine.records(["common/rows@1"])[0]):
        assert (told.job_id, told.inputs, told.origin.dag_id) == ("hidden", {}, "")
        assert told.digest == store.record("common/rows@1").digest
    assert theirs.record("lines/model@1") == store.record("lines/model@1")


def test_a_token_for_reading_changes_nothing(service, store, made, tmp_path) -> None:
    mine = client(service, token(store, VISION), tmp_path)
    with pytest.raises(
        StoreError, match=r"'laptop' does not change volume sight/model; it changes no volume"
    ):
        mine.pin("sight/model@1", reason="tried")
    with pytest.raises(StoreError, match="does not change volume sight/new"):
        mine.add("sight/new", service.key)
    assert store.volumes().count("sight/new") == 0


def test_a_token_that_changes_puts_and_marks_its_own_versions(service, store, made, tmp_path) -> None:
    mine = client(service, token(store, changing(VISION)), tmp_path)
    address = mine.add("sight/put", service.key).address
    assert mine.pin(address, reason="tried").pins == ("tried",)
    assert mine.unpin(address, reason="tried").pins == ()
    assert mine.retire(address, reason="tried").retired == "tried"
    assert mine.reinstate(address).retired is None
    with pytest.raises(StoreError, match="does not change volume common/rows; it changes sight/"):
        mine.pin("common/rows@1", reason="tried")
    with pytest.raises(StoreError, match="puts no checkpoints"):
        mine.add("sight/put", service.key, checkpoints={"a": "birdsong-1"})


def test_without_teams_a_token_reaches_the_whole_store_and_no_more_calls(
    service, store, made, tmp_path
) -> None:
    mine = client(service, token(store, WHOLE), tmp_path)
    assert {*mine.volumes()} >= {"lines/model", "sight/model"}
    assert {*mine.ledger.jobs()} >= {*JOBS}
    assert mine.record("common/rows@1") == store.record("common/rows@1")
    with pytest.raises(StoreError, match="the token is a person's: it does not count for '/v1/jobs/x'"):
        mine.ledger.create("x", make_spec())
    with pytest.raises(StoreError, match="the token is a person's"):
        mine.tokens()


def test_an_ended_token_is_refused_at_once_by_both_services_and_by_the_one_that_follows(tmp_path) -> None:
    advertise = ("--advertise", "127.0.0.1")
    pair = [Service(tmp_path, *advertise, root=tmp_path / "store") for _ in range(2)]
    with pair[0] as first, pair[1] as second:
        store = first.client()
        text = token(store, WHOLE)
        asking = [each.client(f"{n}", token=text) for n, each in enumerate(pair)]
        assert [each.volumes() for each in asking] == [[], []]
        (about,) = store.tokens("ana")
        assert store.end_token(about.token_id, by="root").ended_by == "root"
        for each in asking:
            with pytest.raises(StoreError, match=r"the token 'laptop' was ended at 20.* UTC by root: make"):
                each.volumes()
        assert store.end_token(about.token_id, by="ben").ended_by == "root"  # the first end stays
        first.kill()
        with pytest.raises(StoreError, match="was ended at"):
            asking[1].volumes()
        assert second.client("own").tokens("ana")[0].ended is not None


def test_a_token_is_listed_with_its_last_use_and_never_told_again(service, store, tmp_path) -> None:
    text = token(store, VISION, user="list")
    (about,) = store.tokens("list")
    assert (about.name, about.rights, about.used, about.ended) == ("laptop", VISION, None, None)
    assert abs(about.expires - time.time() - 3600) < 60
    client(service, text, tmp_path).volumes()
    (about,) = store.tokens("list")
    assert abs(about.used - time.time()) < 60
    assert about in store.tokens()
    said = b"".join(each.read_bytes() for each in (service.root / "tokens").iterdir())
    assert text.encode() not in said
    assert text.partition(".")[2].encode() not in said
    assert (service.root / "tokens").stat().st_mode & 0o077 == 0


def test_a_token_whose_document_is_not_there_counts_for_nothing(service, store, tmp_path) -> None:
    forged = sign(service.keys, Token(kind=TokenKind.PERSON, expires=time.time() + 60, token_id="0" * 16))
    other = sign(service.keys, Token(kind=TokenKind.PERSON, expires=time.time() + 60, token_id="../../key"))
    with pytest.raises(StoreError, match="is not known here any more"):
        client(service, forged, tmp_path).volumes()
    with pytest.raises(MusterError):
        client(service, other, tmp_path).volumes()
    late = token(store, VISION, lifetime_seconds=0.001)
    with pytest.raises(StoreError, match="the token expired at"):
        until(lambda: client(service, late, tmp_path).volumes(), lambda _: False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lifetime_seconds": 91 * 86_400.0}, "a token for 91 days: need more than 0 and at most 90"),
        ({"lifetime_seconds": 0.0}, "need more than 0"),
        ({"token_name": " "}, "name of a token is"),
        ({"token_name": "x" * 81}, "need 1 to 80 printable"),
        ({"rights": PersonRights(reads=("ok",), teams=("a",)), "token_name": "a\nb"}, "printable"),
    ],
)
def test_a_token_that_cannot_be_is_refused(store, more, said) -> None:
    with pytest.raises(SpecError, match=said):
        token(store, more.pop("rights", VISION), user="wrong", **more)
    assert store.tokens("wrong") == []
    with pytest.raises(NotFound, match="there is no token"):
        store.end_token("0" * 16, by="root")


def test_a_person_has_so_many_at_a_time_and_what_is_over_is_forgotten(tmp_path, monkeypatch) -> None:
    kept = PersonTokens(FolderStore(tmp_path / "store"), (b"k" * 32,))
    for _ in range(MOST_TOKENS):
        kept.make("ana", token_name="laptop", lifetime_seconds=86_400.0, rights=VISION)
    with pytest.raises(SpecError, match=f"ana has {MOST_TOKENS} tokens"):
        kept.make("ana", token_name="laptop", lifetime_seconds=1.0, rights=VISION)
    kept.make("ben", token_name="laptop", lifetime_seconds=86_400.0, rights=SPEECH)
    now = time.time()
    monkeypatch.setattr(persons.time, "time", lambda: now + 40 * 86_400)
    kept.make("ana", token_name="laptop", lifetime_seconds=1.0, rights=VISION)
    assert [each.user for each in kept.all()] == ["ana"]
    assert len([*(tmp_path / "store" / "tokens").iterdir()]) == 1


# Probes: every call of the service, with what is another team's in each place that a call has.

THEIRS: Mapping[str, tuple[str, ...]] = {
    "address": ("lines/model@1", "volume://lines/model", "lines/model@1/birdsong.csv", "lines/birdsong@*"),
    "where": ("lines/model@1/birdsong.csv", "lines/model@1"),
    "volume": ("lines/model", "lines/birdsong", "lines", "lines/new"),
    "job_id": ("birdsong-1", "common-1"),
    "name": ("birdsong-1",),
    "kind": ("search",),
    "deployment": ("lines",),
    "request": ("00000000000000aa",),
}
PLAIN = {
    "attempt": "1",
    "role": "main",
    "index": "0",
    "hour": "2026-01-01T00",
    "offset": "0",
    "digest": "b3:" + "0" * 64,
    "reason": "tried",
    "limit": "5",
    "token_id": "0" * 16,
    "request": "00000000000000bb",
}


@dataclasses.dataclass(frozen=True)
class Probe:
    method: str
    route: str
    url: str
    body: bytes = b""

    @property
    def said(self) -> str:
        return self.url + self.body.decode(errors="replace")


def value(name: str, hint: Any, theirs: str) -> Any:
    """A value for a field of a message."""
    if name in ("address", "volume", "job_id") or (hint is str and name in THEIRS):
        return theirs if name != "job_id" else "birdsong-1"
    if name in ("addresses", "names", "job_ids"):
        return (theirs,)
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        return None
    if dataclasses.is_dataclass(hint):
        known = {
            "JobSpec": make_spec(outputs={"out": "lines/model"}),
            "PersonRights": WHOLE,
            "JobStatus": JobStatus(job_id="birdsong-1", state=JobState.CANCELLED, submitted=1.0, ended=2.0),
        }
        return known.get(hint.__name__)
    origin = typing.get_origin(hint) or hint
    return {str: "x", int: 1, float: 1.0, bool: False, tuple: ()}.get(origin, {})


def bodies(method: str, path: str) -> Iterator[bytes]:
    """What a call's body may be, with something of theirs in each."""
    yield b""
    rows = [row for row in TABLE if (row.verb, row.path) == (method, path) and row.message]
    for row in rows:
        hints = typing.get_type_hints(row.message)
        for theirs in dict.fromkeys(("lines/model@1", "birdsong-1", *THEIRS["address"], *THEIRS["volume"])):
            fields = {name: value(name, hint, theirs) for name, hint in hints.items()}
            document = {
                name: plain(each) if dataclasses.is_dataclass(each) else each
                for name, each in fields.items()
                if each is not None
            }
            yield json.dumps({"kind": row.body, "schema": 1, **document}).encode()
    if path.endswith("/status") and method == "PUT":
        yield dumps(
            JobStatus(job_id="birdsong-1", state=JobState.CANCELLED, submitted=1.0, ended=2.0)
        ).encode()
    if path.startswith("/v1/uploads"):
        yield b"".join(pack([ArchiveMember(name="a.csv", source=Path(__file__))]))


def probes(tmp: Path) -> Iterator[Probe]:
    app = create_app(FolderStore(tmp / "routes"), keys=(b"k" * 32,))
    routes = [
        route
        for each in app.routes
        for route in getattr(each, "routes", [each])
        if route.path.startswith("/v1/")
    ]
    for route in routes:
        names = re.findall(r"{(\w+)", route.path)
        places = [name for name in names if name in THEIRS] or [""]
        for place in places:
            for one in THEIRS.get(place, ("",)):
                filled = re.sub(
                    r"{(\w+)(:\w+)?}",
                    lambda found, one=one, place=place: (
                        one if found[1] == place else THEIRS.get(found[1], (PLAIN.get(found[1], "x"),))[0]
                    ),
                    route.path,
                )
                plain_query = "&".join(f"{name}={each}" for name, each in PLAIN.items() if name not in names)
                for query in (
                    "",
                    *(
                        f"{name}={each}&{plain_query}"
                        for name in ("address", "volume", "job_id")
                        for each in THEIRS[name]
                    ),
                    "address=sight/model@1&address=lines/model@1&volume=sight/model&volume=lines/model",
                ):
                    for method in sorted(route.methods - {"HEAD"}):
                        for body in dict.fromkeys(bodies(method, route.path)):
                            yield Probe(method, route.path, f"{filled}{'?' if query else ''}{query}", body)


def passed(probe: Probe, answer: httpx.Response) -> str:
    """Why a probe of the wrong team counts as passed; empty where it does not."""
    leaked = [mark for mark in MARKS if mark in answer.text and mark not in probe.said]
    if answer.status_code < 400:
        if probe.method != "GET" and probe.route not in ("/v1/statuses", "/v1/specs"):
            return "it was done"
        leaked = [mark for mark in MARKS if mark in answer.text]
    return f"it tells {leaked[0]}" if leaked else ""


def state(root: Path) -> dict[str, str]:
    """All of the store's files but when tokens were used."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".used"
    }


def test_no_probe_by_a_token_of_the_wrong_team_passes(service, store, made, tmp_path, capsys) -> None:
    ended = store.make_token("ben", token_name="ended", lifetime_seconds=60.0, rights=changing(SPEECH))
    store.end_token(ended.token_id, by="root")
    none = PersonRights(teams=("vision",))
    texts = {
        "reads": token(store, VISION),
        "changes": token(store, changing(VISION)),
        "nothing": token(store, none),
        "ended": ended.token,
    }
    asked, wrong, before = 0, [], state(service.root)
    everything = list(dict.fromkeys(probes(tmp_path)))
    for whose, text in texts.items():
        with service.asking(text) as asking:
            for probe in everything:
                asked += 1
                answer = asking.request(probe.method, probe.url, content=probe.body)
                if why := passed(probe, answer):
                    wrong.append(f"{whose}: {probe} {answer.status_code}: {why}")
                if whose == "ended" and answer.status_code != 401:
                    wrong.append(f"{whose}: {probe} {answer.status_code}")
    with capsys.disabled():
        print(
            f"\n{asked} probes by token, {len({each.route for each in everything})} routes, {len(wrong)} passed"
        )
    assert wrong == []
    assert asked >= 1000
    assert state(service.root) == before


def test_the_same_probes_pass_for_their_own_team(service, store, made, tmp_path) -> None:
    """So the probes are real: each call that a person has answers the person whose it is."""
    answered = set()
    with service.asking(token(store, changing(SPEECH))) as asking:
        for probe in dict.fromkeys(probes(tmp_path)):
            if asking.request(probe.method, probe.url, content=probe.body).status_code < 400:
                answered.add((probe.method, probe.route))
    assert answered == {(row.verb, row.path) for row in TABLE if row.person} | {
        *(("GET", f"/v1/{each}") for each in ("manifest", "manifest/index", "data", "files/{where:path}")),
        ("GET", "/v1/jobs/{job_id}/log"),
        ("PUT", "/v1/uploads/{request}"),
    }
