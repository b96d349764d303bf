"""A model server as a pod: what it runs, what it sees of the store, and when it counts as ready.

The server's code travels with each revision, in a ConfigMap of its own, as it is in the muster that deploys:
the image holds what the image's lock says, and no code of ours that could be of another release.
"""

from __future__ import annotations

import base64
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import CONFIG_MAP, SERVICE, Document
from muster.backends.kubernetes.manifests import pods, wiring
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.site import ClusterSite
from muster.core.deployment import DeploymentSpec, RequestLog, Workers
from muster.core.errors import SpecError
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.wire import plain

PORT = 8080
GRPC_PORT = 8081  # in a pod, and of each Service
READY = "/v2/health/ready"  # true only when the model is loaded
LONGEST_REQUEST_SECONDS = 30
_MARGIN_SECONDS = 5

_FOLDER, _MODEL = "/mnt/muster/server", "/mnt/muster/model"
_ARCHIVE = "serving.zip"
PROGRAM = f"{_FOLDER}/{_ARCHIVE}"  # where the servers' code is in a pod: Python runs it, and imports from it
_MAIN = "from muster_serving.__main__ import main\n\nmain()\n"
_CLAIM, _SERVER, _SCRATCH = (f"{labels.OURS}{name}" for name in ("claim", "server", "scratch"))
WORKERS = "workers"  # the container of a model that is no ONNX model
_LINE, _WORK = (f"{labels.OURS}{name}" for name in ("line", "work"))
_REQUESTS_FOLDER = "/mnt/muster/requests"
_TOKENS, _TOKENS_FOLDER = f"{labels.OURS}tokens", "/mnt/muster/tokens"
KEY = "MUSTER_KEY"  # a variable of the server's container: who may read pods here may ask them
_SHARED = "/mnt/muster/line"
_SOCKET = f"{_SHARED}/workers.sock"
_FRONT = Resources(cpus=0.25, memory_gib=0.5)  # of a server that only asks the workers
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can hold; the same sources give the same bytes
_GPU_PRESENT = "nvidia.com/gpu.present"  # GPU feature discovery sets it


@dataclass(frozen=True, kw_only=True)
class Server:
    """One revision of a deployment, as it is to run.

    :param gpu_classes: of the nodes with cards, to be kept off; None where all nodes have some.
    :param key: what muster's own requests carry, where users need tokens or have limits.
    """

    spec: DeploymentSpec
    revision: str
    site: ClusterSite
    gpu_classes: tuple[str, ...] | None = ()
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """What its objects are called."""
        return names.revision_name(self.spec.name, self.revision, namespace=self.site.namespace)

    @property
    def labels(self) -> dict[str, str]:
        """By which its objects and pods are found."""
        return names.of_revision(self.spec.name, self.revision)


@cache
def archive() -> bytes:
    """Return the servers' code as one zip that Python runs and imports from, the same bytes for the same sources.

    :raises SpecError: this installation of muster lacks it.
    """
    package = shipped("serving") / "muster_serving"
    sources = sorted(package.rglob("*.py"))
    if Path(package / "__main__.py") not in sources:
        raise SpecError(f"this installation of muster lacks its model servers ({package}): install it again")
    files = {path.relative_to(package.parent).as_posix(): path.read_bytes() for path in sources}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as made:
        for name, data in {"__main__.py": _MAIN.encode(), **files}.items():
            made.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def code(server: Server) -> Document:
    """Return the ConfigMap with the server's code."""
    data = {_ARCHIVE: base64.b64encode(archive()).decode("ascii")}
    return CONFIG_MAP.document(_metadata(server, server.name), immutable=True, binaryData=data)


def grpc_service(server: Server) -> Document:
    """Return the Service by which a Gateway asks a revision over gRPC.

    The platform's own Service has one port, and does not say that its pods speak HTTP/2 without TLS.
    """
    metadata = _metadata(server, names.grpc_service_name(server.name))
    return SERVICE.document(metadata, spec={"selector": server.labels, "ports": [grpc_port()]})


def _metadata(server: Server, name: str) -> Document:
    return {"name": name, "namespace": server.site.namespace, "labels": server.labels}


def grpc_port() -> Document:
    """The port of a Service that leads to gRPC (https://gateway-api.sigs.k8s.io/guides/backend-protocol)."""
    return {
        "name": "grpc",
        "port": GRPC_PORT,
        "targetPort": GRPC_PORT,
        "protocol": "TCP",
        "appProtocol": "kubernetes.io/h2c",
    }


def pod(server: Server, *, container: str) -> Document:
    """Return the pod's spec: Pod Security's `restricted`, no account, no writable root, off the GPU nodes.

    :param container: what the platform wants the server's container to be called.
    """
    site, resources = server.site, server.spec.resources
    # Read-only as a whole, but where the server keeps requests: then each mount says it.
    claim = {"claimName": site.claim, **({} if server.spec.log else {"readOnly": True})}
    spec: Document = {
        "serviceAccountName": site.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": site.drain_seconds
        + math.ceil(server.spec.finish_seconds)
        + _MARGIN_SECONDS,
        "securityContext": pods.identity(site),
        "tolerations": pods.tolerations(resources, site),
        "containers": [_front(server, container)],
        "volumes": [
            {"name": _CLAIM, "persistentVolumeClaim": claim},
            {"name": _SERVER, "configMap": {"name": server.name}},
            {"name": _SCRATCH, "emptyDir": {}},
        ],
    }
    if server.spec.tokens:
        tokens = {"name": names.tokens_name(server.spec.name), "optional": True}  # until a first one is made
        spec["volumes"].append({"name": _TOKENS, "configMap": tokens})
    if server.spec.workers:
        spec["containers"].append(_workers(server, server.spec.workers))
        spec["volumes"] += [{"name": name, "emptyDir": {}} for name in (_LINE, _WORK)]
    if resources.gpu_class:
        spec["affinity"] = pods.affinity(resources.gpu_class)
    elif not resources.gpus and server.gpu_classes is not None:
        spec["affinity"] = _off_cards(server.gpu_classes)
    if site.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in site.image_pull_secrets]
    return spec


def _command(server: Server) -> list[str]:
    """How the server is started: with no variable, for KServe refuses a PYTHONPATH."""
    return [
        *("python3", PROGRAM, server.spec.name, f"--server={server.spec.server}"),
        *(f"--model={_MODEL}", f"--revision={server.revision}"),
        f"--version={server.spec.model.address}",
        *("--host=0.0.0.0", f"--port={PORT}"),
        *([f"--grpc-port={GRPC_PORT}"] if server.spec.grpc else []),
        *_setup(server.spec),
        *(["--counts-inputs"] if server.spec.counts_inputs else []),
        *([f"--log={json.dumps(_log(server.spec, server.spec.log))}"] if server.spec.log else []),
        *([f"--limits={json.dumps(server.spec.limits.order())}"] if server.spec.limits else []),
        *([f"--tokens={_TOKENS_FOLDER}"] if server.spec.tokens else []),
    ]


def _log(spec: DeploymentSpec, log: RequestLog) -> Document:
    """What the server is told of the log of its requests; the key of the hashes is in the folder."""
    # What is not set is left out, so a keyword that is new restarts no server.
    told = {name: value for name, value in plain(log).items() if value is not None}
    return {"folder": _REQUESTS_FOLDER, **told, "clients": spec.tokens}


def _setup(spec: DeploymentSpec) -> list[str]:
    """How the workers run, for the server and for their own container; nothing for an ONNX model."""
    setup = spec.worker_setup()
    return [] if setup is None else [f"--setup={json.dumps({**setup, 'socket': _SOCKET})}"]


def _front(server: Server, name: str) -> Document:
    """The model server; where the model has workers, it computes nothing and needs little."""
    spec = server.spec
    return _container(
        server,
        name,
        image=server.site.image(spec.image, spec.image_digest),
        command=_command(server),
        answers={"ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}], **_probes(spec)},
        resources=_FRONT if spec.workers else spec.resources,
        writable={_SCRATCH: wiring.TEMPORARY, **({_LINE: _SHARED} if spec.workers else {})},
        readable={_TOKENS: _TOKENS_FOLDER} if spec.tokens else {},
        told={KEY: server.key} if spec.guarded else {},
        keeps=spec.log is not None,
    )


def _workers(server: Server, workers: Workers) -> Document:
    """The workers, in the author's image, behind a socket that the two containers share.

    Its own scratch folder keeps what the model writes from the server.
    """
    return _container(
        server,
        WORKERS,
        image=server.site.image(workers.image, workers.image_digest),
        command=[
            *("python3", PROGRAM, server.spec.name, "--server=workers", f"--model={_MODEL}"),
            *_setup(server.spec),
        ],
        answers={},
        resources=server.spec.resources,
        writable={_WORK: wiring.TEMPORARY, _LINE: _SHARED},
    )


def _container(
    server: Server,
    name: str,
    *,
    image: str,
    command: list[str],
    answers: Document,
    resources: Resources,
    writable: Mapping[str, str],
    readable: Mapping[str, str] = MappingProxyType({}),
    told: Mapping[str, str] = MappingProxyType({}),
    keeps: bool = False,
) -> Document:
    """One container of the pod, with the version and the servers' code, both read-only.

    :param answers: its ports and probes.
    :param writable: where each of the pod's empty folders is.
    :param readable: where each of its other volumes is. :param told: variables.
    :param keeps: whether it sees the folder of the deployment's requests: never one that runs an author's code.
    """
    site = server.site
    variables = {"PYTHONUNBUFFERED": "1", "HOME": wiring.TEMPORARY, "LANG": "C.UTF-8", **told}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "workingDir": wiring.TEMPORARY,
        "env": [{"name": variable, "value": value} for variable, value in variables.items()],
        **answers,
        # A sleep needs no shell. Meanwhile the gateway learns that the replica goes, and the replica still answers.
        "lifecycle": {"preStop": {"sleep": {"seconds": site.drain_seconds}}},
        "resources": _amounts(resources, site),
        "securityContext": pods.confined(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {
                "name": _CLAIM,
                "mountPath": _MODEL,
                "subPath": site.on_claim(wiring.version_path(server.spec.model.address)),
                "readOnly": True,
            },
            *([_requests(server)] if keeps else []),
            {"name": _SERVER, "mountPath": _FOLDER, "readOnly": True},
            *({"name": volume, "mountPath": path, "readOnly": True} for volume, path in readable.items()),
            *({"name": volume, "mountPath": path} for volume, path in writable.items()),
        ],
    }


def _requests(server: Server) -> Document:
    """The folder of the deployment's requests on the claim, which the store service has made."""
    folder = server.site.on_claim(f"predictions/{server.spec.name}")
    return {"name": _CLAIM, "mountPath": _REQUESTS_FOLDER, "subPath": folder}


def _amounts(resources: Resources, site: ClusterSite) -> Document:
    """What a job of these resources would get, and a limit of CPUs: without one KServe makes it a single CPU."""
    amounts = pods.amounts(resources, site)
    cpus = f"{math.ceil(2000 * resources.cpus)}m"
    return {**amounts, "limits": {"cpu": cpus, **amounts["limits"]}}


def _probes(spec: DeploymentSpec) -> Document:
    """When a replica is up, ready and alive: all three ask whether its model is loaded.

    One that has not loaded it in time is started again, which a release sees as a restart.
    """
    asked = {"httpGet": {"path": READY, "port": PORT}}
    return {
        "startupProbe": {
            **asked,
            "periodSeconds": 1,
            "timeoutSeconds": 1,
            "failureThreshold": math.ceil(spec.load_timeout_seconds),
        },
        "readinessProbe": {**asked, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 2},
        "livenessProbe": {**asked, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }


def _off_cards(classes: Sequence[str]) -> Document:
    """Keep a server that needs no card off the nodes that have one."""
    expressions = [{"key": _GPU_PRESENT, "operator": "NotIn", "values": ["true"]}]
    if classes:
        expressions.append({"key": labels.GPU_CLASS, "operator": "NotIn", "values": sorted(classes)})
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
