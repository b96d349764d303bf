"""A backend over a cluster that runs nothing and a store service that is real; and ways to cut it off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.places import MadePlace
from tests.unit.backends.kubernetes.api_server import ApiServer, api_server
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE, FakeCluster
from tests.unit.volumes.service.process import Service

from muster.backends.base import Backend
from muster.backends.jobs.checks import from_environment
from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, SECRET, Kind
from muster.backends.kubernetes.api.transport import Transport
from muster.backends.kubernetes.runner import KubernetesRunner
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.sight import secret_of
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.volumes.service.connection import Connection

Document = dict[str, Any]


class Cut(BaseException):
    """Here the process is killed."""


class NoServers:
    """Nothing is deployed in these tests."""

    servers: tuple[str, ...] = ()

    def deploy(self, *_: object, **__: object) -> None: ...
    def deployment(self, name: str) -> Any: ...
    def deployments(self) -> list[str]:
        return []

    def retire(self, name: str) -> None: ...


@dataclass
class World:
    """One cluster and one store, and as many backends as a test wants."""

    cluster: FakeCluster
    server: ApiServer
    service: Service
    image: str
    queue: str | None = "team-a"
    partial_starts: bool = False
    made: list[Backend] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def backend(self, name: str = "cache", *, token: str | None = None) -> Backend:
        """One more process' backend. Its clock does not wait: what is away stays away. :param token: an operator's."""
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            self.slept.append(seconds)

        store = self.service.client(name, token=token)
        runner = KubernetesRunner(
            Client(self.server.near(), clock=lambda: now[0], sleep=sleep),
            site=ClusterSite(
                namespace=NAMESPACE,
                claim="muster-store",
                store_url=self.service.url,
                image_prefix="localhost",
                queue=self.queue,
                partial_starts=self.partial_starts,
            ),
            store=store,
            resolve=from_environment,
        )
        backend = Backend(MadePlace(store, runner, deployments=NoServers()))
        self.made.append(backend)
        return backend

    def job(self, *, replicas: int = 2, **changes: Any) -> JobSpec:
        role = Role(replicas=replicas, command=("true",), resources=Resources(cpus=0.1, memory_gib=0.1))
        given: dict[str, Any] = {
            "image_digest": self.image,
            "roles": (role,),
            "outputs": {"out": OutputTarget(volume="a/out")},
            "grace_seconds": 0.0,
        }
        return JobSpec(name="a.job", image="python", **(given | changes))

    def questions(self) -> int:
        """How many requests came to the cluster, but for watches, which go on by themselves."""
        return sum(asked.query.get("watch") != "true" for asked in self.server.asked)

    def roots(self, job_id: str) -> list[Document]:
        found = [*self.cluster.all(JOB_SET), *self.cluster.all(JOB)]
        return [each for each in found if each["metadata"]["labels"][labels.JOB] == job_id]

    def secret(self, job_id: str) -> Document | None:
        """What the job's pods mount, or what is left of that where it has no root."""
        own = [each for each in self.cluster.all(SECRET) if each["metadata"]["labels"][labels.JOB] == job_id]
        mounted = {secret_of(root) for root in self.roots(job_id)}
        return next((each for each in own if not mounted or each["metadata"]["name"] in mounted), None)

    def ask_for_bundle(self, job_id: str, *, index: int = 0, restart: str = "0") -> httpx.Response:
        """Do what a pod does first, with what its objects tell it."""
        (root,), secret = self.roots(job_id), self.secret(job_id)
        assert secret is not None
        query = {
            "attempt": root["metadata"]["labels"][labels.ATTEMPT],
            "restart": restart,
            "role": "main",
            "index": str(index),
            "pod": f"pod-{index}-{restart}",
        }
        with self.service.asking(secret["stringData"]["token"]) as pod:
            return pod.get(f"/v1/jobs/{job_id}/bundle", params=query)

    def pod(self, job_id: str, *, phase: str = "Running", **metadata: Any) -> Document:
        """Have a pod of a job's first replica on a node."""
        (root,) = self.roots(job_id)
        return self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{job_id}-main-0-0",
                    "namespace": NAMESPACE,
                    "labels": {**root["metadata"]["labels"], labels.ROLE: "main"},
                    "ownerReferences": [{"uid": root["metadata"]["uid"]}],
                    **metadata,
                },
                "spec": {"nodeName": "cpu-0"},
                "status": {"phase": phase},
            }
        )


@contextmanager
def world(
    folder: Path, *, missing: frozenset[Kind] = frozenset(), queue: str | None = "team-a"
) -> Iterator[World]:
    """Have a cluster, without the kinds that it misses, and a store. :param queue: the site's."""
    with Service(folder) as service:
        lock = folder / "image"
        lock.mkdir()
        (lock / "requirements.txt").write_text("")
        image = service.client().put(lock, ["requirements.txt"])
        cluster = FakeCluster(missing=missing)
        with api_server(cluster) as server:
            made = World(cluster=cluster, server=server, service=service, image=image, queue=queue)
            try:
                yield made
            finally:
                for backend in made.made:
                    backend.close()
                cluster.closing.set()


@contextmanager
def at_request(
    monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None], *, after: bool
) -> Iterator[list[str]]:
    """Do something before or after the request of that number which this thread sends; yield what was sent."""
    sent: list[str] = []
    me = threading.get_ident()
    busy: list[bool] = []

    def around(send: Callable[..., Any], what: Callable[..., str]) -> Callable[..., Any]:
        def cut(*given: Any, **how: Any) -> Any:
            if threading.get_ident() != me or busy:
                return send(*given, **how)
            sent.append(what(*given))
            mine = len(sent) == number
            if mine and not after:
                _once(busy, do)
            try:
                return send(*given, **how)
            finally:  # also where the answer is a refusal
                if mine and after:
                    _once(busy, do)

        return cut

    with monkeypatch.context() as patch:
        patch.setattr(Transport, "ask", around(Transport.ask, lambda _, request: str(request)))
        patch.setattr(
            Connection, "request", around(Connection.request, lambda _, method, path: f"{method} {path}")
        )
        yield sent


def _once(busy: list[bool], do: Callable[[], None]) -> None:
    busy.append(True)
    try:
        do()
    finally:
        busy.pop()


def die() -> None:
    """Be killed."""
    raise Cut
