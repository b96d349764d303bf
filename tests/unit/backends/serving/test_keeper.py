"""The keeper's steps that a real server takes too rarely to wait for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.backends.serving.states import new, prepared, shifted, withdrawn

from muster.backends.local.serving import keeper as room, platform
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.platform import local_deployments
from muster.backends.local.serving.server import WorkersState
from muster.backends.local.serving.state import DeploymentState
from muster.backends.releases.tokens import digest_of, made
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, RequestLimits, RevisionState
from muster.core.errors import BackendError, Conflict, DeploymentError
from muster.core.settings import Settings
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

NOTHING: Any = None
STARTING, SERVING = RevisionState.STARTING, RevisionState.SERVING
FAILED, RETIRED = RevisionState.FAILED, RevisionState.RETIRED


def spec(number: int, **more: Any) -> DeploymentSpec:
    model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
    return DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}", **more)


def version(number: int) -> Version:
    digest = f"b3:{number:064}"
    return Version(volume="f/model", number=number, digest=digest, size_bytes=1, files=1, created=0.0)


def served() -> DeploymentState:
    """The state of a deployment where @1 serves."""
    state = prepared(new(), spec(1), by="task")[0].up("r1", port=9001)
    return shifted(state, {"r1": 100})


class Unguarded:
    """A guardian that cannot be started."""

    def replace_lost(self) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")


class Elsewhere:
    """A store that only the deploying process can reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pins: set[tuple[str, str]] = set()

    def resolve(self, address: str) -> tuple[Version, ...]:
        return (version(int(address.rpartition("@")[2])),)

    def used(self, address: str) -> float:
        """No run has kept a version."""
        return 0.0

    def code(self, digest: str) -> Path:
        (self.folder / "image").mkdir(exist_ok=True)
        (self.folder / "image" / "requirements.txt").touch()
        return self.folder / "image"

    def pin(self, address: str, *, reason: str) -> None:
        self.pins.add((address, reason))

    def unpin(self, address: str, *, reason: str) -> None:
        self.pins.discard((address, reason))

    def path(self, address: str) -> Path:
        return self.folder / address[-1]


def test_a_model_from_elsewhere_is_served_from_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = Elsewhere(tmp_path)
    monkeypatch.setattr(platform, "start_keeper", lambda *_: None)
    local = local_deployments(Settings(home=tmp_path / "home", cache=tmp_path), store, copies=True)
    folder = DeploymentFolder(tmp_path / "home", "f")
    own = FolderStore(tmp_path / "home" / "store")  # which knows nothing of it
    settings = Settings(home=tmp_path / "home", cache=tmp_path)
    keeper: Any = room.Keeper(folder, own, NOTHING, NOTHING, settings, grpc=NOTHING)
    for number in (1, 2, 3):
        (tmp_path / str(number) / "deep").mkdir(parents=True)
        (tmp_path / str(number) / "deep" / "model.onnx").write_text(f"model {number}")
        (tmp_path / str(number) / "deep").chmod(0o555)  # as in a store
        one = local.prepare(spec(number), by="task")
        assert (keeper.model(spec(number)) / "deep" / "model.onnx").read_text() == f"model {number}"
        folder.change(lambda now, name=one.name: now.up(name, port=9000))  # type: ignore[misc]
        local.shift("f", {one.name: 100}, token=local.deployment("f").token, release=None)
        for past in range(1, number):
            local.withdraw("f", f"r{past}", state=RETIRED, reason=f"{one.name} serves")
        keeper.unpin_past(folder.read())
        assert [path.name for path in (folder.path / "models").iterdir()] == [f"{number:064}"]
    assert store.pins == {("volume://f/model@3", "deployment/f")}
    local.retire("f")
    assert store.pins == set()
    assert not folder.path.exists()


def test_a_model_that_is_refused_is_neither_pinned_nor_copied(tmp_path: Path) -> None:
    store: Any = Elsewhere(tmp_path)
    local = local_deployments(Settings(home=tmp_path / "home", cache=tmp_path), store, copies=True)
    folder = DeploymentFolder(tmp_path / "home", "f")
    with folder.changing():
        folder.write(shifted(prepared(new(), spec(2))[0].up("r1", port=9001), {"r1": 100}))
    with pytest.raises(Conflict, match="back in time: @2 serves"):
        local.prepare(spec(1), by="task", allow_older=False)
    assert store.pins == set()
    assert not (folder.path / "models").exists()


class Server:
    """A model server that holds what it is given, or raises it."""

    port = 9001

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.loaded: set[str] = set()

    def load(self, revision: str, path: Path, *, deadline: float, order: Any) -> Generator[None, None, None]:
        yield
        if self.error:
            raise self.error
        self.loaded.add(revision)


class Servers:
    """Stands for the processes: one server, which may be lost."""

    def __init__(self, server: Server) -> None:
        self.one = server
        self.gone: list[tuple[set[str], str]] = []
        self.directed: list[dict[str, int]] = []
        self.told: list[WorkersState] = []
        self.admission: Any = None

        self.grpc_door: Any = None
        self.restless = True
        self.refused = 0

    def admit(self, admission: Any) -> None:
        self.admission = admission

    def adopt(self, ports: Any) -> bool:
        """The last keeper left nothing."""
        return False

    def refuse(self) -> None:
        self.refused += 1

    def news(self) -> list[WorkersState]:
        told, self.told = self.told, []
        return told

    def up(self) -> dict[str, Server]:
        return dict.fromkeys(self.one.loaded, self.one)

    def server(self, name: str, python: Path, *, key: Any) -> Server:
        return self.one

    def lost(self) -> list[tuple[set[str], str]]:
        gone, self.gone = self.gone, []
        return gone

    def direct(self, state: DeploymentState, *, waiting: set[str]) -> None:
        self.directed.append({name: n for name, n in state.shares.items() if name in self.one.loaded})

    def limit_memory(self, state: DeploymentState) -> None:
        """There is enough."""

    clear = limit_memory

    def wait(self, seconds: float, others: Any) -> None:
        """Time stands still."""


@pytest.fixture
def folder(tmp_path: Path) -> DeploymentFolder:
    return DeploymentFolder(tmp_path, "f")


@pytest.fixture
def keep(folder: DeploymentFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a keeper of a state, whose processes are played."""

    def nothing(*_: Any, **__: Any) -> Generator[None, None, Path]:
        yield
        return tmp_path

    monkeypatch.setattr(room, "try_apart", nothing)
    monkeypatch.setattr(room.Keeper, "model", lambda *_: tmp_path)
    monkeypatch.setattr(room.Keeper, "unpin_past", lambda *_: None)

    environments: Any = SimpleNamespace(ensure_apart=nothing)

    def make(state: DeploymentState, server: Server) -> Any:
        with folder.changing():
            folder.write(state)
        servers: Any = Servers(server)
        settings = Settings(home=tmp_path, cache=tmp_path)
        return room.Keeper(folder, NOTHING, environments, servers, settings, grpc=NOTHING)

    return make


def looks(keeper: Any, folder: DeploymentFolder, times: int = 8) -> DeploymentState:
    for _ in range(times):
        keeper.look()
    state = folder.read()
    assert state is not None
    return state


def test_whatever_a_revision_meets_what_serves_goes_on(keep: Any, folder: DeploymentFolder) -> None:
    server = Server(KeyError("shape"))
    server.loaded.add("r1")
    state = looks(keep(prepared(served(), spec(2), by="task")[0], server), folder)
    assert (state.called("r2").state, state.called("r2").reason) == (FAILED, "KeyError: 'shape'")
    assert (state.called("r1").state, state.shares) == (SERVING, {"r1": 100})


def test_what_serves_is_tried_again_and_again_and_clients_are_refused_meanwhile(
    keep: Any, folder: DeploymentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.0)
    server = Server(DeploymentError("the disk is gone"))
    keeper = keep(served().down(["r1"], reason="it is being brought back"), server)
    state = looks(keeper, folder)
    assert state.reason == "volume://f/model@1 cannot be served: the disk is gone; trying again"
    assert (state.called("r1").state, keeper.servers.refused > 0) == (STARTING, True)
    server.error = None
    state = looks(keeper, folder, 12)
    assert (state.reason, state.called("r1").ready) == ("", 1)


def test_what_has_the_traffic_is_brought_back_before_what_has_none(
    keep: Any, folder: DeploymentFolder
) -> None:
    begun = prepared(served(), spec(2), by="task")[0]
    server = Server()
    keeper = keep(begun.down(["r1"], reason="gone"), server)
    for _ in range(20):
        keeper.look()
        assert "r1" in server.loaded or "r2" not in keeper.arriving
    assert server.loaded == {"r1", "r2"}


def test_a_server_that_is_lost_is_held_against_all_that_it_held(keep: Any, folder: DeploymentFolder) -> None:
    server = Server()
    server.loaded.add("r1")
    keeper = keep(served(), server)
    server.loaded.clear()
    keeper.servers.gone = [({"r1"}, "restarting: the model server was ended by SIGKILL")]
    state = looks(keeper, folder, 1)
    one = state.called("r1")
    assert (one.ready, one.restarts, one.reason) == (
        0,
        1,
        "restarting: the model server was ended by SIGKILL",
    )
    state = looks(keeper, folder)
    assert (state.called("r1").ready, state.called("r1").restarts, state.reason) == (1, 1, "")


def test_what_could_not_be_written_is_written_later(
    keep: Any, folder: DeploymentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.0)
    server = Server()
    keeper = keep(served().down(["r1"], reason="gone"), server)
    change, full = folder.change, [True] * 3

    def fill(*arguments: Any) -> Any:
        if full:
            full.pop()
            raise BackendError("the disk is full")
        return change(*arguments)

    monkeypatch.setattr(folder, "change", fill)
    for _ in range(12):
        with contextlib.suppress(BackendError):
            keeper.look()
    state = folder.read()
    assert state is not None
    assert (full, state.called("r1").ready, state.ports) == ([], 1, {"r1": 9001})


@pytest.fixture
def full(folder: DeploymentFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """A disk that is full, for what is written down and for the log, until the list is empty."""
    state, change = [True], folder.change

    def fill(*arguments: Any) -> Any:
        if state:
            raise BackendError("the disk is full")
        return change(*arguments)

    monkeypatch.setattr(folder, "change", fill)
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.0)
    with Path("/dev/full").open("w", buffering=1) as log:
        monkeypatch.setattr(sys, "stderr", log)
        yield state
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            log.close()


def test_users_are_answered_again_though_nothing_can_be_written(
    keep: Any, folder: DeploymentFolder, full: list[bool]
) -> None:
    server = Server()
    keeper = keep(served(), server)
    keeper.servers.gone = [({"r1"}, "restarting: the model server was ended by SIGKILL")]
    state = looks(keeper, folder)
    assert (server.loaded, keeper.servers.directed[-1]) == ({"r1"}, {"r1": 100})
    assert state.called("r1").restarts == 0
    full.clear()
    one = looks(keeper, folder).called("r1")
    assert (one.ready, one.restarts) == (1, 1)  # it is held against it all the same


class Ended(BaseException):
    """The keeper of a test has looked often enough."""


def test_a_keeper_goes_on_whatever_it_meets(
    keep: Any, folder: DeploymentFolder, full: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keep(served(), Server())
    monkeypatch.setattr(room, "TROUBLE_SECONDS", 0.0)
    met = [
        Ended(),
        RuntimeError("unknown"),
        OSError(28, "No space left on device"),
        BackendError("away"),
    ]

    def look() -> None:
        raise met.pop()

    monkeypatch.setattr(keeper, "look", look)
    monkeypatch.setattr(keeper, "stop", lambda: None)
    with pytest.raises(Ended):
        keeper.run(0, Unguarded())
    assert met == []


def test_a_guardian_from_before_an_upgrade_has_another_keeper_started_where_there_is_something_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, started = Settings(home=tmp_path / "home", cache=tmp_path), []
    monkeypatch.setattr(room, "start_keeper", lambda *words: started.append(words[1].kept()))
    folder = DeploymentFolder(settings.home, "f")
    room.begin_anew(settings, folder)
    with folder.changing():
        folder.write(replace(served(), retired=True))
    room.begin_anew(settings, folder)
    assert started == []
    with folder.changing():
        folder.write(served())
    room.begin_anew(settings, folder)
    state = folder.read()
    assert state is not None
    assert (state.ports, state.called("r1").ready) == ({}, False)  # its servers died with the last keeper
    handle = folder.claim_keeper()
    assert handle is not None
    room.begin_anew(settings, folder)  # another keeper has it
    assert started == [True]
    os.close(handle)


def test_a_state_that_nobody_can_read_takes_nothing_down(keep: Any, folder: DeploymentFolder) -> None:
    server = Server()
    keeper = keep(served().down(["r1"], reason="gone"), server)
    keeper.look()
    (folder.path / "state.json").write_text('{"kind": "DeploymentState", "schema": 1, "serving": null}')
    for _ in range(4):
        assert not keeper.is_over(0, Unguarded())
        keeper.look()
    assert (server.loaded, keeper.servers.directed[-1]) == ({"r1"}, {"r1": 100})


def test_the_same_is_said_once_a_minute(keep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    keeper = keep(served(), Server())
    for _ in range(3):
        keeper.say("one")
        keeper.say("two")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["one", "two"]


def test_what_is_over_does_not_come_up(keep: Any, folder: DeploymentFolder) -> None:
    server = Server()
    server.loaded.add("r1")
    state = prepared(served(), spec(2), by="task")[0]
    keeper = keep(state, server)
    looks(keeper, folder, 1)
    assert "r2" in keeper.arriving
    state = shifted(state, {"r1": 100})
    with folder.changing():
        folder.write(withdrawn(state, "r2", state=RETIRED, reason="by hand"))
    state = looks(keeper, folder)
    assert (keeper.arriving, server.loaded, state.called("r2").state) == ({}, {"r1"}, RETIRED)


def test_a_deployment_is_asked_for_while_it_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "RETIRE_SECONDS", 60.0)
    store: Any = Elsewhere(tmp_path)
    local = local_deployments(Settings(home=tmp_path, cache=tmp_path), store)
    started: list[bool] = []
    monkeypatch.setattr(platform, "start_keeper", lambda *_: started.append(True))
    folder = DeploymentFolder(tmp_path, "f")
    with folder.changing():
        folder.write(replace(served(), retired=True))
    handle = folder.claim_keeper()

    awaited, await_end = threading.Event(), platform.await_end

    def keep() -> None:
        awaited.wait()
        with folder.changing():  # as a keeper does before it goes
            os.close(handle)

    monkeypatch.setattr(platform, "await_end", lambda which: (awaited.set(), await_end(which)))
    keeper = threading.Thread(target=keep)
    keeper.start()
    local.prepare(spec(1), by="task")
    keeper.join()
    assert started
    state = folder.read()
    assert state is not None
    assert (state.specs, state.retired) == ({"r1": spec(1)}, False)


def test_the_revision_that_leads_says_what_users_need(keep: Any, folder: DeploymentFolder) -> None:
    second = spec(2, tokens=True, limits=RequestLimits(rate=2, burst=3, body_mib=1))
    both = prepared(served(), second, by="task")[0].up("r2", port=9002)
    keeper = keep(both, Server())
    looks(keeper, folder, 1)
    assert keeper.servers.admission == {
        "needed": False,
        "limits": None,
        "key": "",
        "tokens": [],
    }  # none was written
    tokens = folder.change_tokens(lambda now: made(now, "shop", "word", now=1.0))
    shop = {"client": "shop", "digest": digest_of("word"), "made": 1.0, "ended": None}
    looks(keeper, folder, 1)
    assert keeper.servers.admission == {"needed": False, "limits": None, "key": tokens.key, "tokens": [shop]}
    with folder.changing():
        folder.write(shifted(both, {"r1": 0, "r2": 100}))
    looks(keeper, folder, 1)
    limits = {"rate": 2.0, "burst": 3, "body_bytes": 1 << 20}
    assert keeper.servers.admission == {"needed": True, "limits": limits, "key": tokens.key, "tokens": [shop]}
    (folder.path / "tokens.json").write_text("nonsense")
    looks(keeper, folder, 1)
    assert keeper.servers.admission["tokens"] == [shop]  # those that were read before stand


def test_an_address_that_others_reach_is_never_open_to_all(keep: Any, folder: DeploymentFolder) -> None:
    keeper = keep(replace(served(), host="0.0.0.0"), Server())  # as a hand may have written it
    looks(keeper, folder, 1)
    assert keeper.servers.admission["needed"]
