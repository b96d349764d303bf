"""The keeper's steps that a real server takes too rarely to wait for."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.backends.local import deployments
from muster.backends.local import keeper as room
from muster.backends.local.deployment_state import DeploymentFolder, DeploymentState
from muster.core.deployment import DeploymentSpec
from muster.core.errors import DeploymentError
from muster.core.job import Pinned
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore


class Elsewhere:
    """A store that only whoever deploys can reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pins: set[tuple[str, str]] = set()

    def pin(self, address: str, *, reason: str) -> None:
        self.pins.add((address, reason))

    def unpin(self, address: str, *, reason: str) -> None:
        self.pins.discard((address, reason))

    def path(self, address: str) -> Path:
        return self.folder / address[-1]


def test_a_model_from_elsewhere_is_served_from_a_copy(tmp_path: Path) -> None:
    store: Any = Elsewhere(tmp_path)
    served: Any = deployments.LocalDeployments(
        Settings(home=tmp_path / "home", cache=tmp_path), store, copies=True
    )
    folder, nothing = DeploymentFolder(tmp_path / "home", "f"), None
    state = DeploymentState(name="f", port=1)
    own = FolderStore(tmp_path / "home" / "store")  # which knows nothing of it
    keeper: Any = room.Keeper(folder, own, nothing, nothing)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        (tmp_path / str(number) / "deep").mkdir(parents=True)
        (tmp_path / str(number) / "deep" / "model.onnx").write_text(f"model {number}")
        (tmp_path / str(number) / "deep").chmod(0o555)  # as in a store
        model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
        spec = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
        served._copy(folder, spec)
        with folder.changing():
            state = state.want(spec)
            folder.write(state)
        assert (keeper._model(spec) / "deep" / "model.onnx").read_text() == f"model {number}"
        state = state.promoted()
        with folder.changing():
            folder.write(state)
        keeper._unpin_past()
        assert [path.name for path in (folder.path / "models").iterdir()] == [f"{number:064}"]
    assert store.pins == {(f"volume://f/model@{number}", "deployment/f") for number in (2, 3)}
    served._remove(folder, state)
    assert store.pins == set()
    assert not folder.path.exists()


class Server:
    """A model server that dies when it is promoted."""

    left = False

    def promote(self, revision: str, *, deadline: float) -> None:
        raise DeploymentError(f"promote revision {revision}: it was ended by SIGKILL")

    def leave(self, *, since: float) -> bool:
        self.left = self.left or since >= 0
        return self.left

    def alive(self) -> bool:
        return True

    def answers(self) -> bool:
        return True


def test_the_old_server_goes_though_the_new_one_dies_of_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "DRAIN_SECONDS", 0.0)
    model = Pinned(address="volume://f/model@1", digest=f"b3:{1:064}")
    first = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
    second = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{2:064}")
    folder = DeploymentFolder(tmp_path, "f")
    with folder.changing():
        folder.write(DeploymentState(name="f", port=1).want(first).promoted().want(second))
    old, new = Server(), Server()
    nothing: Any = None
    keeper: Any = room.Keeper(folder, nothing, nothing, nothing)
    keeper._server = old
    keeper._promote(new, "1", second)
    keeper._tend()
    assert old.left
    assert keeper._server is new


class Odd(Server):
    """A model server that answers in a way nobody thought of."""

    serving = "1"

    def load(self, model: Pinned, path: Path, *, deadline: float) -> str:
        raise KeyError("shape")

    def unload_others(self, kept: str, *, deadline: float) -> None:
        assert kept == "1"


def test_whatever_a_release_meets_what_serves_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Pinned(address="volume://f/model@1", digest=f"b3:{1:064}")
    first = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
    second = DeploymentSpec(
        name="f",
        model=replace(model, address="volume://f/model@2"),
        image="serve",
        image_digest=f"b3:{1:064}",
    )
    folder = DeploymentFolder(tmp_path, "f")
    with folder.changing():
        folder.write(DeploymentState(name="f", port=1).want(first).promoted().want(second))
    nothing: Any = None
    keeper: Any = room.Keeper(folder, nothing, nothing, nothing)
    keeper._server = server = Odd()
    monkeypatch.setattr(room, "try_apart", lambda *_, **__: None)
    for name in ("_python", "_model"):
        monkeypatch.setattr(keeper, name, lambda *_: tmp_path)
    monkeypatch.setattr(keeper, "_beside", lambda _: server)
    keeper._release(second)
    state = folder.read()
    assert state is not None
    assert (state.serving, state.wanted) == (first, None)
    assert state.revisions[0].reason == "KeyError: 'shape'"
    assert keeper._server is server


def test_a_deployment_is_asked_for_while_it_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "RETIRE_SECONDS", 2.0)
    nothing: Any = None
    local: Any = deployments.LocalDeployments(Settings(home=tmp_path, cache=tmp_path), nothing)
    started: list[bool] = []
    monkeypatch.setattr(local, "_check", lambda _: None)
    monkeypatch.setattr(local, "_lock", lambda _: tmp_path / "lock")
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(local, "_remove", lambda folder, _: shutil.rmtree(folder.path))
    monkeypatch.setattr(local, "_start_keeper", lambda *_: started.append(True))
    model = Pinned(address="volume://f/model@1", digest=f"b3:{1:064}")
    spec = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
    folder = DeploymentFolder(tmp_path, "f")
    with folder.changing():
        folder.write(replace(DeploymentState(name="f", port=1).want(spec).promoted(), retired=True))
    handle = folder.claim_keeper()

    awaited, await_end = threading.Event(), local._await_end

    def keep() -> None:
        awaited.wait()
        with folder.changing():  # as a keeper does before it goes
            os.close(handle)

    monkeypatch.setattr(local, "_await_end", lambda which: (awaited.set(), await_end(which)))
    keeper = threading.Thread(target=keep)
    keeper.start()
    local.deploy(spec)
    keeper.join()
    assert started == [True]
    state = folder.read()
    assert state is not None
    assert (state.wanted, state.retired) == (spec, False)
