"""What a deployment's folder may meet: no room, another release's state, somebody who looks; no process is started."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.backends.local.serving import keeping
from muster.backends.local.serving.deployments import LocalDeployments
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.state import DeploymentState
from muster.backends.releases.manual import promote, roll_back
from muster.core.deployment import DeploymentSpec
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.job import Pinned
from muster.core.settings import Settings

OLD = """{"kind":"DeploymentState","schema":1,"name":"old","port":8089,"wanted":null,"serving":{"name":"old",
"model":{"address":"volume://f/model@7","digest":"b3:7","partition":null}},"revisions":[],"reason":""}"""


def spec(number: int, **more: Any) -> DeploymentSpec:
    model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
    fields = {"name": "f", "image": "serve", "image_digest": f"b3:{1:064}"} | more
    return DeploymentSpec(model=model, **fields)


class Pins:
    """A store of which only the pins are asked."""

    def __init__(self) -> None:
        self.given_back: list[tuple[str, str]] = []

    def unpin(self, address: str, *, reason: str) -> None:
        self.given_back.append((address, reason))


@pytest.fixture
def store() -> Pins:
    return Pins()


@pytest.fixture
def started() -> list[str]:
    """The deployments for which a keeper was started."""
    return []


@pytest.fixture
def local(
    tmp_path: Path, store: Any, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> LocalDeployments:
    local: Any = LocalDeployments(Settings(home=tmp_path, cache=tmp_path), store)
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(local, "_check", lambda _: None)
    monkeypatch.setattr(local, "_lock", lambda _: tmp_path / "lock")
    monkeypatch.setattr(keeping, "start", lambda _, folder, *__: started.append(folder.name))
    return local  # type: ignore[no-any-return]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[DeploymentState], DeploymentFolder]:
    """Writes the state of a deployment that nobody keeps."""

    def write(state: DeploymentState) -> DeploymentFolder:
        folder = DeploymentFolder(tmp_path, state.name)
        with folder.changing():
            folder.write(state)
        return folder

    return write


def two() -> DeploymentState:
    """@2 serves, and @1 is kept for a rollback."""
    state = DeploymentState(name="f", port=1).prepared(spec(1), by="task")[0].up("r1", port=9001)
    state = state.shifted({"r1": 100}, token=state.token, release=None)
    state = state.prepared(spec(2), by="task")[0].up("r2", port=9001)
    return state.shifted({"r1": 0, "r2": 100}, token=state.token, release=None)


def test_who_cannot_write_a_route_keeps_nobody_from_keeping_it(
    local: LocalDeployments, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(two())

    def full(*_: Any) -> None:
        raise BackendError("the disk is full")

    monkeypatch.setattr(DeploymentFolder, "write", full)
    with pytest.raises(BackendError, match="full"):
        local.prepare(spec(3), by="task")
    assert not folder.kept()


def test_who_only_looks_keeps_nobody_from_keeping_it(write: Any, tmp_path: Path) -> None:
    folder = write(two())
    glance = os.open(tmp_path / "deployments" / ".locks" / "f.keeper", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(glance, fcntl.LOCK_SH)
    over = threading.Timer(0.005, os.close, (glance,))
    over.start()
    handle = folder.claim_keeper()
    over.join()
    assert handle is not None
    assert folder.claim_keeper() is None  # that one stays
    os.close(handle)


def test_what_nobody_keeps_is_repaired(local: LocalDeployments, write: Any, started: list[str]) -> None:
    write(two())
    status = local.deployment("f")
    assert status.drift == status.reason == "its keeper is gone: `muster deployments repair f` brings it back"
    assert local.repair("f") == ("its keeper is brought up again",)
    assert started == ["f"]


@pytest.mark.parametrize("act", [roll_back, promote])
def test_what_nobody_keeps_is_brought_back_by_whoever_moves_traffic(
    local: LocalDeployments, write: Any, started: list[str], act: Any
) -> None:
    write(two())
    status = local.deployment("f")
    assert (status.ready, status.reason) == (
        False,
        "its keeper is gone: `muster deployments repair f` brings it back",
    )
    if act is roll_back:
        assert roll_back(local, "f", by="ann") == "r1"
    else:
        promote(local, "f", "r2", by="ann")
    assert set(started) == {"f"}
    assert local.deployment("f").shares == {"r1" if act is roll_back else "r2": 100}


def test_what_another_release_wrote_is_told_and_can_be_retired(
    local: LocalDeployments, write: Any, store: Pins, tmp_path: Path
) -> None:
    write(two())
    folder = tmp_path / "deployments" / "old"
    folder.mkdir()
    (folder / "state.json").write_text(OLD)
    (folder.parent / "flights.bak").mkdir()
    (folder.parent / "flights.bak" / "state.json").write_text("{}")
    (folder.parent / "lost+found").mkdir()
    (folder.parent / "note.txt").touch()
    (folder.parent / "note").touch()
    assert local.deployments() == ["f", "old"]
    words = r"state.json cannot be read \(.*another release of muster.*muster deployments retire old and deploy it"
    for act in (lambda: local.deployment("old"), lambda: local.prepare(spec(1, name="old"), by="task")):
        with pytest.raises(Corrupt, match=words):
            act()
    mine, other = local.look_at()
    assert mine.status.champion is not None
    assert (other.status.ready, other.counts, "another release" in other.status.reason) == (False, None, True)
    local.prepare(spec(1, name="new"), by="task")  # the others are none of its business
    local.retire("old")
    assert store.given_back == [("volume://f/model@7", "deployment/old")]
    assert local.deployments() == ["f", "new"]
    with pytest.raises(NotFound):
        local.deployment("old")
