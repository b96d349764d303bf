"""A revision as Seldon Core's SeldonDeployment (v1): one predictor without an orchestrator, and no share in it.

What Seldon's operator makes of one is read off its release 1.17.1
(https://github.com/SeldonIO/seldon-core/tree/v1.17.1/operator), not seen: it is not to be had for the tests.
"""

from __future__ import annotations

from muster.backends.kubernetes.api.kinds import SELDON_DEPLOYMENT, Document
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import Server, pod

_NO_ENGINE = "seldon.io/no-engine"  # users' requests come to the server itself, as with KServe
_SERVICE_NAME = "seldon.io/svc-name"
_UTILIZATION_PERCENT = 80  # as KServe scales


def seldon_deployment(server: Server) -> Document:
    """Return the SeldonDeployment of a revision. It is never edited.

    Its predictor's labels are those of its Deployment and pods, but not of its Service, which gets a name of
    ours. A share of less than 100 is refused for a single predictor; which share of the users comes to it
    is for the route to say.
    """
    spec = server.spec
    component = {"spec": pod(server, container=spec.name), **_scaling(server)}
    return {
        "apiVersion": SELDON_DEPLOYMENT.api_version,
        "kind": SELDON_DEPLOYMENT.name,
        "metadata": {
            "name": server.name,
            "namespace": server.site.namespace,
            "labels": server.labels,
            "annotations": {names.MODEL: spec.model.address, names.SPEC: names.spec_digest(spec)},
        },
        "spec": {
            "protocol": "v2",
            "predictors": [
                {
                    "name": server.revision,
                    "replicas": spec.replicas,
                    "traffic": 100,
                    "labels": server.labels,
                    "annotations": {_NO_ENGINE: "true", _SERVICE_NAME: names.service_name(server.name)},
                    "graph": {"name": spec.name, "type": "MODEL", "children": []},
                    "componentSpecs": [component],
                }
            ],
        },
    }


def _scaling(server: Server) -> Document:
    """How many replicas there may be; a fixed number is the predictor's own."""
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
