"""What the chart makes of some values, as files in golden/: what a person reviews when they change.

Those of the test cluster are there whole, since clusters come up from that file without helm; the others by what
differs from it (:mod:`tests.golden`).
``python -m tests.chart.examples`` writes them anew; look at ``git diff`` then.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests import golden
from tests.chart.helm import ROOT, Document, text

FOLDER = Path(__file__).parent / "golden"
CLUSTER = ROOT / "tests" / "cluster" / "values.yaml"

LEAST: Document = {
    "image": "registry.example/team-a/muster:0123456789ab",
    "store": {"existingSecret": "muster-keys"},
    "queues": {
        "flavors": [{"name": "cpu"}],
        "teams": [{"name": "team-a", "quotas": [{"flavor": "cpu", "cpu": 8, "memory": "32Gi"}]}],
    },
}
WHOLE: Document = {
    "image": f"registry.example/team-a/muster@sha256:{'0123456789abcdef' * 4}",
    "imagePullSecrets": ["registry"],
    "user": None,
    "gpuResource": "amd.com/gpu",
    "commonLabels": {"cost-center": "42"},
    "podLabels": {"sidecar.example/inject": "false"},
    "podAnnotations": {"example/scrape": "false"},
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "site-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
    "claim": {"name": "shared", "size": "2Ti", "storageClassName": ""},
    "store": {
        "replicas": 2,
        "folder": "team-a/store",
        "livenessProbe": {"timeoutSeconds": 15},
        "existingSecret": "muster-keys",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "priorityClassName": "important",
    },
    "reaper": {"replicas": 1, "tolerations": [{"key": "dedicated", "operator": "Exists"}]},
    "gc": {"schedule": "@weekly", "keep": 10},
    "operator": {
        "exec": True,
        "subjects": [
            {"kind": "ServiceAccount", "name": "airflow-worker", "namespace": "airflow"},
            {"kind": "Group", "name": "team-a", "apiGroup": "rbac.authorization.k8s.io"},
        ],
    },
    "admission": {"serviceAccounts": ["reads-s3"]},
    "queues": {
        "topology": {"name": "racks", "levels": ["example/rack", "kubernetes.io/hostname"]},
        "flavors": [
            {"name": "cpu", "nodeLabels": {"pool": "cpu"}},
            {
                "name": "h200",
                "gpuClass": "gpu-h200",
                "nodeTaints": [{"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}],
                "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
            },
        ],
        "cohorts": [{"name": "company"}, {"name": "site", "parent": "company"}],
        "teams": [
            {
                "name": "team-a",
                "cohort": "site",
                "quotas": [
                    {"flavor": "cpu", "cpu": "12500m", "memory": "1Ti"},
                    {
                        "flavor": "h200",
                        "cpu": 64,
                        "memory": "1Ti",
                        "gpus": 8,
                        "borrowingLimit": {"gpus": 4},
                        "lendingLimit": {"gpus": 2, "memory": "100Gi"},
                    },
                ],
            }
        ],
        "priorities": [{"name": "urgent", "value": 5000}],
    },
    "serving": {
        "enabled": True,
        "gateway": "gateways/public",
        "url": "https://{name}.models.example",
        "runtime": {"image": "registry.example/team-a/serve:0123456789ab"},
        "requests": {"image": "registry.example/team-a/serve:0123456789ab"},
    },
    "metrics": {
        "enabled": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
    },
    "networkPolicy": {
        "scrapers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "airflow"}}}],
        "gateway": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}],
        "jobEgress": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 5432}]}],
        "apiServer": {
            "ports": [6443],
            "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
            "from": [{"ipBlock": {"cidr": "10.1.2.4/32"}}],
        },
    },
}
AIRFLOW: Document = {
    **LEAST,
    "airflow": {
        "enabled": True,
        "image": "registry.example/team-a/airflow:0123456789ab",
        "secret": "muster-airflow",
        "database": {"small": {"enabled": True}},
    },
}
TASKS: Document = {
    **AIRFLOW,
    "airflow": {
        **AIRFLOW["airflow"],
        "executor": "KubernetesExecutor",
        "dags": {"volume": "site/dags@latest"},
        "setup": {"secret": "muster-first", "pools": [{"name": "gpus", "slots": 4}]},
    },
}
WORKERS: Document = {
    **AIRFLOW,
    "airflow": {
        **AIRFLOW["airflow"],
        "executor": "CeleryExecutor",
        "celery": {"brokerSecret": "muster-broker"},
    },
    "networkPolicy": {"airflowEgress": [{"ports": [{"port": 6379}]}]},
}
TEAMS: Document = {
    **AIRFLOW,
    "queues": {
        **LEAST["queues"],
        "teams": [
            {"name": name, "cohort": "site", "quotas": [{"flavor": "cpu", "cpu": 8, "memory": "32Gi"}]}
            for name in ("site", "vision", "speech")
        ],
        "weights": {"vision-ana": 2},
    },
    "teams": {
        "shared": ["common"],
        "teams": {
            "vision": {
                "queue": "vision",
                "volumes": "sight",
                "folder": "eyes",
                "secrets": ["connection:vision_*"],
                "users": {"ana": "vision-ana", "ben@example.com": "vision-ben"},
                "weight": 2,
            },
            "speech": {"queue": "speech", "volumes": "sound", "weight": 0.5},
        },
    },
}
EXAMPLES: dict[str, Document | Path] = {
    "least": LEAST,
    "whole": WHOLE,
    "airflow": AIRFLOW,
    "airflow-tasks": TASKS,
    "airflow-workers": WORKERS,
    "teams": TEAMS,
    "test-cluster": CLUSTER,
}


LIKE = {
    "least": "test-cluster",
    "whole": "test-cluster",
    "airflow": "least",
    "airflow-tasks": "airflow",
    "airflow-workers": "airflow",
    "teams": "airflow",
}


@cache
def written(name: str) -> str:
    """Return what the chart makes of an example."""
    return text(EXAMPLES[name])


def files() -> dict[str, str]:
    """Every file's text by its name."""
    return golden.files({name: written(name) for name in EXAMPLES}, like=LIKE)


if __name__ == "__main__":
    golden.write(FOLDER, files())
