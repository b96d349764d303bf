"""Two services of one store, of which the one that serves is killed again and again: nothing lost, nothing twice."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

import httpx
import pytest
from tests.unit.volumes.service.process import Service
from tests.unit.volumes.service.test_kills import check, work
from tests.waiting import eventually

from muster.volumes.folder import FolderStore
from muster.volumes.service.serve import LOCK

CHUNK_BYTES = 65536


class Front:
    """One address for both services, as a Service of Kubernetes is: a connection goes to either, a dead one too.

    :param ports: of the services, on loopback.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports, self._chance = ports, random.Random(7)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        """Pass bytes both ways until one side ends."""
        with client, suppress(OSError):
            service = socket.create_connection(("127.0.0.1", self._chance.choice(self._ports)))
            with service:
                ways = {client: service, service: client}
                while True:
                    for each in select.select(list(ways), [], [])[0]:
                        data = each.recv(CHUNK_BYTES)
                        if not data:
                            return
                        ways[each].sendall(data)


class Pair:
    """Two services of one store. Its clients ask the front."""

    def __init__(self, folder: Path) -> None:
        (folder / "both").mkdir()
        self.services = [
            Service(folder / "both", "--advertise", "127.0.0.1", root=folder / "store") for _ in range(2)
        ]
        self.front = Front([each.port for each in self.services])
        self.asked = Service(folder, root=folder / "store")  # never started: its address is the front's
        self.asked.port, self.asked.url = self.front.port, f"http://127.0.0.1:{self.front.port}"

    def __enter__(self) -> Pair:
        for each in self.services:
            each.start()
        self.leader()
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.__exit__()
        for each in self.services:
            each.kill()
        self.front.close()

    def leader(self) -> Service:
        """The service that serves, once one does."""
        (found,) = eventually(
            lambda: [each for each in self.services if each.process and _serves(self, each)]
        )
        return found

    def kill_leader(self) -> float:
        """Kill the service that serves; return after how many seconds the other one answers. Then start it again."""
        killed = self.leader()
        (other,) = (each for each in self.services if each is not killed)
        began = time.monotonic()
        killed.kill()
        eventually(lambda: _serves(self, other))
        took = time.monotonic() - began
        killed.start()
        return took


def _serves(pair: Pair, service: Service) -> bool:
    """Whether a service answers itself: its term is that of the lock file, and the address there is its own."""
    address, _, term = (pair.asked.root / LOCK).read_text().partition("\n")
    if address.strip() != f"127.0.0.1:{service.port}":
        return False
    try:
        return httpx.get(f"{service.url}/term", trust_env=False, verify=False).text == term.strip()
    except httpx.TransportError:
        return False


def kills(folder: Path, *, people: int, kills: int, mean_seconds: float) -> list[float]:
    """Kill the service that serves while people work, and check the store; return the seconds that each kill took."""
    chance, over, failed = random.Random(11), threading.Event(), list[BaseException]()
    done = people * [0]

    def numbers(person: int) -> Iterator[int]:
        for number in takewhile(lambda _: not over.is_set(), count()):
            yield number
            done[person] = number + 1

    def person(index: int) -> None:
        try:
            work(pair.asked, folder, f"p{index}", numbers(index))
        except BaseException as error:
            failed.append(error)
            raise

    took = list[float]()
    with Pair(folder) as pair:
        threads = [threading.Thread(target=person, args=(index,)) for index in range(people)]
        for thread in threads:
            thread.start()
        try:
            while len(took) < kills and not failed:
                over.wait(chance.expovariate(1 / mean_seconds))
                took.append(pair.kill_leader())
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert not failed
    assert min(done) > 0
    check(FolderStore(pair.asked.root), *done)
    return took


@pytest.mark.slow
def test_kills_of_the_service_that_serves(tmp_path: Path) -> None:
    assert len(kills(tmp_path, people=2, kills=8, mean_seconds=0.2)) == 8


@pytest.mark.soak
def test_a_thousand_kills_of_the_service_that_serves(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    took = sorted(kills(tmp_path, people=3, kills=1000, mean_seconds=0.3))
    record_property(
        "seconds until the other one answered: median, p99, most", (took[500], took[990], took[-1])
    )
