"""The manifests of some jobs, whole, as YAML files in golden/: what a person reviews when they change.

``python -m tests.unit.backends.kubernetes.golden`` writes them anew; look at ``git diff`` then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.core.job import Input, JobSpec, Launcher, Origin, Output, Pinned, Role, SecretRef
from muster.core.resources import Resources

FOLDER = Path(__file__).parent / "golden"
DIGEST = f"b3:{'0123456789abcdef' * 4}"
SITE = ClusterSite(
    namespace="team-a",
    claim="muster-store",
    store_url="http://muster-store:8080",
    image_prefix="registry.example/ml",
    image_pull_secrets=("registry",),
    gpu_environment={"NCCL_SOCKET_IFNAME": "eth0"},
)
KUEUE = Cluster(namespace="team-a", job_set=True, kueue=True, topology=True)
POD_GROUP = Cluster(namespace="team-a", job_set=True, pod_group=True)
BARE = Cluster(namespace="team-a")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One job, and what it is asked of."""

    job: JobSpec
    job_id: str
    attempt: int = 1
    site: ClusterSite = SITE
    cluster: Cluster = KUEUE
    queue: str | None = "training"
    values: Mapping[str, str] = field(default_factory=dict)
    override: Mapping[str, Any] | None = None

    def documents(self) -> Documents:
        submission = Submission(
            job=self.job,
            job_id=self.job_id,
            attempt=self.attempt,
            site=self.site,
            cluster=self.cluster,
            queue=self.queue,
        )
        return documents(submission, token="TOKEN", values=self.values, override=self.override)


def job(*roles: Role, **changes: Any) -> JobSpec:
    """A job that is as plain as can be but for `changes`."""
    entrypoint = Role(entrypoint="flights.train:train")
    return JobSpec(
        **{
            "name": "flights.train",
            "image": "train",
            "image_digest": DIGEST,
            "roles": roles or (entrypoint,),
            **changes,
        }
    )


def _train(**changes: Any) -> JobSpec:
    role = Role(
        name="worker",
        replicas=2,
        ranks=2,
        entrypoint="flights.train:train",
        resources=Resources(cpus=2.5, memory_gib=4, gpus=2, gpu_class=("a100", "k80"), disk_gib=10),
    )
    given = {
        "launcher": Launcher.TORCHRUN,
        "code": DIGEST,
        "inputs": {
            "features": Input(versions=(Pinned(address="volume://flights/features@7", digest=DIGEST),)),
            "months": Input(
                versions=tuple(
                    Pinned(address=f"volume://flights/month@{number}", digest=DIGEST) for number in (3, 12)
                ),
                many=True,
            ),
        },
        "outputs": {"model": Output(volume="flights/model")},
        "params": {"epochs": 5, "text": "$(HOME) $5"},
        "env": {"PRICE": "$5"},
        "secrets": {
            "API_KEY": SecretRef(source="kubernetes", name="weather/key"),
            "MLFLOW_TRACKING_PASSWORD": SecretRef(source="connection", name="mlflow#password"),
        },
        "run_timeout_seconds": 3600.5,
        "grace_seconds": 20,
        "max_restarts": 4,
        "priority": "train-high",
        "origin": Origin(instance="prod", dag_id="flights", run_id="manual__2013", task_id="train"),
    }
    return job(role, **{**given, **changes})


def _tensorflow() -> JobSpec:
    cpu, gpu = Resources(cpus=1, memory_gib=1), Resources(cpus=4, memory_gib=8, gpus=1, gpu_class=("a100",))
    command = ("python", "train.py", "{outputs.model}")
    return job(
        Role(name="chief", command=command, resources=cpu),
        Role(name="worker", replicas=3, command=command, resources=gpu),
        Role(name="ps", replicas=2, command=command, resources=cpu),
        outputs={"model": Output(volume="flights/model")},
    )


def _horovod() -> JobSpec:
    role = Role(
        replicas=2, ranks=2, command=("python", "train.py"), resources=Resources(cpus=2, memory_gib=2)
    )
    return job(role, launcher=Launcher.HOROVOD)


EXAMPLES = {
    "single": Example(job=job(), job_id="features-0a1b2c3d4e5f-1"),
    "single-bare": Example(
        job=job(priority="high"), job_id="2013-etl-0a1b2c3d4e5f-1", cluster=BARE, queue=None, attempt=3
    ),
    "torchrun": Example(
        job=_train(), job_id="train-0a1b2c3d4e5f-1", values={"MLFLOW_TRACKING_PASSWORD": "s3cret"}
    ),
    "tensorflow": Example(job=_tensorflow(), job_id="train-0a1b2c3d4e5f-2"),
    "horovod": Example(job=_horovod(), job_id="train-0a1b2c3d4e5f-3"),
    "torchrun-script": Example(
        job=job(
            Role(name="worker", replicas=2, command=("torchrun", "train.py"), resources=Resources(gpus=4)),
            launcher=Launcher.TORCHRUN,
        ),
        job_id="train-0a1b2c3d4e5f-6",
    ),
    "pod-group": Example(
        job=job(
            Role(name="coordinator", entrypoint="a:b"),
            Role(
                name="worker",
                replicas=2,
                entrypoint="a:c",
                resources=Resources(gpus=1, gpu_class=("k80",)),
            ),
            priority="high",
        ),
        job_id="train-0a1b2c3d4e5f-4",
        cluster=POD_GROUP,
        queue=None,
    ),
    "override": Example(
        job=_train(secrets={}),
        job_id="train-0a1b2c3d4e5f-5",
        override={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "theirs"}},
            "spec": {
                "nodeSelector": {"zone": "b"},
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                                {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]},
                            ]
                        }
                    }
                },
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "volumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
                "containers": [
                    {
                        "name": "base",
                        "env": [
                            {"name": "NCCL_SOCKET_IFNAME", "value": "ib0"},
                            {"name": "SSL_CERT_FILE", "value": "/etc/certificates/ca.crt"},
                        ],
                        "resources": {"limits": {"rdma/hca": "1"}},
                        "volumeMounts": [
                            {"name": "certificates", "mountPath": "/etc/certificates", "readOnly": True}
                        ],
                    }
                ],
            },
        },
    ),
}


def written(example: Example) -> list[dict[str, Any]]:
    """An example's documents; of the Secret's files only that they are there, since others have their tests."""
    made = example.documents()
    *others, secret = made.owned
    data = {
        name: value
        for name, value in secret["stringData"].items()
        if name not in ("bootstrap.py", "orders.json")
    }
    return [made.owner, *others, {**secret, "stringData": data}]


class _Plain(yaml.SafeDumper):
    """Says everything where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.yaml"):
        path.unlink()
    for name, example in EXAMPLES.items():
        text = yaml.dump_all(written(example), Dumper=_Plain, sort_keys=False, width=110)
        (FOLDER / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    main()
