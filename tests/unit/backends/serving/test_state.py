"""What becomes of a deployment's route and of what its keeper sees, step by step, without a process."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.serving import states as written
from tests.unit.backends.serving.states import HISTORY

from muster.backends.local.serving.state import DeploymentState, past_models
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, Release, RevisionState, SmokeRequest
from muster.core.errors import Conflict, MusterError
from muster.core.wire import dumps, loads

STARTING, READY, SERVING = RevisionState.STARTING, RevisionState.READY, RevisionState.SERVING
FAILED, REFUSED, RETIRED = RevisionState.FAILED, RevisionState.REFUSED, RevisionState.RETIRED
NEW = DeploymentState(name="flights", port=8081)


def model(number: int) -> Pinned:
    return Pinned(address=f"volume://flights/model@{number}", digest=f"b3:{number:064x}")


def spec(number: int, **more: Any) -> DeploymentSpec:
    fields = {"image": "serve", "image_digest": f"b3:{1:064x}"} | more
    return DeploymentSpec(name="flights", model=model(number), **fields)


def prepared(state: DeploymentState, number: int, *, by: str = "task", up: bool = True) -> DeploymentState:
    state, one = written.prepared(state, spec(number), by=by)
    return state.up(one.name, port=9000 + number) if up else state


def given(state: DeploymentState, release: Release | None = None, **shares: int) -> DeploymentState:
    return written.shifted(state, shares, release=release)


def serving(number: int = 1) -> DeploymentState:
    return given(prepared(NEW, number), r1=100)


def states(state: DeploymentState) -> list[tuple[str, RevisionState, int, bool]]:
    return [(one.name, one.state, one.percent, one.kept) for one in state.revisions]


def test_the_way_of_a_revision() -> None:
    state, one = written.prepared(NEW, spec(1), by="task")
    assert (one.name, one.state, state.release.champion) == ("r1", STARTING, None)  # type: ignore[union-attr]
    up = state.up("r1", port=9001)
    assert states(up) == [("r1", READY, 0, False)]
    first = given(up, r1=100)
    assert (states(first), first.shares, first.release) == ([("r1", SERVING, 100, False)], {"r1": 100}, None)
    second = prepared(first, 2)
    assert second.release.champion == "r1"  # type: ignore[union-attr]
    canary = given(second, second.release, r1=95, r2=5)
    assert states(canary) == [("r2", SERVING, 5, False), ("r1", SERVING, 95, False)]
    done = given(canary, r1=0, r2=100)
    assert states(done) == [("r2", SERVING, 100, False), ("r1", READY, 0, True)]
    gone = written.withdrawn(done, "r1", state=RETIRED, reason="r2 serves")
    assert states(gone) == [("r2", SERVING, 100, False), ("r1", RETIRED, 0, False)]
    assert (gone.specs.keys(), gone.ports, past_models(gone)) == ({"r2"}, {"r2": 9002}, [model(1)])


def test_each_write_of_the_route_has_its_token_and_what_the_keeper_sees_none() -> None:
    state = serving()
    assert prepared(state, 2, up=False).book.token != state.book.token
    assert given(state, r1=100).book.token != state.book.token
    canary = prepared(state, 2)
    failed = canary.failed("r2", reason="exit 3")
    for seen in (state.up("r1", port=1), state.down(["r1"], reason="died", died=True), failed):
        assert seen.book.token in (state.book.token, canary.book.token)


def test_the_same_one_again_changes_nothing() -> None:
    begun = prepared(serving(), 2)
    assert written.prepared(begun, spec(2), by="task")[0] is begun
    assert written.prepared(begun, spec(2), by="another")[0] != begun
    settled = serving()
    assert written.prepared(settled, spec(1), by="another")[0] is settled


def test_a_kept_revision_is_taken_as_it_is() -> None:
    state = given(prepared(serving(), 2), r1=0, r2=100)
    again, one = written.prepared(state, spec(1), by="task")
    assert (one.name, one.state, one.kept) == ("r1", READY, True)
    assert again.release == replace(again.release, revision="r1", champion="r2")  # type: ignore[type-var]


@pytest.mark.parametrize("end", ["failed", "taken back", "over"])
def test_what_failed_comes_up_anew_under_a_new_name(end: str) -> None:
    state = prepared(serving(), 2)
    if end == "failed":
        state = state.failed("r2", reason="exit 3")
    else:
        state = given(state, replace(state.release, failed="wrong"), r1=100)  # type: ignore[type-var]
    if end == "over":
        state = written.withdrawn(state, "r2", state=REFUSED, reason="wrong")
    again, one = written.prepared(state, spec(2), by="task")
    assert (one.name, one.state) == ("r3", STARTING)
    assert again.release.champion == "r1"  # type: ignore[union-attr]


def test_a_release_that_is_superseded_gives_everything_back_and_keeps_what_was_kept() -> None:
    state = given(prepared(serving(), 2), r1=0, r2=100)
    third = prepared(state, 3)
    canary = given(third, third.release, r1=0, r2=40, r3=60)
    fourth = prepared(canary, 4)
    assert states(fourth) == [
        ("r4", READY, 0, False),
        ("r3", READY, 0, False),
        ("r2", SERVING, 100, False),
        ("r1", READY, 0, True),
    ]
    assert fourth.release.champion == "r2"  # type: ignore[union-attr]


def test_what_has_traffic_or_is_under_way_is_not_withdrawn() -> None:
    state = prepared(serving(), 2)
    with pytest.raises(Conflict, match="r1 has 100 % of the traffic"):
        written.withdrawn(state, "r1", state=RETIRED, reason="")
    with pytest.raises(Conflict, match="r2 is part of the release of r2, by task"):
        written.withdrawn(state, "r2", state=RETIRED, reason="")
    failed = given(state, replace(state.release, failed="wrong"), r1=100)  # type: ignore[type-var]
    gone = written.withdrawn(failed, "r2", state=REFUSED, reason="wrong")
    assert written.withdrawn(gone, "r2", state=RETIRED, reason="again") is gone


def test_what_the_keeper_sees() -> None:
    state = given(prepared(serving(), 2), r1=0, r2=100)
    died = state.down(["r1", "r2"], reason="ended by SIGKILL", died=True)
    assert [(one.ready, one.restarts, one.reason) for one in died.revisions] == [
        (0, 1, "ended by SIGKILL")
    ] * 2
    assert (died.ports, {one.state for one in died.revisions}) == ({}, {STARTING})
    assert died.down(["r1"], reason="ended by SIGKILL") is died
    assert died.down(["r1"], reason="loading").called("r1").restarts == 1
    back = died.up("r2", port=5).up("r1", port=6)
    assert states(back) == states(state)
    assert [(one.ready, one.reason) for one in back.revisions] == [(1, "")] * 2
    assert [one.since for one in back.revisions] == [one.since for one in state.revisions]
    over = written.withdrawn(state, "r1", state=RETIRED, reason="by hand")
    assert over.up("r1", port=7) is over.failed("r1", reason="x") is over  # it comes too late


def test_history_has_an_end_but_names_are_never_given_twice() -> None:
    state = serving()
    for number in range(2, HISTORY + 10):
        state = prepared(state, number, up=False)
        name = state.revisions[0].name
        state = written.withdrawn(given(state, r1=100), name, state=REFUSED, reason="wrong")
    assert len(state.revisions) == HISTORY + 1
    assert state.revisions[-1].name == "r1"
    assert written.prepared(state, spec(99), by="task")[1].name == f"r{HISTORY + 10}"


@pytest.mark.parametrize(
    ("shares", "lead"),
    [
        ({"r1": 99, "r2": 1}, "r1"),
        ({"r1": 40, "r2": 60}, "r1"),  # r2 is only being tried
        ({"r1": 1, "r2": 99}, "r1"),
        ({"r1": 0, "r2": 100}, "r2"),
    ],
)
def test_the_champion_leads_as_long_as_another_one_is_tried(shares: dict[str, int], lead: str) -> None:
    begun = prepared(serving(), 2)
    state = given(begun, begun.release, **shares)
    assert (state.lead, state.live[0].name) == (lead, lead)
    settled = given(state, **shares)  # no revision is on trial
    assert settled.lead == settled.live[0].name == max(shares, key=lambda name: shares[name])
    assert NEW.lead is None


def test_a_server_holds_what_has_its_environment_and_never_died() -> None:
    state = given(prepared(serving(), 2), r1=0, r2=100)
    state = written.prepared(state, spec(3, image_digest=f"b3:{2:064x}"), by="task")[0]
    assert state.server_key("r1") == state.server_key("r2") != state.server_key("r3")
    died = state.down(["r1", "r2"], reason="ended by SIGKILL", died=True)
    assert len({died.server_key(name) for name in ("r1", "r2", "r3")}) == 3
    assert state.down(["r1", "r2"], reason="its keeper is gone").server_key("r1") == state.server_key("r1")


def test_another_smoke_test_is_no_other_revision() -> None:
    stricter = spec(1, smoke=(SmokeRequest(name="one", inputs={"x": (1,)}),), load_timeout_seconds=7.0)
    assert written.prepared(serving(), stricter, by="task")[1].name == "r1"
    assert written.prepared(serving(), spec(1, image_digest=f"b3:{2:064x}"), by="task")[1].name == "r2"


@pytest.mark.parametrize("seed", range(100))
def test_whatever_is_written_the_shares_are_100_and_of_what_is_there(seed: int) -> None:
    rng, state = random.Random(seed), serving()
    for _ in range(60):
        names = [one.name for one in state.revisions]
        picked, other = rng.choice(names), rng.choice(names)
        percent = rng.choice([0, 5, 50, 100])
        acts = [
            lambda s: written.prepared(s, spec(rng.randrange(1, 5)), by=rng.choice("ab"))[0],
            lambda s, p=picked, o=other, n=percent: given(s, s.release, **{o: 100 - n} | {p: n}),
            lambda s, p=picked: given(s, None, **{p: 100}),
            lambda s, p=picked: written.withdrawn(s, p, state=RETIRED, reason="x"),
            lambda s, p=picked: s.up(p, port=1),
            lambda s, p=picked: s.down([p], reason="x", died=True),
            lambda s, p=picked: s.failed(p, reason="x"),
        ]
        try:
            state = rng.choice(acts)(state)
        except MusterError:
            continue
        assert sum(state.shares.values()) == 100
        assert all(not state.called(name).state.over for name in state.shares)
        assert state.specs.keys() == {one.name for one in state.live}
        assert state.ports.keys() <= {one.name for one in state.live}
        assert len(names) == len({*names})
        assert loads(DeploymentState, dumps(state)) == state
