"""`muster tokens` as who is on call types it, and what a person types with a token, against a store service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.volumes.service.gang import make_spec
from tests.unit.volumes.service.process import Service
from typer.testing import CliRunner, Result

from muster.cli.app import app
from muster.volumes.folder import FolderStore
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.persons import PersonRights

RIGHTS = PersonRights(teams=("vision",), reads=("sight",), changes=("sight",), queues=("vision",))
As = Callable[..., Result]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as service:
        yield service


@pytest.fixture
def store(service: Service) -> ServiceStore:
    return service.client()


@pytest.fixture
def typed(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> As:
    """Type a command on a machine whose cluster file names a token and no cluster."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "cluster.toml"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "cluster.toml").write_text(
        f'namespace = "team-a"\nclaim = "muster-store"\nstore_url = "{service.url}"\ntoken_file = "token"\n'
    )

    def run(token: str, *words: str) -> Result:
        (tmp_path / "token").write_text(token)
        return CliRunner().invoke(app, list(words))

    return run


def made(store: ServiceStore, user: str, name: str) -> tuple[str, str]:
    new = store.make_token(user, token_name=name, lifetime_seconds=86_400.0, rights=RIGHTS)
    return new.token_id, new.token


def test_a_person_types_what_the_token_allows_until_it_is_ended(
    typed: As, service: Service, store: ServiceStore, tmp_path: Path
) -> None:
    token_id, token = made(store, "ana", "laptop")
    store.add("lines/rows", service.key)
    done = typed(token, "volumes", "put", str(service.key), "sight/rows", "--json")
    assert json.loads(done.stdout)["address"] == "volume://sight/rows@1"
    assert [line.split()[0] for line in typed(token, "volumes", "ls").stdout.splitlines()] == [
        "volume",
        "sight/rows",
    ]
    assert typed(token, "volumes", "get", "sight/rows", str(tmp_path / "got")).exit_code == 0
    assert "sight/rows@1" in typed(token, "volumes", "show", "sight/rows").stdout
    assert "no jobs yet" in typed(token, "jobs", "ls").output
    spec = replace(make_spec(outputs={}), queue="vision")
    store.ledger.create("running-1", spec)
    store.ledger.append("running-1", b"epoch 1\n")
    listed = typed(token, "jobs", "ls", "--json")  # without access to the cluster itself: as it is recorded
    assert [(each["job_id"], each["state"]) for each in json.loads(listed.stdout)] == [
        ("running-1", "queued")
    ]
    assert typed(token, "jobs", "logs", "running-1").stdout == "epoch 1\n"
    assert "is pinned: paper" in typed(token, "volumes", "pin", "sight/rows@1", "--reason", "paper").output
    refused = typed(token, "volumes", "show", "lines/rows")
    assert "the token 'laptop' does not reach volume lines/rows; it reaches sight/" in " ".join(
        refused.output.split()
    )
    assert "does not count for '/v1/tokens'" in typed(token, "tokens", "ls").output
    assert (
        typed(service.token(), "tokens", "end", token_id).stdout == f"{token_id} of ana (laptop) has ended\n"
    )
    assert "was ended at" in typed(token, "volumes", "ls").output


def test_who_is_on_call_sees_all_and_ends_those_of_a_person(
    typed: As, service: Service, store: ServiceStore
) -> None:
    ids = {user: made(store, user, f"{user}s")[0] for user in ("ana", "ben")}
    title, *rows = typed(service.token(), "tokens", "ls").stdout.splitlines()
    assert title.split() == ["token", "user", "name", "teams", "may", "made", "used", "until"]
    assert [row.split()[:5] for row in rows] == [[ids[u], u, f"{u}s", "vision", "change"] for u in ids]
    assert [
        each["user"]
        for each in json.loads(typed(service.token(), "tokens", "ls", "--user", "ben", "--json").stdout)
    ] == ["ben"]
    assert (
        typed(service.token(), "tokens", "end", "--user", "ana").stdout
        == f"{ids['ana']} of ana (anas) has ended\n"
    )
    assert [each.ended is None for each in store.tokens()] == [False, True]
    assert "ana has no token that counts" in typed(service.token(), "tokens", "end", "--user", "ana").output
    assert "ended by" in typed(service.token(), "tokens", "ls").stdout
    assert typed(service.token(), "tokens", "end").exit_code == 2


def test_a_store_on_this_machine_has_none(typed: As, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CLUSTER")
    FolderStore(tmp_path / "home" / "store")
    assert "asks for no token" in typed("", "tokens", "ls").output
