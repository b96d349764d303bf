"""What a deployment's folder may meet: no room, another release's state, a process that looks; no process is started."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.serving.states import new, prepared, shifted

from muster.backends.local.serving import platform
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.platform import local_deployments
from muster.backends.local.serving.state import DeploymentState
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import promote, roll_back
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.settings import Settings
from muster.volumes.base import Version

OLD = """{"kind":"DeploymentState","schema":1,"name":"old","port":8089,"wanted":null,"serving":{"name":"old",
"model":{"address":"volume://f/model@7","digest":"b3:7","partition":null}},"revisions":[],"reason":""}"""


def spec(number: int, **more: Any) -> DeploymentSpec:
    model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
    fields = {"name": "f", "image": "serve", "image_digest": f"b3:{1:064}"} | more
    return DeploymentSpec(model=model, **fields)


class Pins:
    """A store that holds every version and one image; what is unpinned is remembered."""

    def __init__(self, image: Path) -> None:
        self.given_back: list[tuple[str, str]] = []
        self._image = image
        image.mkdir()
        (image / "requirements.txt").touch()

    def resolve(self, address: str) -> tuple[Version, ...]:
        number = int(address.rpartition("@")[2])
        digest = f"b3:{number:064}"
        return (Version(volume="f/model", number=number, digest=digest, size_bytes=1, files=1, created=0.0),)

    def used(self, address: str) -> float:
        """No run has kept a version."""
        return 0.0

    def code(self, digest: str) -> Path:
        return self._image

    def pin(self, address: str, *, reason: str) -> None: ...

    def unpin(self, address: str, *, reason: str) -> None:
        self.given_back.append((address, reason))


@pytest.fixture
def store(tmp_path: Path) -> Pins:
    return Pins(tmp_path / "image")


@pytest.fixture
def started() -> list[str]:
    """The deployments for which a keeper was started."""
    return []


@pytest.fixture
def local(tmp_path: Path, store: Any, started: list[str], monkeypatch: pytest.MonkeyPatch) -> Deployments:
    monkeypatch.setattr(platform, "start_keeper", lambda _, folder, *__: started.append(folder.name))
    return local_deployments(Settings(home=tmp_path, cache=tmp_path), store)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[DeploymentState], DeploymentFolder]:
    """Writes the state of a deployment without a keeper."""

    def write(state: DeploymentState) -> DeploymentFolder:
        folder = DeploymentFolder(tmp_path, state.name)
        with folder.changing():
            folder.write(state)
        return folder

    return write


def two() -> DeploymentState:
    """@2 serves, and @1 is kept for a rollback."""
    state = prepared(new(), spec(1), by="task")[0].up("r1", port=9001)
    state = shifted(state, {"r1": 100})
    state = prepared(state, spec(2), by="task")[0].up("r2", port=9001)
    return shifted(state, {"r1": 0, "r2": 100})


def test_who_cannot_write_a_route_keeps_nobody_from_keeping_it(
    local: Deployments, write: Any, monkeypatch: pytest.MonkeyPatch
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


def test_what_nobody_keeps_is_repaired(local: Deployments, write: Any, started: list[str]) -> None:
    write(two())
    status = local.deployment("f")
    assert status.drift == status.reason == "its keeper is gone: `muster deployments repair f` brings it back"
    assert local.repair("f") == ("its keeper is brought up again",)
    assert started == ["f"]


@pytest.mark.parametrize("act", [roll_back, promote])
def test_what_nobody_keeps_is_brought_back_by_whoever_moves_traffic(
    local: Deployments, write: Any, started: list[str], act: Any
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
    local: Deployments, write: Any, store: Pins, tmp_path: Path
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
    assert local.names() == ["f", "old"]
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
    assert local.names() == ["f", "new"]
    with pytest.raises(NotFound):
        local.deployment("old")
