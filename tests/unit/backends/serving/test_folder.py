"""The files of a deployment: its state, whole or not at all, and the lock of its keeper."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.serving import states

from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.state import DeploymentState
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.core.errors import BackendError, SpecError


def spec(number: int, **more: Any) -> DeploymentSpec:
    model = Pinned(address=f"volume://flights/model@{number}", digest=f"b3:{number:064x}")
    return DeploymentSpec(name="flights", model=model, image="serve", image_digest=f"b3:{1:064x}", **more)


def serving() -> DeploymentState:
    state, one = states.prepared(states.new("flights"), spec(1))
    return states.shifted(state.up(one.name, port=9001), {one.name: 100})


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = DeploymentFolder(tmp_path, "flights")
    assert (folder.read(), folder.change(lambda state: state)) == (None, None)
    smoke = (SmokeRequest(name="one", inputs={"x": (1, "a")}, expect={"y": {"min": 0.0}}),)
    state = states.prepared(serving(), spec(2, smoke=smoke))[0]
    with folder.changing():
        folder.write(state)
    assert folder.read() == state
    changed = folder.change(lambda now: now.up("r2", port=7))
    assert changed == folder.read()
    assert changed is not None
    assert changed.called("r2").ready == 1


def test_what_is_being_retired_is_not_changed(tmp_path: Path) -> None:
    folder = DeploymentFolder(tmp_path, "flights")
    retired = replace(serving(), retired=True)
    with folder.changing():
        folder.write(retired)
    assert folder.change(lambda now: now.up("r1", port=7)) == retired == folder.read()


def test_a_state_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "flights").write_text("in the way")
    with pytest.raises(BackendError, match=r"deployment flights: .*state\.json cannot be written"):
        DeploymentFolder(tmp_path, "flights").write(states.new("flights"))


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
