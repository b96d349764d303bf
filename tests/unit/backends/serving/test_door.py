"""A deployment's port: kept from others, had again at once by its next keeper, and told what holds it where it is not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from muster.backends.local.serving import door as room
from muster.backends.local.serving.door import Door
from muster.core.errors import DeploymentError


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be had is not waited for."""
    monkeypatch.setattr(room, "WAIT_SECONDS", 0.0)


def answer_one(port: int, accepting: socket.socket) -> None:
    """Have one client served, and closed by the server: its connection holds the port for a minute."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = accepting.accept()
        accepted.close()
        assert client.recv(1) == b""


def test_the_port_of_a_first_deployment_is_had_again_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        with room.bind(tmp_path, before=0, taken=()) as first:
            port = first.getsockname()[1]
            before = Door(port, first)
            before.open()
            answer_one(port, before.bound())
        with socket.socket() as second:  # keeper and guardian were killed
            after = Door(port, second)
            after.open()
            answer_one(port, after.bound())


def test_the_next_keeper_takes_over_a_door_that_is_open(tmp_path: Path) -> None:
    with room.bind(tmp_path, before=0, taken=()) as bound:
        port = bound.getsockname()[1]
        Door(port, bound).open()
        with socket.create_connection(("127.0.0.1", port)) as client:
            after = Door(port, bound)
            after.open()
            accepted, _ = after.bound().accept()
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"
            accepted.close()
        after.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_no_two_deployments_have_one_port(tmp_path: Path) -> None:
    with room.bind(tmp_path, before=0, taken=()) as first:
        port = first.getsockname()[1]
        with room.bind(tmp_path, before=port, taken=()) as second:
            assert second.getsockname()[1] != port


def test_what_listens_on_the_port_is_to_be_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            socket.socket() as door,
            pytest.raises(
                DeploymentError, match=f"end the process that does .`ss -ltnp 'sport = :{port}'` names it"
            ),
        ):
            Door(port, door).bound()


def test_where_nothing_listens_there_is_nothing_to_end() -> None:
    with socket.socket() as held:  # as a connection does that a socket without SO_REUSEADDR has answered
        held.bind(("127.0.0.1", 0))
        with (
            socket.socket() as door,
            pytest.raises(DeploymentError, match="is not free yet: nothing listens there"),
        ):
            Door(held.getsockname()[1], door).bound()


def test_clients_are_refused_while_a_server_holds_the_socket_and_let_in_again(tmp_path: Path) -> None:
    with room.bind(tmp_path, before=0, taken=()) as bound:
        port = bound.getsockname()[1]
        door = Door(port, bound)
        held = door.bound().dup()  # a server's
        for _ in range(2):
            door.refuse()
            door.refuse()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            door.open()
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = held.accept()
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"
                client.close()
                accepted.close()
        held.close()
