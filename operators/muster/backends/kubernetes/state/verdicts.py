"""Why a job on a cluster ended, or never will go on: pure, from its objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.backends.kubernetes.cluster.facts import Cluster, condition, holds
from muster.backends.kubernetes.cluster.feasibility import check_nodes, pod_sets
from muster.backends.kubernetes.cluster.quantities import fits, quantity, shown, times
from muster.backends.kubernetes.manifests.gangs import KEPT_SECONDS
from muster.backends.kubernetes.state.faults import POD_CAUSES, SEE_POD, PodFault, fault, overfull, pod_advice
from muster.backends.kubernetes.state.observe import completed, failed, failure, plain_reason, usable
from muster.backends.kubernetes.state.seen import Container, JobObjects, SeenEvent, SeenPod, seconds, uid_of
from muster.core.advice import usual
from muster.core.errors import CannotSchedule
from muster.core.job import JobSpec
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict, first_of

_EXIT_CODE = re.compile(r"for pod (\S+) failed with exit code (\d+)")
_DISRUPTED = re.compile(r"Pod (\S+) has condition (?:DisruptionTarget|TerminatedByKueue)")


def verdict(
    seen: JobObjects,
    job: JobSpec,
    *,
    now: float,
    started: float | None = None,
    restarts: int = 0,
    cluster: Cluster | None = None,
) -> Verdict | None:
    """Return why a job ended without success, or cannot go on; None while it may succeed.

    What the cluster starts again by itself has no verdict, unless it would only happen again. Pods of
    earlier starts count there, so it is worth keeping those that ended badly though they are deleted.

    :param now: and `started`, when all of the gang first ran: seconds since the epoch.
    :param restarts: as the ledger counts them: also those in the same pods, which the cluster does not see.
    :param cluster: what the cluster has, to see that no node will ever do.
    """
    if seen.root is None or completed(seen.root):
        return None
    if failed(seen.root):
        return _again(_failed(seen, job), restarts=max(restarts, seen.restarts))
    found = _hopeless(seen, job) or stuck(seen, job, now=now, cluster=cluster)
    if found is None and started is None and not seen.restarts:  # a node that it had may be replaced
        found = _no_node(seen, job, now=now, cluster=cluster)
    return found


def overdue(
    job: JobSpec,
    *,
    state: JobState,
    submitted: float,
    started: float | None,
    now: float,
    workload: Mapping[str, Any] | None = None,
) -> Verdict | None:
    """Return the verdict on a job that waits or runs longer than it may.

    Where a queue put it back, its wait begins anew, and does not count as running.

    :param submitted: and `started`, when all of the gang first ran: seconds since the epoch.
    :param workload: what it is to Kueue; None where no queue holds it, and then all from its start counts.
    """
    back = _put_back(workload)
    if state is JobState.QUEUED and (started is None or back is not None):
        if now - (back or submitted) <= job.queue_timeout_seconds:
            return None
        return Verdict(
            cause=Cause.QUEUE_TIMEOUT,
            message=f"it waited longer than its queue_timeout of {job.queue_timeout_seconds:g} s",
            advice="raise the timeout or its priority; there may be room at another time",
        )
    running = state in (JobState.QUEUED, JobState.PREPARING, JobState.RUNNING)
    if running and started is not None and _ran(workload, started, now) > job.run_timeout_seconds:
        return usual(
            Cause.RUN_TIMEOUT, f"it ran longer than its run_timeout of {job.run_timeout_seconds:g} s"
        )
    return None


def _put_back(workload: Mapping[str, Any] | None) -> float | None:
    """When Kueue took back what it had given a job, which waits again."""
    if workload is None or _ran_before(workload) is None or holds(workload, "Admitted"):
        return None
    return seconds(condition(workload, "Admitted").get("lastTransitionTime"))


def _ran(workload: Mapping[str, Any] | None, started: float, now: float) -> float:
    before = None if workload is None else _ran_before(workload)
    if workload is None or before is None:
        return now - started
    since = seconds(condition(workload, "Admitted").get("lastTransitionTime")) or now
    return min(now - started, before + now - since)


def _ran_before(workload: Mapping[str, Any]) -> float | None:
    """How long Kueue let a job run before it put it back, in seconds; None where it never did."""
    found = (workload.get("status") or {}).get("accumulatedPastExecutionTimeSeconds")
    return None if found is None else float(found)


def vanished(job_id: str, *, age_seconds: float) -> Verdict:
    """Return the verdict on a job whose objects went before its end was recorded. :param age_seconds: since its submission."""
    why = (
        f"{job_id} was deleted on the cluster, by hand or by another program, while it had not ended"
        if age_seconds < KEPT_SECONDS
        else f"{job_id} was deleted on the cluster, by hand or a day after its end, which was not seen"
    )
    return Verdict(
        cause=Cause.BACKEND_ERROR,
        message=why,
        advice="its log says how far it came; use `muster jobs cancel` to end a job; this one can be run again",
    )


def _failed(seen: JobObjects, job: JobSpec) -> Verdict:
    deadline = next((each for each in _failures(seen) if each.get("reason") == "DeadlineExceeded"), None)
    if deadline is not None:
        return usual(Cause.RUN_TIMEOUT, f"it ran longer than it may: {deadline.get('message')}")
    found = first_fault([each for pod in seen.replicas() if (each := fault(pod, job)) is not None])
    return found or _told(seen)


def _hopeless(seen: JobObjects, job: JobSpec) -> Verdict | None:
    faults = [fault(pod, job) for pod in seen.read_pods]
    return first_fault([each for each in faults if each is not None and each.hopeless])


def first_fault(faults: Sequence[PodFault]) -> Verdict | None:
    """Return what went wrong first; memory that outgrew its limit explains all else."""
    in_order = sorted(faults, key=lambda each: (each.follows, each.at))
    memory = [each for each in in_order if each.verdict.cause is Cause.OUT_OF_MEMORY]
    return first_of([each.verdict for each in memory or in_order])


def _failures(seen: JobObjects) -> list[Mapping[str, Any]]:
    """The conditions that say why the job's Jobs have failed, the first to fail first, then its root's."""
    jobs = [condition(each, "Failed") for each in seen.jobs if holds(each, "Failed")]
    jobs.sort(key=lambda each: str(each.get("lastTransitionTime")))
    return [*jobs, *([failure(seen.root)] if seen.root else [])]


def _told(seen: JobObjects) -> Verdict:
    """Judge by what the controllers wrote down, where no pod is left to ask."""
    said = [str(each.get("message") or "") for each in _failures(seen)]
    for message in said:
        ended = _EXIT_CODE.search(message)
        if ended:
            cause = POD_CAUSES.get(int(ended[2]), Cause.BACKEND_ERROR)
            words = f"pod {ended[1]} ended with exit code {ended[2]}"
            return Verdict(cause=cause, message=words, advice=pod_advice(cause))
        gone = _DISRUPTED.search(message)
        if gone:
            return usual(Cause.EVICTED, f"the cluster took pod {gone[1]} away")
    return Verdict(
        cause=Cause.BACKEND_ERROR,
        message=f"it failed and none of its pods is left: {said[0] if said else 'no reason is given'}",
        advice="see its last lines in the log, then run it again",
    )


def _again(found: Verdict, *, restarts: int) -> Verdict:
    """Say how often it was started again, where that is what failed to help."""
    if not restarts or not found.cause.restarts_gang:
        return found
    times = "once" if restarts == 1 else f"{restarts} times"
    return replace(found, message=f"{found.message} (it was started again {times})")


def _no_node(seen: JobObjects, job: JobSpec, *, now: float, cluster: Cluster | None) -> Verdict | None:
    """See whether pods that no node has taken can ever be taken by the nodes there are."""
    waiting = [pod for pod in seen.replicas() if not pod.node and pod.unplaced and not pod.gated]
    if cluster is None or cluster.nodes is None or seen.root is None or not waiting:
        return None
    if now - min(pod.created for pod in waiting) <= SETTLE_SECONDS:
        return None
    try:
        check_nodes(cluster.nodes, pod_sets(seen.root, job))
    except CannotSchedule as error:
        return Verdict(
            cause=Cause.UNSCHEDULABLE,
            message=str(error),
            advice="ask for less, or for larger nodes; `muster gpus` shows what there is",
        )
    return None


# k8s.io/apiserver, plugin/resourcequota: what one pod asks for, what is in use, what there is in all.
_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: \S+, limited: (\S+)")


def never_within(said: str, *, pods: int) -> str:
    """Say why the whole quota is too small for this number of pods; empty where it suffices."""
    match = _EXCEEDED.search(said)
    if match is None:
        return ""
    requested, limited = times(_listed(match[2]), pods), _listed(match[3])
    over = [name for name in sorted(requested) if not fits({name: requested[name]}, limited)]
    if not over:
        return ""
    wanted = ", ".join(_shown(name, requested[name]) for name in over)
    allowed = ", ".join(_shown(name, limited.get(name, 0.0)) for name in over)
    return f"its {pods} pods ask for {wanted}, and ResourceQuota {match[1]} allows {allowed}"


def _listed(text: str) -> dict[str, float]:
    """Read ``limits.cpu=2,requests.memory=4Gi``."""
    parts = (part.partition("=") for part in text.split(","))
    return {name: quantity(amount) for name, _, amount in parts}


def _shown(name: str, amount: float) -> str:
    """An amount for people; a quota may say whether it is of the requests or of the limits."""
    kind, dot, resource = name.partition(".")
    return (
        f"{shown(resource, amount)} ({kind})"
        if dot and kind in ("requests", "limits")
        else shown(name, amount)
    )


# Grace for an object that may still be being created: a queue, a Secret, a PodGroup.
SETTLE_SECONDS = 30.0
# A registry that is away may be back; a node that cannot mount may be mended, and tells of it until then.
_IMAGE_SECONDS, _MOUNT_SECONDS, _NEWS_SECONDS = 180.0, 300.0, 180.0

_UNPLACED = "does not support TopologyAwareScheduling"
_QUOTA_NEVER = ("maximum capacity", "unavailable in ClusterQueue", _UNPLACED)
_QUOTA_LATER = ("insufficient unused quota", "topology", "preempt")
_FLAVOR = re.compile(r"\b[Ff]lavor \"?([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)")
_NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue) \S+ doesn't exist")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_REFUSED_PULL = re.compile(
    r"not found|manifest unknown|unauthorized|denied|authentication required|no such image", re.IGNORECASE
)
_MISSING = re.compile(r"secret|configmap|runAsNonRoot|non-root|couldn't find key", re.IGNORECASE)
_SYNC = re.compile(r"failed to sync \w+ cache", re.IGNORECASE)  # the kubelet's own, of a Secret that is there


def stuck(seen: JobObjects, job: JobSpec, *, now: float, cluster: Cluster | None = None) -> Verdict | None:
    """Return why a job that has not ended can never go on; None where it may.

    :param now: seconds since the epoch, by a clock like the API server's.
    :param cluster: what the cluster has, to see whether Kueue tells of every flavor that would do: where that
        cannot be known, one that it does not tell of may.
    """
    found = _workload(seen.workload, now, cluster) if seen.workload is not None else None
    events = tuple(map(SeenEvent.of, seen.events))
    found = found or _events(seen, job, events, now)
    if found is not None:
        return found
    for pod in seen.replicas():
        found = _pod(pod, events, now) or _group(seen, pod, now)
        if found is not None:
            return found
    return None


def _workload(workload: Mapping[str, Any], now: float, cluster: Cluster | None) -> Verdict | None:
    evicted = condition(workload, "Evicted")
    if evicted.get("status") == "True" and str(evicted.get("reason", "")).startswith("Deactivated"):
        return _deactivated(str(evicted.get("message") or ""))
    reserved = condition(workload, "QuotaReserved")
    if reserved.get("status") != "False":
        return None
    said, queue = str(reserved.get("message") or ""), workload["spec"].get("queueName")
    if _NO_QUEUE.search(said) and _since(reserved, now) > SETTLE_SECONDS:
        return Verdict(
            cause=Cause.SPEC_ERROR,
            message=f"it waits in queue {queue}, and {said}",
            advice="make the queue, or name another",
        )
    known = cluster.queues.get(str(queue)) if cluster is not None else None
    groups = known.groups if known is not None else ()
    flavors = cluster.flavors if cluster is not None else None
    if any(_never(each, groups) for each in said.split("; couldn't assign")):
        return Verdict(
            cause=Cause.UNSCHEDULABLE,
            message=f"queue {queue} can never hold it: {plain_reason(said, usable=usable(workload, flavors))}",
            advice="have a Topology named in that flavor (topologyName)"
            if _UNPLACED in said
            else "ask for less, or for more quota; `muster gpus` shows what there is",
        )
    return None


def _never(said: str, groups: Sequence[Sequence[str]]) -> bool:
    """Whether Kueue's reason for one role names no flavor that may become free.

    It goes on with the flavor after the one that it tried last, and tells only of those that it then tries:
    where some of a resource group's flavors are not named, or are not known at all, they may do.

    :param groups: the queue's flavors by resource group; none where they are not known.
    """
    tried = {*_FLAVOR.findall(said)}
    if tried and not any(tried.issuperset(group) for group in groups):
        return False
    return any(text in said for text in _QUOTA_NEVER) and not any(text in said for text in _QUOTA_LATER)


def _deactivated(said: str) -> Verdict:
    if "maximum execution time" in said:
        return usual(Cause.RUN_TIMEOUT, "it ran longer than its run_timeout, counted by Kueue")
    if "queuing retries" in said:
        return Verdict(
            cause=Cause.QUEUE_TIMEOUT,
            message=f"Kueue gave up on it: {said}",
            advice="see why its pods did not start; there may be room at another time",
        )
    return Verdict(
        cause=Cause.CANCELLED,
        message=f"an administrator took it out of the queue: {said}",
        advice="ask who did and why, then run it again",
    )


def _events(seen: JobObjects, job: JobSpec, events: Sequence[SeenEvent], now: float) -> Verdict | None:
    pods = {pod.name: pod for pod in seen.read_pods}
    owners = {pod.owner for pod in pods.values()}
    for event in events:
        if event.about not in owners and _is_not_admitted(event, now):
            return Verdict(
                cause=Cause.SPEC_ERROR,
                message=f"the cluster admits none of its pods: {event.said}",
                advice="ask for less, or have the namespace's rules changed",
            )
        if over := _never_within_quota(seen, event):
            return Verdict(
                cause=Cause.UNSCHEDULABLE,
                message=f"its namespace can never hold it: {over}",
                advice="ask for less, or have the namespace's quota raised",
            )
        if event.reason == "Evicted" and event.kind == "Pod":
            found = _overfull(event, pods.get(event.name), job)
            if found is not None:
                return found
    return _not_mounted(seen, events, now)


def _overfull(event: SeenEvent, pod: SeenPod | None, job: JobSpec) -> Verdict | None:
    if pod is None:  # it has been deleted meanwhile
        return overfull(f"pod {event.name}", event.said)
    return overfull(f"replica {pod.replica}", event.said, rank=pod.first_rank(job))


def _is_not_admitted(event: SeenEvent, now: float) -> bool:
    """Whether a Job may not make its pods; what it lacks may be made a moment after it."""
    refused = event.reason == "FailedCreate" and "is forbidden" in event.said
    return refused and "exceeded quota" not in event.said and now - event.first > SETTLE_SECONDS


def _never_within_quota(seen: JobObjects, event: SeenEvent) -> str:
    """Say why a Job's pods will never all be there: a gang holds what it has, and waits for the rest."""
    makers = (*seen.jobs, *([seen.root] if seen.root else []))
    maker = next((each for each in makers if uid_of(each) == event.about), None)
    if event.reason != "FailedCreate" or maker is None:
        return ""
    return never_within(event.said, pods=int(maker["spec"].get("parallelism") or 1))


def _not_mounted(seen: JobObjects, events: Sequence[SeenEvent], now: float) -> Verdict | None:
    """Find a pod whose volumes its node has failed to mount for long, and still fails: once means nothing."""
    waiting = {pod.name: pod for pod in seen.replicas() if pod.node and not _is_set_up(pod)}
    for event in events:
        pod = waiting.get(event.name)
        if pod is None or event.reason not in ("FailedMount", "FailedAttachVolume"):
            continue
        if now - (pod.placed_at or now) > _MOUNT_SECONDS and now - event.last <= _NEWS_SECONDS:
            return Verdict(
                cause=Cause.BACKEND_ERROR,
                message=f"replica {pod.replica}: node {pod.node} cannot mount its volumes: {event.said}",
                advice="see that the claim, its storage and the job's Secret are there",
            )
    return None


def _is_set_up(pod: SeenPod) -> bool:
    """Whether a pod's volumes were mounted, or are no more of interest."""
    begun = pod.set_up or any(each.started_at is not None for each in pod.containers)
    return begun or pod.deleting or pod.phase != "Pending"


def _pod(pod: SeenPod, events: Sequence[SeenEvent], now: float) -> Verdict | None:
    if pod.deleting or not pod.node:
        return None
    since = pod.placed_at or now
    for container in pod.containers:
        found = _image(pod, container, now, patience=_until_pulled(pod, events))
        found = found or _config(pod, container, now - since)
        if found is not None:
            return found
        since = container.ended_at or since
    return None


def _until_pulled(pod: SeenPod, events: Sequence[SeenEvent]) -> float:
    """How long after its placing a pod may want for an image: the second try gets as long as the first took."""
    placed = pod.placed_at or 0.0
    failures = [
        each.first
        for each in events
        if each.name == pod.name and each.said.startswith("Failed to pull image")
    ]
    return 2 * max(min(failures, default=placed) - placed, 0.0) + _IMAGE_SECONDS


def _image(pod: SeenPod, container: Container, now: float, *, patience: float) -> Verdict | None:
    reason, said = container.waiting, container.waiting_message
    if reason == "InvalidImageName":
        return Verdict(
            cause=Cause.SPEC_ERROR,
            message=f"image {container.image!r} is no image's name: {said}",
            advice="mend image_prefix or images of the cluster's settings",
        )
    refused = reason == "ErrImageNeverPull" or (reason == "ImagePullBackOff" and _REFUSED_PULL.search(said))
    if refused or (reason in _PULLING and now - (pod.placed_at or now) > patience):
        return Verdict(
            cause=Cause.IMAGE_UNAVAILABLE,
            message=f"node {pod.node} cannot get image {container.image}: {said or reason}",
            advice="push the image there, or give the namespace a pull secret; then run it again",
        )
    return None


def _config(pod: SeenPod, container: Container, waited: float) -> Verdict | None:
    """Judge a container that cannot be made. :param waited: since those before it ended, in seconds."""
    reason, said = container.waiting, container.waiting_message
    unknown = _SYNC.search(said)
    patience = _MOUNT_SECONDS if unknown else SETTLE_SECONDS
    if reason not in ("CreateContainerConfigError", "CreateContainerError") or waited <= patience:
        return None
    ours = unknown or not _MISSING.search(said)
    return Verdict(
        cause=Cause.BACKEND_ERROR if ours else Cause.SPEC_ERROR,
        message=f"replica {pod.replica} cannot be made: {said}",
        advice=SEE_POD if ours else "make what is missing in the namespace, or name another",
    )


def _group(seen: JobObjects, pod: SeenPod, now: float) -> Verdict | None:
    """Look for the PodGroup ourselves: its pods wait for it with no condition and no event at all."""
    if not pod.group or seen.pod_group is not None or pod.node or now - pod.created <= SETTLE_SECONDS:
        return None
    return Verdict(
        cause=Cause.BACKEND_ERROR,
        message=f"PodGroup {pod.group} is missing, so the scheduler starts none of the gang's pods",
        advice="find out who deleted it, then run it again",
    )


def _since(found: Mapping[str, Any], now: float) -> float:
    return now - (seconds(found.get("lastTransitionTime")) or now)
