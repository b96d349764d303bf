"""``muster deployments token``: make, list and end the tokens of clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.backends.releases.world import NAME, World

from muster.backends.releases.tokens import digest_of

Run = Callable[..., Any]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("muster.cli.deployments.open_deployments", lambda: world)
    world.begin_canary(by="flights.deploy, manual")
    return world


def test_a_token_is_printed_alone_and_only_once(muster: Run, world: World) -> None:
    made = muster("deployments", "token", "make", NAME, "shop")
    (token,) = made.out.split()
    assert "it is not shown again" in made.err
    assert token not in made.err
    assert [each.digest for each in world.tokens(NAME).tokens] == [digest_of(token)]
    told = muster("deployments", "token", "make", NAME, "bank", "--json").json()
    assert (told["deployment"], told["client"]) == (NAME, "bank")
    listed = muster("deployments", "token", "ls", NAME)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["client", "shop", "bank"]
    document = muster("deployments", "token", "ls", NAME, "--json")
    assert {each["client"]: each["ended"] for each in document.json()} == {"shop": None, "bank": None}
    for secret in (token, told["token"], digest_of(token)):
        assert secret not in listed.out + json.dumps(document.json())


def test_a_token_is_ended_by_its_client(muster: Run, world: World) -> None:
    assert "no tokens yet" in muster("deployments", "token", "ls", NAME).err
    muster("deployments", "token", "make", NAME, "shop")
    assert "no longer takes the token of shop" in muster("deployments", "token", "end", NAME, "shop").err
    assert not world.tokens(NAME).live
    again = muster("deployments", "token", "end", NAME, "shop")
    assert (again.code, "those that count are of: none" in " ".join(again.err.split())) == (1, True)


@pytest.mark.usefixtures("world")
def test_what_cannot_be_made_says_what_to_type(muster: Run) -> None:
    muster("deployments", "token", "make", NAME, "shop")
    twice = muster("deployments", "token", "make", NAME, "shop")
    assert (twice.code, twice.out) == (1, "")
    assert "end it first, or make one by another name, such as shop-2" in " ".join(twice.err.split())
    assert "no deployment 'nowhere'" in muster("deployments", "token", "make", "nowhere", "shop").err
