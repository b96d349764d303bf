"""What becomes of a deployment's state, step by step, without a process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.backends.local.deployment_state import DeploymentFolder, DeploymentState, past_models
from muster.core.deployment import DeploymentSpec, RevisionState, SmokeRequest
from muster.core.errors import BackendError, SpecError
from muster.core.job import Pinned
from muster.core.wire import dumps, loads

LOADING, SMOKING, SERVING = RevisionState.LOADING, RevisionState.SMOKING, RevisionState.SERVING
REFUSED, RETIRED = RevisionState.REFUSED, RevisionState.RETIRED
NEW = DeploymentState(name="flights", port=8081)


def model(number: int) -> Pinned:
    return Pinned(address=f"volume://flights/model@{number}", digest=f"b3:{number:064x}")


def spec(number: int, **more: Any) -> DeploymentSpec:
    fields = {"image": "serve", "image_digest": f"b3:{1:064x}"} | more
    return DeploymentSpec(name="flights", model=model(number), **fields)


def states(state: DeploymentState) -> list[tuple[int, RevisionState, float]]:
    return [(int(one.model.digest[3:], 16), one.state, one.share) for one in state.revisions]


def test_the_way_of_a_revision() -> None:
    wanted = NEW.want(spec(1))
    assert (wanted.wanted, states(wanted)) == (spec(1), [(1, LOADING, 0.0)])
    assert states(wanted.smoking()) == [(1, SMOKING, 0.0)]
    serving = wanted.smoking().promoted()
    assert (serving.wanted, serving.serving, states(serving)) == (None, spec(1), [(1, SERVING, 1.0)])
    after = serving.want(spec(2)).smoking().promoted()
    assert (after.serving, states(after)) == (spec(2), [(2, SERVING, 1.0), (1, RETIRED, 0.0)])
    assert past_models(after) == [model(1)]


def test_a_refusal_leaves_what_serves() -> None:
    serving = NEW.want(spec(1)).promoted()
    refused = serving.want(spec(2)).smoking().refused("wrong")
    assert (refused.wanted, refused.serving) == (None, spec(1))
    assert states(refused) == [(2, REFUSED, 0.0), (1, SERVING, 1.0)]
    assert refused.revisions[0].reason == "wrong"


def test_wanting_the_same_again_changes_nothing() -> None:
    wanted = NEW.want(spec(1))
    assert wanted.want(spec(1)) is wanted
    serving = wanted.promoted()
    assert serving.want(spec(1)) == serving


def test_another_smoke_test_for_what_serves_is_no_new_revision() -> None:
    serving = NEW.want(spec(1)).promoted()
    stricter = spec(1, smoke=(SmokeRequest(name="one", inputs={"x": (1,)}),))
    assert serving.want(stricter) == replace(serving, serving=stricter)


def test_another_environment_for_what_serves_is_a_new_revision() -> None:
    serving = NEW.want(spec(1)).promoted()
    assert states(serving.want(spec(1, image_digest=f"b3:{2:064x}"))) == [
        (1, LOADING, 0.0),
        (1, SERVING, 1.0),
    ]


def test_what_serves_is_newest_again_when_another_environment_for_it_was_refused() -> None:
    state = NEW.want(spec(1)).promoted().want(spec(1, image_digest=f"b3:{2:064x}")).refused("wrong")
    assert states(state.want(spec(1))) == [(1, SERVING, 1.0), (1, REFUSED, 0.0)]


def test_what_was_wanted_before_is_dropped() -> None:
    state = NEW.want(spec(1)).promoted().want(spec(2)).want(spec(3))
    assert (state.wanted, states(state)) == (
        spec(3),
        [(3, LOADING, 0.0), (2, RETIRED, 0.0), (1, SERVING, 1.0)],
    )
    assert state.revisions[1].reason == "superseded by volume://flights/model@3"
    back = state.want(spec(1))
    assert (back.wanted, back.serving) == (None, spec(1))


def test_the_history_has_an_end() -> None:
    state = NEW
    for number in range(1, 80):
        state = state.want(spec(number)).promoted()
    assert len(state.revisions) == 50
    assert states(state)[0] == (79, SERVING, 1.0)


def test_what_serves_is_kept_in_a_long_history_of_refusals() -> None:
    state = NEW.want(spec(1)).promoted()
    for number in range(2, 80):
        state = state.want(spec(number)).refused("wrong")
    assert (1, SERVING, 1.0) in states(state)


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = DeploymentFolder(tmp_path, "flights")
    assert folder.read() is None
    smoke = (SmokeRequest(name="one", inputs={"x": (1, "a")}, expect={"y": {"min": 0.0}}),)
    state = NEW.want(spec(1, smoke=smoke)).promoted().want(spec(2))
    with folder.changing():
        folder.write(state)
    assert folder.read() == state
    assert loads(DeploymentState, dumps(state)) == state


def test_a_state_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "flights").write_text("in the way")
    with pytest.raises(BackendError, match=r"deployment flights: .*state\.json cannot be written"):
        DeploymentFolder(tmp_path, "flights").write(NEW)


def test_one_keeper_at_a_time(tmp_path: Path) -> None:

    folder = DeploymentFolder(tmp_path, "flights")
    assert not folder.kept()
    handle = folder.claim_keeper()
    assert handle is not None
    assert folder.kept()
    assert folder.claim_keeper() is None
    os.close(handle)
    assert not folder.kept()


@pytest.mark.parametrize("name", ["..", "a/b", "a\nb", "x" * 41, "", ".locks"])
def test_a_hostile_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="deployment"):
        DeploymentFolder(tmp_path, name)
