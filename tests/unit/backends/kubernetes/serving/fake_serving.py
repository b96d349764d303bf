"""A cluster that serves models: what a platform, a Gateway and the kubelets do is done at once, and told as they tell it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.unit.backends.kubernetes.api_server import Answer, Asked, api_server, status
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE, FakeCluster

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Kind
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.kinds import ServingPlatform, platform_of
from muster.backends.kubernetes.serving.platform import ClusterPlatform
from muster.backends.kubernetes.serving.server import KEY
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.backends.releases.book import number
from muster.backends.releases.deployments import Deployments
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

Document = dict[str, Any]
GATEWAY = "gateways/public"
SITE = ClusterSite(
    namespace=NAMESPACE,
    claim="muster-store",
    store_url="http://muster-store:8080",
    image_prefix="registry.example/ml",
    serving=PlatformOwner.KSERVE,
    gateway=GATEWAY,
    serving_url="http://gateway.example:8000",
    gateway_seconds=0.6,
)
_PROXY = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^:%/]+)(?::|%3A)8080/proxy(?P<path>/.*)")

_COUNTED_NOTHING = 'muster_requests_total{{model="lines",outcome="answered",revision="{revision}"}} 0.0\n'


@dataclass
class ServingCluster(FakeCluster):
    """Keeps objects and plays the controllers.

    :param crashes: revisions whose container ends at once, with what it says last.
    :param slow: revisions that do not get ready.
    :param answers: what a revision's replicas answer to any request instead of a prediction.
    :param hanging: revisions whose replicas answer nothing until then.
    :param gateway_down: routes are not taken up.
    :param counted: metrics pages by pod, where they have answered anything.
    :param silent: the others' pages are empty.
    """

    crashes: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    hanging: dict[str, threading.Event] = field(default_factory=dict)
    gateway_down: bool = False
    counted: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        namespace, _, name = GATEWAY.partition("/")
        self.put(
            {
                "apiVersion": kinds.GATEWAY.api_version,
                "kind": "Gateway",
                "metadata": {"name": name, "namespace": namespace},
            }
        )

    def __call__(self, asked: Asked) -> Answer:
        found = _PROXY.fullmatch(asked.path)
        if found and not self.away:
            return self._proxied(found["pod"], found["path"], asked)
        return super().__call__(asked)

    def _answer(self, verb: str, kind: Kind, name: str | None, asked: Asked) -> Answer:
        if verb == "patch" and asked.headers["Content-Type"].startswith("application/apply-patch"):
            return self._applied(kind, str(name), asked.body)
        if verb == "patch" and asked.headers["Content-Type"].startswith("application/merge-patch"):
            return self._merged(kind, str(name), asked.body)
        if verb == "delete" and (stale := self._stale(kind, str(name), asked.body)):
            return stale
        answer = super()._answer(verb, kind, name, asked)
        if verb == "create" and answer.code == 201 and not asked.query.get("dryRun"):
            self._control(kind, answer.body)
            return Answer(201, self.objects[kind.plural, answer.body["metadata"]["name"]])
        return answer

    def _stale(self, kind: Kind, name: str, body: Document) -> Answer | None:
        wanted = (body.get("preconditions") or {}).get("resourceVersion")
        found = self.objects.get((kind.plural, name))
        if wanted is None or found is None or found["metadata"]["resourceVersion"] == wanted:
            return None
        return status(409, "Conflict", "the ResourceVersion in the precondition does not match")

    def _merged(self, kind: Kind, name: str, change: Document) -> Answer:
        found = self.objects.get((kind.plural, name))
        if found is None:
            return status(404, "NotFound", f"{kind.resource} {name!r} not found", name=name, kind=kind.plural)
        version = change["metadata"].get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            return status(409, "Conflict", "the object has been modified")
        annotations = {
            **found["metadata"].get("annotations", {}),
            **change["metadata"].get("annotations", {}),
        }
        kept = {key: value for key, value in annotations.items() if value is not None}
        self._write(kind, found, {**found, **change, "metadata": {"annotations": kept}})
        return Answer(body=self.objects[kind.plural, name])

    def _applied(self, kind: Kind, name: str, body: Document) -> Answer:
        found = self.objects.get((kind.plural, name))
        if found is None:
            return status(409, "Conflict", "uid mismatch: the object is not there")
        version = body["metadata"].get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            return status(409, "Conflict", "the object has been modified")
        self._write(kind, found, body)
        return Answer(body=self.objects[kind.plural, name])

    def _write(self, kind: Kind, found: Document, body: Document) -> None:
        generation = found["metadata"].get("generation", 1) + (body.get("spec") != found.get("spec"))
        metadata = {**found["metadata"], **body["metadata"], "generation": generation}
        self.put({**found, **body, "metadata": metadata})
        self._control(kind, self.objects[kind.plural, metadata["name"]])

    def edit(self, kind: Kind, name: str, **spec: Any) -> None:
        """Change an object as another client would."""
        found = self.objects[kind.plural, name]
        metadata = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
        self._write(kind, found, {**found, "metadata": metadata, "spec": {**found["spec"], **spec}})

    def touch(self, kind: Kind, name: str) -> None:
        """Give an object another version, as a controller does that reports."""
        self.put(self.objects[kind.plural, name])

    def _control(self, kind: Kind, document: Document) -> None:
        if kind is kinds.HTTP_ROUTE and not self.gateway_down:
            self.take_up(document)
        if kind is kinds.INFERENCE_SERVICE:
            wanted = document["spec"]["predictor"]["minReplicas"]
            labels = document["metadata"]["labels"]  # of the Service, too
            self._bring_up(document, wanted, f"{document['metadata']['name']}-predictor", labels)
        if kind is kinds.SELDON_DEPLOYMENT:
            (predictor,) = document["spec"]["predictors"]
            assert predictor["labels"] == document["metadata"]["labels"]  # its Deployment and pods get them
            self._bring_up(
                document, predictor["replicas"], predictor["annotations"]["seldon.io/svc-name"], {}
            )

    def take_up(self, route: Document) -> None:
        generation = route["metadata"].setdefault("generation", 1)
        conditions = [
            {"type": each, "status": "True", "observedGeneration": generation}
            for each in ("Accepted", "ResolvedRefs")
        ]
        parent = {"parentRef": route["spec"]["parentRefs"][0], "conditions": conditions}
        self.put({**route, "status": {"parents": [parent]}})

    def _bring_up(self, service: Document, wanted: int, called: str, service_labels: dict[str, str]) -> None:
        """Have what a platform makes of a revision's object, as it stands by now. :param called: its Service."""
        name, labels = service["metadata"]["name"], service["metadata"]["labels"]
        revision = labels[names.REVISION]
        up = wanted if revision not in self.crashes and revision not in self.slow else 0
        owner = {"kind": service["kind"], "name": name, "uid": service["metadata"]["uid"]}
        own = {"namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
        of_service = {**own, "labels": {**service_labels, "kubernetes.io/service-name": called}}
        kind = {"InferenceService": "PredictorReady", "SeldonDeployment": "DeploymentsReady"}[service["kind"]]
        self.put({**service, "status": {"conditions": [{"type": kind, "status": "True" if up else "False"}]}})
        self.put(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {**own, "name": f"{name}-workload", "generation": 1},
                "spec": {"replicas": wanted},
                "status": {
                    "observedGeneration": 1,
                    "replicas": wanted,
                    "updatedReplicas": wanted,
                    "availableReplicas": up,
                },
            }
        )
        pods = [f"{name}-{place}" for place in range(wanted)]
        self.put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**of_service, "name": f"{called}-x"},
                "endpoints": [
                    {"addresses": ["10.0.0.1"], "targetRef": {"name": pod}, "conditions": {"ready": bool(up)}}
                    for pod in pods
                ],
            }
        )
        for pod in pods:
            self.put(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**own, "name": pod},
                    "spec": {"containers": service["spec"].get("predictor", {}).get("containers", [])},
                    "status": {
                        "podIP": "10.0.0.1",
                        "conditions": [{"type": "Ready", "status": "True" if up else "False"}],
                        "containerStatuses": [self._container(revision)],
                    },
                }
            )

    def _container(self, revision: str) -> Document:
        if revision not in self.crashes:
            return {"name": "server", "ready": revision not in self.slow, "restartCount": 0}
        ended = {"exitCode": 1, "reason": "Error", "message": self.crashes[revision]}
        return {
            "name": "server",
            "ready": False,
            "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": ended},
        }

    def _proxied(self, pod: str, path: str, asked: Asked) -> Answer:
        found = self.objects.get(("pods", pod))
        if found is None:
            return status(404, "NotFound", f'pods "{pod}" not found')
        keys = {
            variable["value"]
            for container in found["spec"].get("containers", ())
            for variable in container["env"]
            if variable["name"] == KEY
        }
        if keys and keys != {asked.headers.get("Muster-Key")}:
            return Answer(401, {"error": "this deployment needs a token"})
        self.asked.append((pod, path, asked.body))
        revision = found["metadata"]["labels"][names.REVISION]
        if revision in self.hanging:
            return Answer(hold=self.hanging[revision])
        if path == "/metrics":
            nothing = "" if self.silent else _COUNTED_NOTHING.format(revision=revision)
            return Answer(body=self.counted.get(pod, nothing).encode())
        if revision in self.answers:
            return Answer(*self.answers[revision])
        if path.endswith("/infer"):
            column = asked.body["inputs"][0]["data"]
            data = [float(number(revision)) * x for x in column]
            return Answer(
                body={"outputs": [{"name": "y", "shape": [len(data)], "datatype": "FP32", "data": data}]}
            )
        tensor = {"name": "x", "datatype": "FP32", "shape": [-1]}
        return Answer(body={"name": "lines", "inputs": [tensor], "outputs": [{**tensor, "name": "y"}]})


@dataclass
class World:
    """One cluster, one store, and as many of us as a test wants; time is the test's."""

    cluster: ServingCluster
    store: FolderStore
    client: Client
    folder: Path
    image: str
    site: ClusterSite = SITE
    versions: list[Pinned] = field(default_factory=list)
    now: float = 1_800_000_000.0
    slept: list[float] = field(default_factory=list)
    open_spool: Callable[[str], None] = lambda _deployment: None

    @property
    def platform(self) -> ServingPlatform:
        return platform_of(self.site)

    def deployments(self, sleep: Callable[[float], None] | None = None, **changes: Any) -> Deployments:
        """Connect, as one more client. :param sleep: instead of :meth:`sleep`. :param changes: of the site."""
        store, now, sleep = lambda: self.store, lambda: self.now, sleep or self.sleep
        platform = ClusterPlatform(
            self.client,
            site=replace(self.site, **changes),
            store=store,
            open_spool=self.open_spool,
            now=now,
            sleep=sleep,
        )
        return Deployments(platform, store, now=now, sleep=sleep)

    def surveyed(self) -> Deployments:
        """Connect, and know already what the cluster offers, so that the next act asks for no more than it needs."""
        deployments = self.deployments()
        deployments.platform.blank("nothing")
        return deployments

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def spec(self, number: int = 1, *, name: str = "lines", **changes: Any) -> DeploymentSpec:
        """A deployment of one version."""
        return DeploymentSpec(
            **{
                "name": name,
                "model": self.version(number),
                "image": "serve",
                "image_digest": self.image,
                "smoke": (SmokeRequest(name="one", inputs={"x": (1.0, 2.0)}),),
                **changes,
            }
        )

    def version(self, number: int) -> Pinned:
        """The version of that number; all of them up to it are there."""
        while len(self.versions) < number:
            folder = self.folder / str(len(self.versions))
            folder.mkdir()
            (folder / "model.onnx").write_text(f"model {len(self.versions)}")
            self.versions.append(self.store.add("lines/model", folder).pinned)
        return self.versions[number - 1]

    def route(self, name: str = "lines") -> Document:
        return self.cluster.objects[kinds.HTTP_ROUTE.plural, name]

    def weights(self, name: str = "lines") -> dict[str, int]:
        (rule,) = self.route(name)["spec"]["rules"]
        return {each["name"]: each["weight"] for each in rule["backendRefs"]}


@contextmanager
def world(folder: Path, platform: PlatformOwner = PlatformOwner.KSERVE) -> Iterator[World]:
    cluster = ServingCluster()
    with api_server(cluster) as server:
        store = FolderStore(folder / "store")
        (folder / "image").mkdir()
        (folder / "image" / "requirements.txt").write_text("")
        yield World(
            cluster=cluster,
            store=store,
            client=Client(server.near(), patience_seconds=0.0),
            folder=folder,
            image=put_image(store, folder / "image"),
            site=replace(SITE, serving=platform),
        )
