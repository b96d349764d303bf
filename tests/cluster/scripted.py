"""Jobs of muster's on the test cluster whose pods run a script in place of the worker, and what is seen of them.

Their manifests are muster's own but for that: labels, rules for failures, security, resources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import accounts, kubectl
from tests.cluster.inside import IMAGE, NAMESPACE
from tests.cluster.layout import API_URL, Layout

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.access import Access, access_of
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    EVENT,
    JOB,
    JOB_SET,
    POD,
    POD_GROUP,
    WORKLOAD,
    Document,
    Kind,
    kind_of,
    owned_by,
)
from muster.backends.kubernetes.api.watching import without_managers
from muster.backends.kubernetes.cluster.discovery import discover
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.manifests.gangs import documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.seen import JobObjects
from muster.backends.kubernetes.state.sight import Mirror
from muster.core.errors import BackendError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.wire import dumps

CLAIM = "muster-store"
WAIT = "import time; time.sleep(600)"
SMALL = Resources(cpus=0.05, memory_gib=0.0625)
KINDS = (JOB_SET, JOB, POD, WORKLOAD, EVENT)
_METADATA = {"name": "groups", "namespace": NAMESPACE}
_RBAC = "rbac.authorization.k8s.io"
# What the chart gives the operator's account where there is no Kueue.
_GROUPS: list[Document] = [
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _METADATA,
        "rules": [
            {
                "apiGroups": [POD_GROUP.group],
                "resources": [POD_GROUP.plural],
                "verbs": ["get", "list", "watch", "create"],
            }
        ],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _METADATA,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "groups"},
        "subjects": [{"kind": "ServiceAccount", "name": accounts.OPERATOR, "namespace": NAMESPACE}],
    },
]

SITE = ClusterSite(
    namespace=NAMESPACE,
    claim=CLAIM,
    store_url="http://127.0.0.1:9",
    images={"probe": IMAGE},
    queue="team-a",
    service_account=accounts.JOB,
)

_RECORDINGS = "MUSTER_RECORDINGS"


def connection(of: Layout, account: str = accounts.OPERATOR) -> Access:
    """Return a connection with the rights of a service account of the jobs' namespace, good for a day."""
    from kubernetes.client import Configuration

    configuration = Configuration()
    configuration.host = API_URL
    configuration.ssl_ca_cert = str(of.credentials / "ca.crt")
    configuration.api_key["authorization"] = f"Bearer {accounts.token(of, account)}"
    return access_of(configuration)


def job(name: str, *roles: Role, **changes: Any) -> JobSpec:
    """Return a gang of two small replicas, but for `roles` and `changes`."""
    gang = (Role(replicas=2, entrypoint="probe:run", resources=SMALL),)
    spec = {"image": "probe", "image_digest": "b3:" + 64 * "0", "max_restarts": 1, "grace_seconds": 0.0}
    return JobSpec(name=f"probes.{name}", roles=roles or gang, **(spec | changes))


@dataclass
class Jobs:
    """Submits jobs and shows what becomes of them."""

    layout: Layout
    client: Client
    mirror: Mirror
    cluster: Cluster
    started: dict[str, Document] = field(default_factory=dict)

    def start(
        self,
        name: str,
        spec: JobSpec,
        script: str,
        *,
        queue: str | None = "team-a",
        cluster: Cluster | None = None,
        change: Callable[[Document], None] = lambda spec: None,
        longest_seconds: int | None = None,
        without: Kind | None = None,
    ) -> None:
        """Submit a job whose pods run `script`.

        :param change: to each pod's spec, in place.
        :param longest_seconds: how long Kubernetes lets it go on, if that is not to be what its spec says.
        :param without: a kind of object that is not made, as if it had been deleted.
        """
        submission = Submission(
            job=spec, job_id=name, attempt=1, site=SITE, cluster=cluster or self.cluster, queue=queue
        )
        made = documents(submission, token="token")
        for role in _jobs(made.owner):
            pod = role["template"]["spec"]
            _script(pod, script)
            change(pod)
            if longest_seconds is not None:
                role["activeDeadlineSeconds"] = longest_seconds
        owner = self.client.create(made.owner)
        self.started[name] = owner
        for document in made.owned:
            if without is None or document["kind"] != without.name:
                self.client.create(owned_by(document, owner))

    def seen(self, name: str) -> JobObjects:
        return self.mirror.seen(name)

    def until(
        self, name: str, what: str, condition: Callable[[JobObjects], Any], *, seconds: float = 60
    ) -> Any:
        """Return what a condition finds in the objects of a job, as soon as it finds something."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [condition(self.seen(name))]
            return bool(found[0])

        try:
            kubectl.until(f"{name}: {what}", look, seconds=seconds)
        except BackendError as error:
            error.add_note(self._shown(name))
            raise
        return found[0]

    def _shown(self, name: str) -> str:
        """What the queue and the events say of a job."""
        seen = self.seen(name)
        conditions = ((seen.workload or {}).get("status") or {}).get("conditions") or []
        said = [f"{each['type']}={each['status']}: {each.get('message')}" for each in conditions]
        said += [f"{each['reason']}: {each.get('message')}" for each in seen.events]
        return "\n".join([f"{len(seen.pods)} pods", *said])

    def clear(self, *names: str) -> None:
        """Delete what was started, or these of it, and wait until it is gone."""
        going = {name: self.started[name] for name in names or self.started}
        for owner in going.values():
            self.client.delete(kind_of(owner), owner["metadata"]["name"], namespace=NAMESPACE)
        for name in going:
            kubectl.until(f"{name} is gone", lambda name=name: not self._left(name))
            del self.started[name]

    def _left(self, name: str) -> bool:
        wanted = f"{labels.JOB}={name}"
        return any(self.client.find(kind, namespace=NAMESPACE, labels=wanted) for kind in (JOB_SET, JOB, POD))


@contextmanager
def jobs(of: Layout, *, groups: bool = False) -> Iterator[Jobs]:
    """Connect as muster's operator, with the rights that it has there.

    :param groups: those that it has where no Kueue starts gangs whole, beside them.
    """
    client = Client(connection(of))
    cluster = discover(client, namespace=NAMESPACE, claim=CLAIM)
    kinds = (*KINDS, *([POD_GROUP] if groups else []))
    with (
        may_group(of) if groups else nullcontext(),
        closing(
            Mirror(client, namespace=NAMESPACE, kinds=kinds, read=lambda _: without_managers)
        ) as mirror,  # to be recorded
    ):
        mirror.wait(timeout_seconds=30)
        yield Jobs(layout=of, client=client, mirror=mirror, cluster=cluster)


@contextmanager
def may_group(of: Layout) -> Iterator[None]:
    """Give the operator's account meanwhile what it has where no Kueue starts gangs whole."""
    kubectl.apply(of, _GROUPS)
    try:
        yield
    finally:
        kubectl.delete(of, _GROUPS)


def record(name: str, seen: JobObjects, spec: JobSpec, *, now: float) -> None:
    """Write down what was seen where ``MUSTER_RECORDINGS`` names a folder: tests of pure functions read it."""
    folder = os.environ.get(_RECORDINGS)
    if not folder:
        return
    found = [seen.root, *seen.jobs, *seen.pods, seen.workload, seen.pod_group, *seen.events]
    head = {"job": json.loads(dumps(spec)), "now": now}
    lines = [json.dumps(each, sort_keys=True) for each in (head, *found) if each]
    (Path(folder) / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _jobs(owner: Mapping[str, Any]) -> list[Document]:
    """What each role's Job is asked to be."""
    return [each["template"]["spec"] for each in owner["spec"].get("replicatedJobs") or ()] or [owner["spec"]]


def _script(pod: Document, script: str) -> None:
    """Let a pod run a script: no store service, so nothing to fetch and nothing of the claim to see."""
    pod["initContainers"][0]["command"] = ["python3", "-c", "pass"]
    main = pod["containers"][0]
    main["command"] = ["python3", "-u", "-c", script]
    claim = next(volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume)
    main["volumeMounts"] = [mount for mount in main["volumeMounts"] if mount["name"] != claim]
