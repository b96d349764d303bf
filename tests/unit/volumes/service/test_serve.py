"""The program: what it refuses to start with, and that one store has one service."""

import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.ports import free_port
from tests.unit.volumes.service.process import KEY, Service, until
from tests.waiting import GUARD_SECONDS

from muster.core.errors import StoreError
from muster.volumes.service import tokens
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.serve import LOCK

TOLD_TO_END = 128 + signal.SIGTERM


def start(*arguments, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "muster.volumes.service", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


@pytest.fixture
def key(tmp_path):
    (tmp_path / "key").write_text(KEY)
    return tmp_path / "key"


@pytest.fixture
def in_use():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def free_ports():
    return [free_port(), free_port()]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["no key", "weak key", "a file", "not a store", "no port", "a port in use"])
def test_what_it_cannot_serve_is_told_in_a_line(tmp_path, key, in_use, wrong):
    store, port = tmp_path / "store", "0"
    if wrong == "no key":
        key.unlink()
    elif wrong == "weak key":
        key.write_text("hunter2")
    elif wrong == "a file":
        store.write_text("")
    elif wrong == "not a store":
        store.mkdir()
        (store / "mine").touch()
    elif wrong == "a port in use":
        port = str(in_use)
    else:
        port = "99999"
    done = start("--store", store, "--key", key, "--port", port)
    _, said = done.communicate(timeout=GUARD_SECONDS)
    assert done.returncode == 2
    assert said.count("\n") == 1
    assert "the store service cannot start: " in said


@pytest.mark.slow
def test_it_prints_an_operators_token(tmp_path, key):
    done = start("--key", key, "--print-token", "1")
    text, _ = done.communicate(timeout=GUARD_SECONDS)
    assert tokens.verify((KEY.encode(),), text.strip()).kind is tokens.TokenKind.OPERATOR


@contextmanager
def waiting_beside(first, *, port, advertise=()):
    """A second service of the same store, which waits until the first ends."""
    second = start("--store", first.root, "--key", first.key, "--port", port, *advertise)
    try:
        assert "waiting until it ends" in second.stderr.readline()
        yield second
    finally:
        second.kill()
        second.communicate()


@pytest.mark.slow
def test_a_second_service_waits_until_the_first_is_gone(tmp_path):
    with Service(tmp_path) as first, waiting_beside(first, port=first.port) as second:
        assert first.client().volumes() == []
        first.kill()
        until(first.answers, bool)
        assert first.client("other").volumes() == []
        second.terminate()
        assert second.wait(timeout=GUARD_SECONDS) == TOLD_TO_END


@pytest.mark.slow
@pytest.mark.parametrize("advertise", [(), ("--advertise", "127.0.0.1")])
def test_one_that_waits_handles_its_end(tmp_path, free_ports, advertise):
    """As the first process of a container it would else go on until it is killed, and an upgrade would wait for that."""
    with (
        Service(tmp_path) as first,
        waiting_beside(first, port=free_ports[0], advertise=advertise) as second,
    ):
        second.terminate()
        assert second.wait(timeout=GUARD_SECONDS) == TOLD_TO_END


@pytest.mark.slow
def test_a_second_service_that_is_reached_passes_on_to_the_first(tmp_path, key, free_ports):
    """Whichever of the two is asked, one answers; and the second alone when the first is killed."""
    one, two = (
        start("--store", tmp_path / "store", "--key", key, "--port", port, "--advertise", "127.0.0.1")
        for port in free_ports
    )
    try:
        token = tokens.operator_token((KEY.encode(),), lifetime_seconds=60)
        stores = [
            ServiceStore(f"http://127.0.0.1:{port}", token=token, cache=tmp_path / str(port))
            for port in free_ports
        ]
        assert [store.volumes() for store in stores] == [[], []]
        leader = one if "serving" in one.stderr.readline() else two
        leader.kill()
        leader.wait()
        (left,) = (store for process, store in zip((one, two), stores, strict=True) if process is not leader)
        (tmp_path / "hello").write_text("hello")
        assert left.add("a/b", tmp_path / "hello").address == "volume://a/b@1"
    finally:
        for each in (one, two):
            each.kill()
            each.communicate()
        for store in stores:
            store.close()


def advertised(folder, key, port):
    return start("--store", folder / "store", "--key", key, "--port", port, "--advertise", "127.0.0.1")


def ended(process):
    """Its exit code, and what it wrote."""
    _, wrote = process.communicate(timeout=GUARD_SECONDS)
    return process.returncode, wrote


@pytest.mark.slow
def test_where_the_lock_is_not_shared_a_second_service_does_not_serve(tmp_path, key, free_ports):
    """Another lock file is what a node sees whose file system does not share locks with the other nodes."""
    first = advertised(tmp_path, key, free_ports[0])
    try:
        assert "serving" in first.stderr.readline()
        lock = tmp_path / "store" / LOCK
        content = lock.read_bytes()
        lock.unlink()
        lock.write_bytes(content)
        code, wrote = ended(advertised(tmp_path, key, free_ports[1]))
        assert code == 2
        assert f"the store service at 127.0.0.1:{free_ports[0]} still serves this store" in wrote
        assert "does not share locks (flock) between nodes" in wrote
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


@pytest.mark.slow
def test_a_service_that_was_replaced_ends(tmp_path, key, free_ports):
    """So one that was cut off from the claim, whose lock another took, accepts nothing when it is back."""
    with advertised(tmp_path, key, free_ports[0]) as first:
        try:
            assert "serving" in first.stderr.readline()
            (tmp_path / "store" / LOCK).write_text("10.0.0.9:8080\nanother\n")
            code, wrote = ended(first)
            assert code == 1
            assert "another store service took over this store: this one ends" in wrote
        finally:
            first.kill()


@pytest.mark.slow
def test_a_service_that_begins_again_at_its_address_serves(tmp_path, key, free_ports):
    for _ in range(2):
        with advertised(tmp_path, key, free_ports[0]) as first:
            assert "serving" in first.stderr.readline()
            first.kill()


def test_keys_are_changed_while_it_serves(tmp_path):
    old, new = KEY, "n" * 32
    with Service(tmp_path) as service:
        before = service.client()
        after = service.client(token=tokens.operator_token((new.encode(),), lifetime_seconds=60))
        service.key.write_text(f"{old}\n{new}\n")
        assert after.volumes() == before.volumes() == []
        service.key.write_text("")  # cut off while it is written
        assert after.volumes() == before.volumes() == []
        replaced = tmp_path / "replaced"
        replaced.write_text(f"{new}\n")
        replaced.rename(service.key)  # as a kubelet replaces a Secret
        assert after.volumes() == []
        with pytest.raises(StoreError, match="not one of this store service"):
            before.volumes()
        assert service.process.is_alive()
