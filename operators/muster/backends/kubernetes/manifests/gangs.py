"""A job as Kubernetes' objects: a JobSet, with a PodGroup where there is no Kueue; a Job where there are no JobSets.

Pure: a spec in, documents out. The objects say how a gang fails, too: also while no process of
muster watches, the cluster ends a gang that cannot recover and restarts the others. The worker's exit codes
(:class:`~muster.core.verdict.ExitCode`) and the disruption of a pod decide.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, POD_GROUP, SECRET, Document, Kind
from muster.backends.kubernetes.manifests import overrides, pods, wiring
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.job import JobSpec, Role
from muster.core.verdict import ExitCode

KEPT_SECONDS = 86_400  # objects of a job that has ended
_FINAL = (
    ExitCode.USER_ERROR,
    ExitCode.SPEC_ERROR,
    ExitCode.OUT_OF_MEMORY,
    ExitCode.SEAL_FAILED,
    ExitCode.GIVEN_UP,
)
# Of a pod whose ranks did well, or that was told to stop. Pods of a Job that Kueue puts back count nowhere but in its rules.
_UNFAILED = [int(ExitCode.SEALED), int(ExitCode.STOPPED), 128 + signal.SIGTERM]
_FREE = "RestartJobSetAndIgnoreMaxRestarts"
# By what a pod says that the cluster ended it. Kueue's is of one that waits for a node which is lost.
_DISRUPTIONS = ("DisruptionTarget", "TerminatedByKueue")
_LATER_SECONDS = 60
_PREPARES_SECONDS = 3600.0  # what has been let in needs no longer until it starts
_INT32 = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Documents:
    """A job's objects, to be made in this order.

    :param owner: made first; where it goes, all go. Its pods wait for the rest.
    :param owned: each is made with a reference to the owner as the API returned it (:func:`~..api.kinds.owned_by`).
    """

    owner: Document
    owned: tuple[Document, ...]


def documents(submission: Submission, *, token: str, values: Mapping[str, str] | None = None) -> Documents:
    """Write a job as what the cluster is to make.

    :param token: the job's own, for the store service.
    :param values: of the job's secrets that are in no Secret of the cluster, by variable.
    :raises SpecError: a secret is missing, or the job's override reaches too far.
    """
    templates = _templates(submission)
    longest = _longest(submission.job, queued=submission.queue is not None)
    owner = (_job if submission.single else _job_set)(submission, templates, longest)
    if submission.queue is not None:
        owner = _queued(owner, submission, submission.queue)
    group = [_pod_group(submission)] if submission.grouped else []
    told = wiring.secret_data(submission, token=token, values=values or {})
    secret = _object(
        SECRET, submission, name=submission.secret, type="Opaque", immutable=True, stringData=told
    )
    return Documents(owner=owner, owned=(*group, secret))


def _templates(submission: Submission) -> dict[str, Document]:
    """Return the pod template of each role by name; what it asks for is what is checked against the cluster."""
    made = {}
    for role in submission.job.roles:
        template = pods.template(submission, role)
        if submission.job.pod_override:
            template = overrides.merge(submission.job.pod_override, template, site=submission.site)
        if submission.queue is not None and submission.cluster.topology:
            template = _placed(template)
        if submission.grouped:
            template["spec"]["schedulingGroup"] = {"podGroupName": labels.object_name(submission.job_id)}
        if submission.queue is None and submission.priority is not None:
            template["spec"]["priorityClassName"] = submission.priority
        made[role.name] = template
    return made


def _longest(job: JobSpec, *, queued: bool) -> int:
    """After how many seconds Kubernetes ends a job that no process of muster watches.

    It counts from when a Job may start, and a run_timeout only from when its gang has: in between images are pulled,
    and checkpoints copied. Where no queue holds it until there is room, it waits for that as well.
    """
    waits = 0.0 if queued else job.queue_timeout_seconds
    seconds = (
        math.ceil(waits + _PREPARES_SECONDS + job.run_timeout_seconds + job.grace_seconds) + _LATER_SECONDS
    )
    return min(seconds, _INT32)


def _job_set(submission: Submission, templates: Mapping[str, Document], longest: int) -> Document:
    job = submission.job
    groups = labels.group_names(submission.job_id, job.roles)
    spec = {
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "failurePolicy": {
            "maxRestarts": job.max_restarts,
            "restartStrategy": "BlockingRecreate",  # no pod of the new gang meets one of the old
            "rules": _gang_rules(),
        },
        "replicatedJobs": [
            {"name": group, "replicas": 1, "template": _role(submission, role, templates[role.name], longest)}
            for group, role in zip(groups, job.roles, strict=True)
        ],
    }
    return _object(JOB_SET, submission, spec=spec)


def _gang_rules() -> list[Document]:
    """The first that matches decides, and what none matches is a restart that counts: a rank began, and ended badly.

    A Job that failed without the exit code of a container had a pod that never started, or was told to stop: where each
    new start ends so at once, all restarts would be used up within seconds (:mod:`~..lifecycle.ending` ends that).
    From jobset/pkg/controllers/failure_policy.go; the messages are those of Kubernetes' Job
    (pkg/controller/job/pod_failure_policy.go), which gives all of them the same reason.
    """
    codes = "|".join(str(int(code)) for code in sorted(_FINAL))
    first = f"^Container {labels.BOOTSTRAP} "
    return [
        _rule("final", "FailJobSet", f" failed with exit code ({codes}) matching "),
        _rule("stale", _FREE, f"{first}.* exit code {int(ExitCode.STOPPED)} matching "),
        _rule("unbootable", "FailJobSet", first),
        {"name": "overdue", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        _rule("disruption", _FREE, f" has condition ({'|'.join(_DISRUPTIONS)}) matching "),
        {"name": "outside", "action": _FREE, "onJobFailureReasons": ["BackoffLimitExceeded"]},
    ]


def _rule(name: str, action: str, pattern: str) -> Document:
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [pattern],
    }


def _role(submission: Submission, role: Role, template: Document, longest: int) -> Document:
    """The Job of one role: it fails with its first pod, since a gang that lost a rank waits for nothing."""
    spec = {
        **_replicas(role, template, longest),
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [*_final(), _disrupted("FailJob"), _ended("FailJob", labels.MAIN, "NotIn", _UNFAILED)]
        },
    }
    return {"metadata": {"labels": _labels(submission, role)}, "spec": spec}


def _job(submission: Submission, templates: Mapping[str, Document], longest: int) -> Document:
    """A Job that starts its one pod again itself, and tells it how often it did.

    It waits 10 s before that, and twice as long each time, whatever failed and whatever is asked of it
    (DefaultJobPodFailureBackOff in Kubernetes' pkg/controller/job): a JobSet's restart is a new Job.
    """
    (role,) = submission.job.roles
    stale = _ended("Ignore", labels.BOOTSTRAP, "In", [int(ExitCode.STOPPED)])
    spec = {
        **_replicas(role, templates[role.name], longest),
        "backoffLimitPerIndex": submission.job.max_restarts,  # per index, for then it tells each pod
        "podFailurePolicy": {"rules": [stale, *_final(), _disrupted("Ignore")]},
        "ttlSecondsAfterFinished": KEPT_SECONDS,
    }
    return _object(JOB, submission, spec=spec)


def _replicas(role: Role, template: Document, longest: int) -> Document:
    return {
        "completionMode": "Indexed",
        "parallelism": role.replicas,
        "completions": role.replicas,
        "activeDeadlineSeconds": longest,
        "podReplacementPolicy": "Failed",  # no pod beside one that still ends
        "template": template,
    }


def _final() -> list[Document]:
    """What fails the same way each time; an init container that was not killed had no Python, or said so.

    One that says 70 belongs to a start of the gang that is over: Kueue took the gang's nodes and gave it
    others, which Kubernetes does not count, and the store lets no second pod be the same replica while the first may
    live on.
    """
    again = [int(ExitCode.RANK_LOST), *(128 + number for number in (signal.SIGKILL, signal.SIGTERM))]
    return [
        _ended("FailJob", labels.MAIN, "In", [int(code) for code in sorted(_FINAL)]),
        _ended("FailJob", labels.BOOTSTRAP, "NotIn", again),
    ]


def _ended(action: str, container: str, operator: str, codes: list[int]) -> Document:
    values = {"containerName": container, "operator": operator, "values": codes}
    return {"action": action, "onExitCodes": values}


def _disrupted(action: str) -> Document:
    return {"action": action, "onPodConditions": [{"type": name, "status": "True"} for name in _DISRUPTIONS]}


def _placed(template: Document) -> Document:
    """Any node will do, as long as there is room for all at once: Kueue looks before it admits."""
    told = template["metadata"]["annotations"] | {labels.TOPOLOGY: "true"}
    return {**template, "metadata": {**template["metadata"], "annotations": told}}


def _queued(document: Document, submission: Submission, queue: str) -> Document:
    """Let Kueue start it, and end it: a Job's own deadline begins anew with each restart, this one does not."""
    job = submission.job
    told = {labels.QUEUE: queue, labels.QUEUE_LONGEST: str(_longest(job, queued=True))}
    if submission.priority is not None:
        told[labels.QUEUE_PRIORITY] = submission.priority
    metadata = document["metadata"]
    return {
        **document,
        "metadata": {**metadata, "labels": metadata["labels"] | told},
        "spec": {"suspend": True, **document["spec"]},
    }


def _pod_group(submission: Submission) -> Document:
    spec: Document = {
        "schedulingPolicy": {"gang": {"minCount": submission.job.replicas}},
        "disruptionMode": {"all": {}},
    }
    if submission.priority is not None:
        spec["priorityClassName"] = submission.priority
    return _object(POD_GROUP, submission, spec=spec)


def _object(kind: Kind, submission: Submission, *, name: str | None = None, **rest: Any) -> Document:
    metadata = {
        "name": name or labels.object_name(submission.job_id),
        "namespace": submission.site.namespace,
        "labels": _labels(submission),
        "annotations": labels.notes(submission.job),
    }
    return kind.document(metadata, **rest)


def _labels(submission: Submission, role: Role | None = None) -> dict[str, str]:
    return labels.labels(
        submission.job,
        job_id=submission.job_id,
        attempt=submission.attempt,
        role=None if role is None else role.name,
    )
