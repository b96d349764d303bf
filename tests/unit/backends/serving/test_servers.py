"""Model servers and what they are told, played by processes that only wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.serving.states import new, prepared, shifted, withdrawn
from tests.waiting import eventually

from muster.backends.local.serving import process, server as room
from muster.backends.local.serving.server import ModelServer
from muster.backends.local.serving.shares import ModelServers
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, RevisionState
from muster.core.resources import Resources

FAR = float("inf")
KEY = ("serve", "b3:1", "", False)


def spec(number: int, *, memory_gib: float) -> DeploymentSpec:
    model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
    digest, resources = f"b3:{1:064}", Resources(memory_gib=memory_gib)
    return DeploymentSpec(name="f", model=model, image="serve", image_digest=digest, resources=resources)


class Played:
    """One model server whose other end of the line is the test's."""

    def __init__(self, server: ModelServer, line: socket.socket) -> None:
        self.server = server
        self.line = line
        self._line = line.makefile("rw")

    def answer(self, action: str, error: str = "") -> dict[str, Any]:
        """Take the next command, which has to be this one, and answer it."""
        command: dict[str, Any] = json.loads(self._line.readline())
        assert command["do"] == action
        self._line.write(json.dumps({"id": command["id"]} | ({"error": error} if error else {})) + "\n")
        self._line.flush()
        self.server.listen()
        return command

    def load(self, revision: str) -> None:
        """Load a revision, to the end."""
        loading = self.server.load(revision, Path(revision), deadline=FAR)
        next(loading)
        self.answer("load")
        assert list(loading) == []


@pytest.fixture
def post() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The keeper's end of the mailbox, and that of its servers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def mailbox(post: tuple[socket.socket, socket.socket]) -> socket.socket:
    return post[0]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Played]]:
    lines: list[socket.socket] = []

    def start(*_: Any, fds: tuple[int, ...], leash: int) -> subprocess.Popen[bytes]:
        lines.append(socket.socket(fileno=os.dup(fds[2])))
        return subprocess.Popen(["sleep", "600"])

    monkeypatch.setattr(room, "start", start)
    made: list[Played] = []
    with socket.socket() as public:

        def make() -> Played:
            server = ModelServer.started(
                "f", Path("python"), tmp_path, key=KEY, public=public, grpc=None, post=0, leash=0
            )
            made.append(Played(server, lines[-1]))
            return made[-1]

        yield make
        for each in made:
            if each.server.alive():
                each.server.leave(since=0)
                each.server.stop(deadline=FAR)
        for line in lines:
            line.close()


def test_the_tokens_of_many_clients_arrive_whole(play: Callable[[], Played]) -> None:
    """They are more than a line takes at once; a command that was cut off would spoil all that follow."""
    played = play()
    tokens = [{"name": f"client-{number}", "digest": f"{number:064}"} for number in range(5_000)]
    played.server.admit({"needed": True, "tokens": tokens})
    played.server.unload("r1")
    came = bytearray()
    while came.count(b"\n") < 2:
        came += played.line.recv(1 << 16)
        played.server.listen()
    first, second = map(json.loads, came.splitlines())
    assert (first["tokens"], second["do"]) == (tokens, "unload")


def test_a_load_that_nobody_waits_for_is_forgotten_when_it_ends(play: Callable[[], Played]) -> None:
    played = play()
    server = played.server
    loading = server.load("r2", Path("r2"), deadline=FAR)
    next(loading)
    loading.close()  # it was withdrawn
    assert server.holding == {"r2"}
    played.answer("load")
    played.answer("unload")
    assert (server.holding, server.settled) == (set(), True)


def test_a_server_is_given_the_longest_time_that_its_answers_may_take(play: Callable[[], Played]) -> None:
    played = play()
    played.server.finish(30.0)
    assert played.server.settled  # it gives that by itself
    played.server.finish(300.0)
    assert played.answer("finish")["seconds"] == 300.0
    played.server.finish(60.0)
    assert (played.server.settled, played.server.finish_seconds) == (True, 300.0)


def test_what_could_not_be_unloaded_is_still_there(play: Callable[[], Played]) -> None:
    played = play()
    played.load("r1")
    played.server.unload("r1")
    assert (played.server.loaded, played.server.holding) == (set(), {"r1"})
    played.answer("unload", error="revision r1 serves")
    assert played.server.loaded == {"r1"}


def test_memory_is_taken_back_when_a_revision_is_unloaded_and_not_before(
    play: Callable[[], Played], tmp_path: Path, mailbox: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(room, "limit_memory", lambda _, memory_gib: limits.append(memory_gib))
    state = prepared(new(), spec(1, memory_gib=1.5), by="task")[0].up("r1", port=1)
    state = shifted(state, {"r1": 100})
    begun = prepared(state, spec(2, memory_gib=4), by="task")[0]
    played, servers = play(), ModelServers(tmp_path, NOTHING, mailbox=mailbox)
    servers.running[state.server_key("r1")] = played.server
    servers.limit_memory(state)
    played.load("r1")
    servers.limit_memory(begun)
    played.load("r2")
    assert limits == [1.5, 5.5]
    refused = shifted(begun, {"r1": 100})
    refused = withdrawn(refused, "r2", state=RevisionState.REFUSED, reason="wrong")
    servers.limit_memory(refused)
    assert limits == [1.5, 5.5]  # users of r1 are asked to do without nothing
    played.server.unload("r2")
    servers.limit_memory(refused)
    assert limits == [1.5, 5.5]
    played.answer("unload")
    servers.limit_memory(refused)
    assert limits == [1.5, 5.5, 1.5]


NOTHING: Any = None


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (
            9,
            "SIGKILL, which another process sent, or the kernel where the machine's memory was used up (`dmesg` tells)",
        ),
        (15, "SIGTERM, which another process sent"),
        (6, "SIGABRT: terminate called"),
        (40, "signal 40: terminate called"),
    ],
)
def test_how_a_server_was_ended_is_told_without_what_its_log_says_of_other_things(
    play: Callable[[], Played], tmp_path: Path, mailbox: socket.socket, number: int, how: str
) -> None:
    (tmp_path / "server.log").write_text("a warning of the server before\n")
    played, servers = play(), ModelServers(tmp_path, NOTHING, mailbox=mailbox)
    played.load("r1")
    with (tmp_path / "server.log").open("a") as log:
        log.write("terminate called\n")
    servers.running[KEY] = played.server
    os.kill(played.server.pid, number)
    os.waitid(os.P_PID, played.server.pid, os.WEXITED | os.WNOWAIT)
    assert servers.lost() == [({"r1"}, f"restarting: the model server was ended by {how}")]
    assert servers.up() == {}


def test_a_server_that_says_nothing_before_it_ends_is_not_given_the_words_of_the_one_before(
    play: Callable[[], Played], tmp_path: Path
) -> None:
    (tmp_path / "server.log").write_text("a warning of the server before\n")
    server = play().server
    os.kill(server.pid, 11)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert server.ended() == "the model server was ended by SIGSEGV"
    process.keep_short(tmp_path / "server.log")
    (tmp_path / "server.log").write_text("cut\n")  # emptied since, as one that has become too long
    assert server.ended() == "the model server was ended by SIGSEGV: cut"
    server.close()


def test_the_types_that_a_dag_is_told_to_trust_are_not_cut(tmp_path: Path) -> None:
    said = f"model.skops holds types: trust them, trusted={[f'sklearn.ensemble.Tree{n}' for n in range(30)]}"
    (tmp_path / "log").write_text(f"loading\n{said}\n\n")
    assert process.last_line(tmp_path / "log") == said


def test_all_are_told_to_end_before_one_is_waited_for(
    tmp_path: Path, mailbox: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Server:
        finish_seconds = 30.0
        settled, port = True, 1

        def accept(self, accepts: bool) -> None:
            assert not accepts

        def alive(self) -> bool:
            return True

        def __init__(self, name: str) -> None:
            self.name = name

        def leave(self, *, since: float) -> bool:
            told.append(f"{self.name} is told")
            return self.name == "dead"

        def stop(self, *, deadline: float) -> None:
            told.append(f"{self.name} is waited for")

    servers: Any = ModelServers(tmp_path, NOTHING, mailbox=mailbox)
    servers.running = {name: Server(name) for name in ("one", "dead")}
    servers.hung = [Server("hung")]
    monkeypatch.setattr(servers, "refuse", lambda: told.append("users are refused"))
    servers.stop()
    assert told.pop(0) == "users are refused"
    assert told == ["hung is told", "one is told", "dead is told", "hung is waited for", "one is waited for"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    return now


def test_who_answers_lives_and_is_asked_again_after_a_while(
    play: Callable[[], Played], clock: list[float]
) -> None:
    played = play()
    for _ in range(6):
        assert played.server.answers()
        clock[0] += room.HANG_SECONDS + 100  # it is we who come late
        played.answer("ping")
        assert played.server.answers()
        assert not played.server.quiet
        clock[0] += room.PERIOD_SECONDS
    assert played.server.settled


def test_who_does_not_answer_is_quiet_and_hangs_in_the_end(
    play: Callable[[], Played], clock: list[float]
) -> None:
    played = play()
    assert played.server.answers()
    assert not played.server.quiet
    clock[0] += room.QUIET_SECONDS + 0.1
    assert (played.server.answers(), played.server.quiet) == (True, True)
    clock[0] = 100.0 + room.HANG_SECONDS - 0.1
    assert played.server.answers()
    clock[0] += 0.2
    assert not played.server.answers()
    played.answer("ping")  # late, and it counts from anew
    assert (played.server.answers(), played.server.quiet) == (True, False)


def test_a_server_that_the_last_keeper_left_is_commanded_by_the_next(
    tmp_path: Path, post: tuple[socket.socket, socket.socket]
) -> None:
    """It says what it holds; how it ends only its parent can tell. One whose place is taken is let go."""
    servers: Any = ModelServers(tmp_path, NOTHING, mailbox=post[0])
    left = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    lines = [send_line(post[1], each, loaded=["r1"]) for each in left]
    assert servers.adopt([1]) is False, "nothing listens on that port"
    (server,) = servers.running.values()
    assert (server.key, server.pid, server.loaded, set(servers.up())) == (KEY, left[0].pid, {"r1"}, {"r1"})
    server.finish(300.0)
    server.accept(False)  # what it was told before is not known
    assert [json.loads(line)["do"] for line in (lines[0].readline(), lines[0].readline())] == [
        "finish",
        "drain",
    ]
    assert servers.lost() == []
    assert left[1].wait() == -signal.SIGTERM
    left[0].kill()
    eventually(lambda: not server.alive())
    assert servers.lost() == [({"r1"}, "restarting: the model server ended")]
    assert left[0].wait() == -signal.SIGKILL
    servers.lost()
    for line in lines:
        line.close()


def send_line(post: socket.socket, process: subprocess.Popen[bytes], *, loaded: list[str]) -> Any:
    """Do what a server does when its keeper is gone; return its end of the line, to read from."""
    ours, theirs = socket.socketpair()
    hello = {"key": KEY, "port": 1, "loaded": loaded, "pid": process.pid}
    handle = os.pidfd_open(process.pid)
    socket.send_fds(post, [json.dumps(hello).encode()], [theirs.fileno(), handle])
    os.close(handle)
    with ours, theirs:
        return ours.makefile()


def test_a_log_that_has_become_too_long_is_emptied_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 10)
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(b"0123456789")
        process.keep_short(tmp_path / "log")
        log.write(b"more")
        assert (tmp_path / "log").read_bytes() == b"0123456789more"
        process.keep_short(tmp_path / "log")
        log.write(b"last")
    assert (tmp_path / "log").read_bytes() == b"last"
    process.keep_short(tmp_path / "none")
