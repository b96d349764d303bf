"""What objects of a job are called, and the labels by which they are found again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from muster.core.job import JobSpec, Role
from muster.core.names import check_job_id
from muster.core.text import one_line

PREFIX = "muster.dev/"
JOB = f"{PREFIX}job"
ATTEMPT = f"{PREFIX}attempt"
ROLE = f"{PREFIX}role"
INSTANCE = f"{PREFIX}instance"
DAG = f"{PREFIX}dag"
RUN = f"{PREFIX}run"
TASK = f"{PREFIX}task"
NAME = f"{PREFIX}name"
GPU_CLASS = f"{PREFIX}gpu-class"  # of nodes and flavors

QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
QUEUE_LONGEST = "kueue.x-k8s.io/max-exec-time-seconds"
TOPOLOGY = "kueue.x-k8s.io/podset-unconstrained-topology"

INDEX = "batch.kubernetes.io/job-completion-index"
RESTART = "jobset.sigs.k8s.io/restart-attempt"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"

MAIN = "base"  # the container that runs the ranks, called as cncf.kubernetes' users know it
BOOTSTRAP = "muster-bootstrap"
OURS = "muster-"  # prefix of muster's own volumes and Secrets; a job's own may not begin with it

_LONGEST = 63  # a DNS label
_RANDOM = len("-abcde")  # what a pod's name ends with


def object_name(job_id: str) -> str:
    """What a job's objects are called: the job_id, with a letter before it where it begins with a digit.

    JobSet and Services hold names to RFC 1035, where a label begins with a letter.

    :raises SpecError: it is no job_id.
    """
    return check_job_id(job_id) if job_id[:1].isalpha() else f"job-{check_job_id(job_id)}"


def secret_name(job_id: str) -> str:
    """What the Secret with the job's token and orders is called; no override may name one like it."""
    return OURS + check_job_id(job_id)


def group_names(job_id: str, roles: Sequence[Role]) -> tuple[str, ...]:
    """What each role's pods are called after the job's name: the role, or ``r0`` where that is too long."""
    most = max(role.replicas for role in roles)
    room = _LONGEST - len(object_name(job_id)) - len(f"--0-{most - 1}") - _RANDOM
    if all(len(role.name) <= room and role.name[0].isalpha() for role in roles):
        return tuple(role.name for role in roles)
    return tuple(f"r{place}" for place in range(len(roles)))


def labels(job: JobSpec, *, job_id: str, attempt: int, role: str | None = None) -> dict[str, str]:
    """By which every object of a job is found; pods have their role as well."""
    common = {
        JOB: check_job_id(job_id),
        ATTEMPT: str(attempt),
        INSTANCE: instance_label(job.origin.instance),
    }
    return common if role is None else {**common, ROLE: role}


def notes(job: JobSpec) -> dict[str, str]:
    """Who asked, for people; a label could not hold these names."""
    origin = job.origin
    told = {NAME: job.name, DAG: origin.dag_id, RUN: origin.run_id, TASK: origin.task_id}
    return {key: one_line(value) for key, value in told.items() if value}


def instance_label(instance: str) -> str:
    """Name an Airflow instance in a form that a label holds: 16 hex digits of a SHA-256 hash."""
    return hashlib.sha256(instance.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def selector(wanted: Mapping[str, str]) -> str:
    """Write labels as the API takes them in ``labelSelector``."""
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))
