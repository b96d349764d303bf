"""A revision as KServe's InferenceService in Standard mode: a Deployment and a Service of its own, and no route."""

from __future__ import annotations

from muster.backends.kubernetes.api.kinds import INFERENCE_SERVICE, Document
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import Server, pod

CONTAINER = "kserve-container"  # KServe looks for it by this name
_MODE, _SCALING = "serving.kserve.io/deploymentMode", "serving.kserve.io/autoscalerClass"


def inference_service(server: Server) -> Document:
    """Return the InferenceService of a revision. It is never edited: KServe may call an edited one ready that is not.

    With a fixed number of replicas there is no autoscaler, and all of them from the first moment.
    """
    spec = server.spec
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.name,
        "metadata": {
            "name": server.name,
            "namespace": server.site.namespace,
            "labels": {**server.labels, **names.CLUSTER_LOCAL},
            "annotations": {
                _MODE: "Standard",
                _SCALING: "none" if spec.most_replicas is None else "hpa",
                names.MODEL: spec.model.address,
                names.SPEC: names.spec_digest(spec),
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": spec.replicas,
                "maxReplicas": spec.most_replicas or spec.replicas,
                # for what changes a pod without us, an administrator's hand or KServe's next release
                "deploymentStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
                },
                **pod(server, container=CONTAINER),
            }
        },
    }
