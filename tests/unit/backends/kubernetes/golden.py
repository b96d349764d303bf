"""The manifests of some jobs, as files in golden/: what a person reviews when they change.

The objects and the pod of the plainest job are there whole; each other example by what differs from those
(:mod:`tests.golden`).
``python -m tests.unit.backends.kubernetes.golden`` writes them anew; look at ``git diff`` then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import golden

from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.resources import Resources

FOLDER = Path(__file__).parent / "golden"
DIGEST = f"b3:{'0123456789abcdef' * 4}"
JOB_ID = "train-0a1b2c3d4e5f-1"
SITE = ClusterSite(
    namespace="team-a",
    claim="muster-store",
    store_url="http://muster-store:8080",
    image_prefix="registry.example/ml",
    image_pull_secrets=("registry",),
    gpu_environment={"NCCL_SOCKET_IFNAME": "eth0"},
)
CLASSES = frozenset(("high", "normal", "low", "train-high"))
KUEUE = Cluster(namespace="team-a", job_set=True, kueue=True, topology=True, priorities=CLASSES)
POD_GROUP = Cluster(namespace="team-a", job_set=True, pod_group=True, priorities=CLASSES)
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

    def documents(self) -> Documents:
        submission = Submission(
            job=self.job,
            job_id=self.job_id,
            attempt=self.attempt,
            site=self.site,
            cluster=self.cluster,
            queue=self.queue,
        )
        return documents(submission, token="TOKEN", values=self.values)


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
        "outputs": {"model": OutputTarget(volume="flights/model")},
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
        outputs={"model": OutputTarget(volume="flights/model")},
    )


def _horovod() -> JobSpec:
    role = Role(
        replicas=2, ranks=2, command=("python", "train.py"), resources=Resources(cpus=2, memory_gib=2)
    )
    return job(role, launcher=Launcher.HOROVOD)


EXAMPLES = {
    "single": Example(job=job(), job_id=JOB_ID),
    "single-bare": Example(
        job=job(priority="high"), job_id="2013-etl-0a1b2c3d4e5f-1", cluster=BARE, queue=None, attempt=3
    ),
    "torchrun": Example(job=_train(), job_id=JOB_ID, values={"MLFLOW_TRACKING_PASSWORD": "s3cret"}),
    "tensorflow": Example(job=_tensorflow(), job_id=JOB_ID),
    "horovod": Example(job=_horovod(), job_id=JOB_ID),
    "torchrun-script": Example(
        job=job(
            Role(name="worker", replicas=2, command=("torchrun", "train.py"), resources=Resources(gpus=4)),
            launcher=Launcher.TORCHRUN,
        ),
        job_id=JOB_ID,
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
        ),
        job_id=JOB_ID,
        cluster=POD_GROUP,
        queue=None,
    ),
    "override": Example(
        job=_train(
            secrets={},
            pod_override={
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"labels": {"team": "a"}, "annotations": {"note": "theirs"}},
                "spec": {
                    "nodeSelector": {"zone": "b"},
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {
                                        "matchExpressions": [
                                            {"key": "zone", "operator": "In", "values": ["b"]}
                                        ]
                                    },
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
        job_id=JOB_ID,
    ),
}


LIKE = {"override": "torchrun"}  # the others are like PLAINEST
PLAINEST = "single"


def files() -> dict[str, str]:
    """Every file's text by its name: the plainest job's parts, and one of differences for each other example."""
    parts = {name: dict(_parts(example)) for name, example in EXAMPLES.items()}
    wholes = {f"{name}.yaml": text for name, text in parts[PLAINEST].items()}
    others = {
        f"{name}.diff": _differences(parts[LIKE.get(name, PLAINEST)], made)
        for name, made in parts.items()
        if name != PLAINEST
    }
    return {**wholes, **others}


def _differences(wholes: Mapping[str, str], made: Mapping[str, str]) -> str:
    """Each part's, against the part of that name, a pod's against the first pod; a kind of its own is whole."""
    pod = next(name for name in wholes if name.startswith("pod"))
    against = {name: name if name in wholes or not name.startswith("pod") else pod for name in made}
    return "".join(
        golden.difference(wholes.get(against[name], ""), text, names=(against[name], name))
        for name, text in made.items()
    )


def _parts(example: Example) -> Iterator[tuple[str, str]]:
    """An example's objects by their kind; apart from their owner, and by their role, its pods.

    Of the Secret's files only that they are there, since others have their tests.
    """
    made = example.documents()
    *others, secret = made.owned
    data = {
        name: value
        for name, value in secret["stringData"].items()
        if name not in ("bootstrap.py", "orders.json")
    }
    for each in (made.owner, *others, {**secret, "stringData": data}):
        spec = each.get("spec", {})
        if each["kind"] == "JobSet":
            roles = [{"name": role["name"]} for role in spec["replicatedJobs"]]
            yield "JobSet", golden.text({**each, "spec": {**spec, "replicatedJobs": roles}})
            yield from ((f"pod-{role['name']}", golden.text(role)) for role in spec["replicatedJobs"])
        elif each["kind"] == "Job":
            yield "Job", golden.text({**each, "spec": {}})
            yield "pod", golden.text({"template": {"spec": spec}})
        else:
            yield each["kind"], golden.text(each)


if __name__ == "__main__":
    golden.write(FOLDER, files())
