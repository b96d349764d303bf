"""A deployment as Seldon Core's SeldonDeployment: its revisions are predictors, and it shares the traffic out itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.backends.kubernetes.api.kinds import SELDON_DEPLOYMENT, Document
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import PORT, PROGRAM, Server, pod, seldon_parameters

_MODEL = "muster_serving.seldon_model.SeldonModel"
_READY = "/health/status"
_UTILIZATION_PERCENT = 80  # as KServe scales


def seldon_deployment(servers: Sequence[Server], shares: Mapping[str, int]) -> Document:
    """Return the SeldonDeployment of a deployment (machinelearning.seldon.io/v1).

    :param servers: its revisions.
    :param shares: percent of the traffic by revision; one that is not named gets none.
    """
    first = servers[0]
    return {
        "apiVersion": SELDON_DEPLOYMENT.api_version,
        "kind": SELDON_DEPLOYMENT.name,
        "metadata": {
            "name": names.route_name(first.spec.name),
            "namespace": first.site.namespace,
            "labels": names.of_deployment(first.spec.name),
        },
        "spec": {
            "name": first.spec.name,
            "protocol": "seldon",
            "predictors": [_predictor(server, shares.get(server.revision, 0)) for server in servers],
        },
    }


def _predictor(server: Server, percent: int) -> Document:
    spec = server.spec
    return {
        "name": server.revision,
        "replicas": spec.replicas,
        "traffic": percent,
        "labels": server.labels,
        "annotations": {names.MODEL: spec.model.address},
        "graph": {
            "name": spec.name,
            "type": "MODEL",
            "endpoint": {"type": "REST", "service_host": "localhost", "service_port": PORT},
            "children": [],
        },
        "componentSpecs": [
            {
                "spec": pod(
                    server,
                    container=spec.name,
                    command=_command(server),
                    ready=_READY,
                    environment={"PYTHONPATH": PROGRAM},
                ),
                **_scaling(server),
            }
        ],
    }


def _command(server: Server) -> list[str]:
    told = [
        {"name": name, "value": value, "type": "STRING"} for name, value in seldon_parameters(server).items()
    ]
    return [
        *("seldon-core-microservice", _MODEL, "--service-type=MODEL"),
        *(f"--http-port={PORT}", "--grpc-port=0", f"--parameters={json.dumps(told)}"),
    ]


def _scaling(server: Server) -> Document:
    spec = server.spec
    if spec.most_replicas is None:
        return {}
    cpu = {
        "type": "Resource",
        "resource": {
            "name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": _UTILIZATION_PERCENT},
        },
    }
    return {"hpaSpec": {"minReplicas": spec.replicas, "maxReplicas": spec.most_replicas, "metricsv2": [cpu]}}
