"""A store service whose pod goes costs those who use it seconds, and they say so: its clients, and a replica's lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster import kubectl, store
from tests.cluster.inside import NAMESPACE, layout
from tests.waiting import eventually

from muster.backends.kubernetes.cluster.facts import holds
from muster.core.job import JobSpec, Output, Role
from muster.core.replica import Replica
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.connection import Connection
from muster.worker.courier import Courier
from muster.worker.spool import Spool
from muster.worker.store import StoreService

pytestmark = pytest.mark.cluster

KILLS = 10
LATER_SECONDS = 3.0  # after the next service is ready


@dataclass
class Asker:
    """Does something over and over in a thread of its own, and notes when it was done."""

    name: str
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


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ServiceStore]:
    of = layout()
    store.deploy(of, folder="kills")
    with ServiceStore(store.URL, token=store.operator_token(of), cache=tmp_path) as made:
        yield made


@contextmanager
def replica_s_lines(client: ServiceStore, folder: Path) -> Iterator[Spool]:
    """A running replica, as far as its lines go."""
    job_id = f"kills-{time.time_ns() % 10**9}"
    role = Role(replicas=1, entrypoint="t:f")
    spec = JobSpec(
        name="kills",
        image="kills",
        image_digest="b3:" + 64 * "0",
        roles=(role,),
        outputs={"out": Output(volume="cluster/kills")},
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
    spool = Spool(folder)
    courier = Courier(StoreService(store.URL, token=token, replica=replica), spool, wake=lambda: None)
    courier.start()
    yield spool
    assert courier.finish(seconds=30)
    assert (courier.stale, courier.refused) == ("", "")


def test_ten_kills_cost_seconds_each(
    client: ServiceStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    of, found = layout(), []
    with replica_s_lines(client, tmp_path) as spool:

        def bring() -> None:
            spool.add(b"a line\n")
            eventually(lambda: not spool.waiting)

        askers = [Asker("client", client.volumes) for _ in range(3)] + [Asker("a replica's lines", bring)]
        with caplog.at_level(logging.WARNING), asking(*askers):
            for _ in range(KILLS):
                before = [len(each.done) for each in askers]
                eventually(
                    lambda before=before: all(
                        len(each.done) > n for each, n in zip(askers, before, strict=True)
                    )
                )
                (old,) = _pods()
                killed = time.monotonic()
                store.kill(of)
                eventually(lambda old=old: [uid for uid, ready in _pods().items() if ready and uid != old])
                ready = time.monotonic()
                eventually(lambda ready=ready: all(each.back(ready) for each in askers))
                found.append((ready - killed, max(each.back(ready) for each in askers) - ready))
    for away, later in found:
        record_property(
            "a store that was killed: ready again after, and its users served after that",
            f"{away:.1f} s, {later:.2f} s",
        )
    assert max(later for _, later in found) <= LATER_SECONDS
    said = [record.getMessage() for record in caplog.records]
    assert any("does not answer" in each for each in said), said
    assert any("answers again, after" in each for each in said), said


def _pods() -> dict[str, bool]:
    """The service's pods by uid, and whether each is ready."""
    words = (f"--namespace={NAMESPACE}", "--selector=app=muster-store")
    return {
        each["metadata"]["uid"]: holds(each, "Ready")
        for each in kubectl.get(layout(), "pods", *words)["items"]
        if not each["metadata"].get("deletionTimestamp")
    }
