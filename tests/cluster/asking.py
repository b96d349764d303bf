"""Those who use a store service without pause, and what each kill of its pod costs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import kubectl, store
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout
from tests.waiting import eventually

from muster.backends.kubernetes.cluster.facts import holds
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.replica import Replica
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.connection import Connection
from muster.worker.courier import Courier, LineSpool
from muster.worker.store import StoreService

CLIENTS = 3


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What a kill of the service's pod cost, in seconds.

    :param away: until the next pod was ready.
    :param later: from then until each user had an answer.
    """

    away: float
    later: float


@dataclass
class Asker:
    """Does something over and over in a thread of its own, and notes when it was done."""

    once: Callable[[], object]
    done: list[tuple[float, float]] = field(default_factory=list)  # begun, ended

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            self.once()
            self.done.append((began, time.monotonic()))

    def back(self, moment: float) -> float:
        """When the first was done that was under way at a moment, or was begun after it; 0 where none was."""
        return next((ended for _, ended in self.done if ended > moment), 0.0)


def kills(layout: Layout, client: ServiceStore, folder: Path, *, count: int) -> list[Kill]:
    """Kill the service's pod while some clients and a running replica use it; each has an answer before the next.

    :param folder: of the replica's spool.
    """
    found = []
    with replica_s_lines(client, folder) as spool:

        def bring() -> None:
            spool.add(b"a line\n")
            eventually(lambda: not spool.waiting)

        askers = [Asker(client.volumes) for _ in range(CLIENTS)] + [Asker(bring)]
        with asking(*askers):
            for _ in range(count):
                _all_served(askers)
                found.append(_kill(layout, askers))
    return found


@contextmanager
def asking(*askers: Asker) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=each.run, args=(over,)) for each in askers]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in threads:
            each.join()


@contextmanager
def replica_s_lines(client: ServiceStore, folder: Path) -> Iterator[LineSpool]:
    """A running replica, as far as its lines go."""
    job_id = f"kills-{time.time_ns() % 10**9}"
    role = Role(replicas=1, entrypoint="t:f")
    spec = JobSpec(
        name="kills",
        image="kills",
        image_digest="b3:" + 64 * "0",
        roles=(role,),
        outputs={"out": OutputTarget(volume="cluster/kills")},
    )
    client.ledger.create(job_id, spec)
    attempt = client.stage(job_id).attempt
    client.equip(job_id, worker=b"PK\x05\x06" + bytes(18))
    token = client.token(job_id, attempt=attempt, lifetime_seconds=600)
    pod = Connection(store.URL, token=token)
    place = {"attempt": attempt, "restart": "0", "role": role.name, "index": 0, "pod": "kills"}
    pod.request("GET", f"/v1/jobs/{job_id}/bundle", query=place)
    pod.close()
    staging = {"out": "/"}
    replica = Replica(
        job_id=job_id, spec=spec, attempt=attempt, role=role.name, index=0, code=None, inputs={}, staging=staging,
        checkpoints="/", scratch="/", sealed="/", report="/", master_address="", master_port=1,
    )  # fmt: skip
    spool = LineSpool(folder)
    courier = Courier(StoreService(store.URL, token=token, replica=replica), spool, wake=lambda: None)
    courier.start()
    yield spool
    assert courier.finish(seconds=30)
    assert (courier.stale, courier.refused) == ("", "")


def _all_served(askers: list[Asker]) -> None:
    before = [len(each.done) for each in askers]
    eventually(lambda: all(len(each.done) > n for each, n in zip(askers, before, strict=True)))


def _kill(layout: Layout, askers: list[Asker]) -> Kill:
    (old,) = _pods(layout)
    killed = time.monotonic()
    store.kill(layout)
    eventually(lambda: [uid for uid, ready in _pods(layout).items() if ready and uid != old])
    ready = time.monotonic()
    eventually(lambda: all(each.back(ready) for each in askers))
    return Kill(away=ready - killed, later=max(each.back(ready) for each in askers) - ready)


def _pods(layout: Layout) -> dict[str, bool]:
    """The service's pods by uid, and whether each is ready."""
    words = (f"--namespace={NAMESPACE}", "--selector=app=muster-store")
    return {
        each["metadata"]["uid"]: holds(each, "Ready")
        for each in kubectl.get(layout, "pods", *words)["items"]
        if not each["metadata"].get("deletionTimestamp")
    }
