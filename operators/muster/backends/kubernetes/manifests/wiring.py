"""What a replica's processes find: its paths, its orders, its job's Secret, and the variables by which a gang meets.

Ranks get their numbers from the worker (:mod:`muster.worker.launchers`), which reads them off its
orders. What only Kubernetes knows, a replica's index and how often its gang was started, comes from
the labels and annotations that JobSet and Job put on the pod.

**Starts.** `attempt` is the one that the store staged at submission; from there on the cluster itself
starts the gang again, and each start is an attempt of its own to the store
(:mod:`muster.volumes.service.starts`). A pod names its start as ``ATTEMPT.RESTART``, RESTART being what
the cluster counts: ``2`` of a JobSet, ``1-2`` (failures and disruptions, to be added up) of a Job. It asks
for the bundle by that, and mounts ``staging/JOB/ATTEMPT.RESTART/…``, a link that the store makes before it
answers.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.cluster.facts import Cluster, Gangs
from muster.backends.kubernetes.manifests import bootstrap
from muster.backends.kubernetes.site import ClusterSite
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import LOOPBACK, Replica
from muster.core.wire import dumps

BUNDLE = "/muster"
TOLD = "/mnt/muster/job"
_INPUTS = "/mnt/muster/inputs"
OUTPUTS = "/mnt/muster/outputs"
CHECKPOINTS = "/mnt/muster/checkpoints"
GANG = "/mnt/muster/gang"  # shared by the replicas: the sign that one of them still speaks
SCRATCH = "/mnt/muster/scratch"
HOME = "/mnt/muster/home"
TEMPORARY = "/tmp"  # noqa: S108 - what programs write to unasked
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where ranks share tensors
TERMINATION_LOG = "/dev/termination-log"

TOKEN, ORDERS, BOOTSTRAP = "token", "orders.json", "bootstrap.py"
PATIENCE_SECONDS = 600.0  # torch and Horovod wait for their peers as long
MASTER_PORT, _TF_PORT = 29500, 2222

_RESTARTS = {
    "MUSTER_RESTART": f"metadata.labels['{labels.RESTART}']",
    "MUSTER_FAILURES": f"metadata.annotations['{labels.FAILURES}']",
    "MUSTER_IGNORED": f"metadata.annotations['{labels.IGNORED}']",
}
_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_HELM = "sh.helm."
_KEY = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,253}\Z")
_TF_TASKS = frozenset({"chief", "master", "worker", "ps", "evaluator"})


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What the objects of a job depend on, beside the contents of its Secret.

    :param attempt: the one that the store staged.
    :param cluster: what was found there; what it cannot do was refused before
        (:mod:`~muster.backends.kubernetes.cluster.feasibility`).
    :param queue: the one that the job waits in; None where it goes to the scheduler directly.
    :param secret: the name of its Secret; ``muster-<job_id>`` if that is not given.
    """

    job: JobSpec
    job_id: str
    site: ClusterSite
    cluster: Cluster
    attempt: int = 1
    queue: str | None = None
    secret: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", self.secret or labels.secret_name(self.job_id))

    @property
    def priority(self) -> str | None:
        """The class of its priority, if it has one."""
        return self.cluster.priority(self.job.priority)

    @property
    def alone(self) -> bool:
        """Whether it is one pod, without a rendezvous."""
        return self.job.replicas == 1

    @property
    def single(self) -> bool:
        """Whether it is a Job; all others are a JobSet, which starts again in 3 s and not in 10, 20, 40."""
        return self.alone and not self.cluster.job_set

    @property
    def grouped(self) -> bool:
        """Whether a PodGroup starts its pods together, because no queue does."""
        return not self.alone and self.queue is None and self.cluster.gangs is Gangs.POD_GROUP

    @property
    def restart(self) -> str:
        """Which start of the gang a pod belongs to, as its own variables say it."""
        return "$(MUSTER_FAILURES)-$(MUSTER_IGNORED)" if self.single else "$(MUSTER_RESTART)"

    def host(self, role: Role, index: int) -> str:
        """The name of one replica: JobSet makes it, and a Service that knows it before it is ready."""
        if self.alone:
            return LOOPBACK
        name = labels.object_name(self.job_id)
        group = dict(zip(self.job.roles, labels.group_names(self.job_id, self.job.roles), strict=True))[role]
        return f"{name}-{group}-0-{index}.{name}"

    @property
    def master(self) -> str:
        """The host of rank 0."""
        return self.host(self.job.roles[0], 0)

    @property
    def staging(self) -> str:
        """Where on the claim this start of the gang writes, for ``subPathExpr``."""
        return self.site.on_claim(f"staging/{self.job_id}/{self.attempt}.{self.restart}")


def orders(submission: Submission) -> str:
    """Write the orders of the gang's first replica; the init container makes them those of its own."""
    job, first = submission.job, submission.job.roles[0]
    return dumps(
        Replica(
            job_id=submission.job_id,
            spec=job,
            attempt=submission.attempt,
            role=first.name,
            index=0,
            code=f"{BUNDLE}/code" if job.code else None,
            inputs={name: tuple(input_paths(job, name)) for name in job.mounted},
            staging={name: f"{OUTPUTS}/{name}" for name in job.staged},
            checkpoints=CHECKPOINTS,
            scratch=SCRATCH,
            sealed=f"{GANG}/{first.name}-0.part-manifest",
            report=f"{SCRATCH}/report.json",
            master_address=submission.master,
            master_port=MASTER_PORT,
            peers=tuple(_peers(submission)) if job.launcher.listens else (),
        )
    )


def _peers(submission: Submission) -> Iterator[str]:
    """``host:port`` of each rank: those of one replica have a port each."""
    for role in submission.job.roles:
        for index in range(role.replicas):
            host = submission.host(role, index)
            yield from (f"{host}:{_TF_PORT + local_rank}" for local_rank in range(role.ranks))


def input_paths(job: JobSpec, name: str) -> list[str]:
    """Where the versions of one input are mounted."""
    return [f"{_INPUTS}/{name}/{place}" for place in range(len(job.inputs[name].versions))]


def version_path(address: str) -> str:
    """Where in the store the data of a pinned version lies."""
    pinned = Address.parse(address)
    return "/".join(filter(None, ("v", pinned.volume, pinned.value, "data", pinned.path)))


def bootstrap_orders(submission: Submission, role: Role) -> str:
    """Write what the init container is told (:func:`muster.backends.kubernetes.manifests.bootstrap.main`)."""
    store, job_id = literal(submission.site.store_url), submission.job_id
    start = f"attempt={submission.attempt}&restart={submission.restart}"
    replica = f"role={role.name}&index=$(MUSTER_REPLICA)&pod=$(MUSTER_POD)"
    told = {
        "url": f"{store}/v1/jobs/{job_id}/bundle?{start}&{replica}",
        "token": f"{TOLD}/{TOKEN}",
        "orders": f"{TOLD}/{ORDERS}",
        "role": role.name,
        "index": "$(MUSTER_REPLICA)",
        "sealed": f"{GANG}/{role.name}-$(MUSTER_REPLICA).part-manifest",
        "gpus": role.resources.gpus,
        "folder": BUNDLE,
        "patience_seconds": PATIENCE_SECONDS,
    }
    return json.dumps(told, separators=(",", ":"))


def counters(submission: Submission) -> list[Document]:
    """The variables that only the pod's own metadata tells; others may name them after they were given."""
    told = {"MUSTER_POD": "metadata.uid", "MUSTER_REPLICA": f"metadata.annotations['{labels.INDEX}']"}
    told |= {name: place for name, place in _RESTARTS.items() if f"$({name})" in submission.restart}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": place}}} for name, place in told.items()]


def variables(submission: Submission, role: Role) -> dict[str, str]:
    """The environment of a replica's worker, and so of its ranks; what the job itself sets is in its spec."""
    site = submission.site
    plain = {
        "HOME": HOME,
        "USER": "muster",  # getpass asks for it, and an arbitrary uid has no entry in passwd
        "LOGNAME": "muster",
        "LANG": "C.UTF-8",
        "TMPDIR": TEMPORARY,
        "XDG_CACHE_HOME": f"{HOME}/.cache",
        "XDG_CONFIG_HOME": f"{HOME}/.config",
        "MUSTER_STORE_URL": site.store_url,
        "MUSTER_TOKEN_FILE": f"{TOLD}/{TOKEN}",
        "MUSTER_TERMINATION_LOG": TERMINATION_LOG,
        "MUSTER_FRESH": f"{TEMPORARY}:{SHARED_MEMORY}",
        **({"NCCL_DEBUG": "WARN", **site.gpu_environment} if role.resources.gpus else {}),
    }
    escaped = {name: literal(value) for name, value in plain.items()}
    return {**escaped, **_torchrun(submission), **_tensorflow(submission, role)}


def literal(text: str) -> str:
    """Escape what Kubernetes would read as a variable's name, ``$(NAME)``, or as ``$`` itself."""
    return text.replace("$", "$$")


def _torchrun(submission: Submission) -> dict[str, str]:
    """For a script that calls torchrun itself, once a replica: its node rank is the replica's index.

    Every option of torchrun has a variable ``PET_…`` (torch/distributed/argparse_util.py).
    """
    job, role = submission.job, submission.job.roles[0]
    if job.launcher is not Launcher.TORCHRUN or len(job.roles) > 1 or role.ranks > 1:
        return {}
    return {
        "PET_NNODES": str(role.replicas),
        "PET_NPROC_PER_NODE": str(max(1, role.resources.gpus)),
        "PET_NODE_RANK": "$(MUSTER_REPLICA)",
        "PET_MASTER_ADDR": submission.master,
        "PET_MASTER_PORT": str(MASTER_PORT),
    }


def _tensorflow(submission: Submission, role: Role) -> dict[str, str]:
    """``TF_CONFIG``, where every role is one of TensorFlow's task types (tf.distribute's own form)."""
    job, roles = submission.job, submission.job.roles
    tasks = all(each.name in _TF_TASKS for each in roles)
    if submission.alone or job.launcher is not Launcher.PLAIN or not tasks:
        return {}
    cluster = {
        each.name: [f"{submission.host(each, index)}:{_TF_PORT}" for index in range(each.replicas)]
        for each in roles
    }
    task = f'{{"type":"{role.name}","index":$(MUSTER_REPLICA)}}'
    return {"TF_CONFIG": f'{{"cluster":{json.dumps(cluster, separators=(",", ":"))},"task":{task}}}'}


def secret_data(submission: Submission, *, token: str, values: Mapping[str, str]) -> dict[str, str]:
    """What the job's Secret holds: the token, the orders, the init container's program, and values found elsewhere.

    :param values: of the job's secrets that lie in no Secret of the cluster, by variable.
    :raises SpecError: one is missing, or it is more than a Secret holds.
    """
    job = submission.job
    wanted = [name for name, reference in job.secrets.items() if reference.source != "kubernetes"]
    missing = [name for name in wanted if name not in values]
    if missing:
        source = job.secrets[missing[0]]
        raise SpecError(
            f"secret {missing[0]}: the submitter did not look up {source.source} {source.name!r:.100} for the cluster"
        )
    found = {_key(name): _text(name, values[name]) for name in wanted}
    own = {TOKEN: token, ORDERS: orders(submission), BOOTSTRAP: inspect.getsource(bootstrap)}
    size = sum(len(text.encode()) for text in (*own.values(), *found.values()))
    if size > _MOST_BYTES:
        raise SpecError(
            f"job {job.name}: its spec and secrets are {size} bytes, and a cluster holds {_MOST_BYTES} of a job; "
            "put what is large into a volume and give it as an input"
        )
    return {**own, **found}


def secret_variables(submission: Submission) -> dict[str, Document]:
    """Where each of the job's secrets is found in the cluster, by variable, for a container's ``env``.

    :raises SpecError: a Secret's name or key cannot be one, or it is muster's own.
    """
    return {variable: _secret_variable(submission, variable) for variable in submission.job.secrets}


def _secret_variable(submission: Submission, variable: str) -> Document:
    reference = submission.job.secrets[variable]
    if reference.source != "kubernetes":
        name, key = submission.secret, _key(variable)
    else:
        name, _, key = reference.name.partition("/")
        check_secret_name(f"secret {variable}", name)
        if not _KEY.match(key):
            raise SpecError(f"secret {variable}: {reference.name!r:.100} is not NAME/KEY of a Secret")
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def check_secret_name(where: str, name: object) -> str:
    """Return the name of a Secret that is not muster's. :raises SpecError: it cannot be one, or no job may have it."""
    if not isinstance(name, str) or len(name) > 253 or not _NAME.match(name):
        raise SpecError(f"{where}: {name!r:.100} is not the name of a Secret")
    if name.startswith(labels.OURS):
        raise SpecError(f"{where}: Secret {name!r:.100} is muster's own, and no pod may ask for it")
    if name.startswith(_HELM):
        raise SpecError(
            f"{where}: Secret {name!r:.100} is what Helm keeps of a release, with all Secrets that its chart made: no pod "
            "may ask for it"
        )
    return name


def _text(variable: str, value: str) -> str:
    """Return a secret's value if a variable can hold it; its value is in no message."""
    try:
        value.encode()
    except UnicodeEncodeError:
        found = "bytes that are no UTF-8"
    else:
        if "\0" not in value:
            return value
        found = "a NUL"
    raise SpecError(f"secret {variable}: its value holds {found}, and no variable can")


def _key(variable: str) -> str:
    return f"env.{variable}"
