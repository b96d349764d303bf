"""What will never get further by itself, seen before a timeout ends it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from muster.backends.kubernetes.facts import Cluster, condition
from muster.backends.kubernetes.faults import ADVICE, overfull
from muster.backends.kubernetes.observe import plain_reason
from muster.backends.kubernetes.seen import Container, Seen, SeenPod, seconds
from muster.core.verdict import Cause, Verdict

# What somebody is just making gets so long: a queue, a Secret, a PodGroup.
SETTLE_SECONDS = 30.0
# A registry that is away may be back; a node that cannot mount may be mended.
IMAGE_SECONDS, MOUNT_SECONDS = 180.0, 300.0

_QUOTA_NEVER = ("maximum capacity", "unavailable in ClusterQueue")
_QUOTA_LATER = ("insufficient unused quota", "topology", "preempt")
_FLAVOR = re.compile(r"\bflavor ([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)")
_NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue) \S+ doesn't exist")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_REFUSED_PULL = re.compile(
    r"not found|manifest unknown|unauthorized|denied|authentication required|no such image", re.IGNORECASE
)
_MISSING = re.compile(r"secret|configmap|runAsNonRoot|non-root|couldn't find key", re.IGNORECASE)


def stuck(seen: Seen, *, now: float, cluster: Cluster | None = None) -> Verdict | None:
    """Return why a job that has not ended can never go on; None where it may.

    :param now: seconds since the epoch, by a clock like the API server's.
    :param cluster: what the cluster has, to see whether Kueue tells of every flavor.
    """
    found = _workload(seen.workload, now, cluster) if seen.workload is not None else None
    found = found or _events(seen, now)
    if found is not None:
        return found
    for pod in seen.replicas():
        found = _pod(pod, now) or _group(seen, pod, now)
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
    flavors = frozenset(known.limits or ()) if known is not None else frozenset()
    if any(_never(each, flavors) for each in said.split("; couldn't assign")):
        return Verdict(
            cause=Cause.UNSCHEDULABLE,
            message=f"queue {queue} can never hold it: {plain_reason(said)}",
            advice="ask for less, or for more quota; `muster gpus` shows what there is",
        )
    return None


def _never(said: str, flavors: frozenset[str]) -> bool:
    """Whether Kueue's reason for one role names no flavor that may become free.

    It goes on with the flavor after the one that it tried last, and tells only of those that it then tries:
    where some of `flavors` are not named, they may do.
    """
    tried = _FLAVOR.findall(said)
    if tried and not flavors <= set(tried):
        return False
    return any(text in said for text in _QUOTA_NEVER) and not any(text in said for text in _QUOTA_LATER)


def _deactivated(said: str) -> Verdict:
    if "maximum execution time" in said:
        return Verdict(
            cause=Cause.RUN_TIMEOUT,
            message="it ran longer than its run_timeout_seconds, counted by Kueue",
            advice="raise the timeout, or find what takes so long in its log",
        )
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


def _events(seen: Seen, now: float) -> Verdict | None:
    pods = {pod.name: f"replica {pod.replica}" for pod in map(SeenPod.of, seen.pods)}
    for event in seen.events:
        about, said = event.get("involvedObject") or {}, str(event.get("message") or "")
        if event.get("reason") == "FailedCreate" and "is forbidden" in said and "exceeded quota" not in said:
            return Verdict(
                cause=Cause.SPEC_ERROR,
                message=f"the cluster admits none of its pods: {said}",
                advice="ask for less, or have the namespace's rules changed",
            )
        if event.get("reason") == "Evicted" and about.get("kind") == "Pod":
            found = overfull(pods.get(about["name"], f"pod {about['name']}"), said)
            if found is not None:
                return found
    return _not_mounted(seen, now)


def _not_mounted(seen: Seen, now: float) -> Verdict | None:
    waiting = {pod.name: pod for pod in seen.replicas() if pod.node and not pod.runs and not pod.sealed}
    for event in seen.events:
        pod = waiting.get((event.get("involvedObject") or {}).get("name", ""))
        if pod is None or event.get("reason") not in ("FailedMount", "FailedAttachVolume"):
            continue
        if pod.phase == "Pending" and now - (pod.placed_at or now) > MOUNT_SECONDS:
            return Verdict(
                cause=Cause.BACKEND_ERROR,
                message=f"replica {pod.replica}: node {pod.node} cannot mount its volumes: {event.get('message')}",
                advice="see that the claim, its storage and the job's Secret are there",
            )
    return None


def _pod(pod: SeenPod, now: float) -> Verdict | None:
    if pod.deleting or not pod.node:
        return None
    waited = now - (pod.placed_at or now)
    for container in pod.containers:
        found = _image(pod, container, waited) or _config(pod, container, waited)
        if found is not None:
            return found
    return None


def _image(pod: SeenPod, container: Container, waited: float) -> Verdict | None:
    reason, said = container.waiting, container.waiting_message
    if reason == "InvalidImageName":
        return Verdict(
            cause=Cause.SPEC_ERROR,
            message=f"image {container.image!r} is no image's name: {said}",
            advice="mend image_prefix or images of the cluster's settings",
        )
    refused = reason == "ErrImageNeverPull" or (reason == "ImagePullBackOff" and _REFUSED_PULL.search(said))
    if refused or (reason in _PULLING and waited > IMAGE_SECONDS):
        return Verdict(
            cause=Cause.IMAGE_UNAVAILABLE,
            message=f"node {pod.node} cannot get image {container.image}: {said or reason}",
            advice="push the image there, or give the namespace a pull secret; then run it again",
        )
    return None


def _config(pod: SeenPod, container: Container, waited: float) -> Verdict | None:
    reason, said = container.waiting, container.waiting_message
    if reason not in ("CreateContainerConfigError", "CreateContainerError") or waited <= SETTLE_SECONDS:
        return None
    ours = not _MISSING.search(said)
    return Verdict(
        cause=Cause.BACKEND_ERROR if ours else Cause.SPEC_ERROR,
        message=f"replica {pod.replica} cannot be made: {said}",
        advice=ADVICE[Cause.BACKEND_ERROR]
        if ours
        else "make what is missing in the namespace, or name another",
    )


def _group(seen: Seen, pod: SeenPod, now: float) -> Verdict | None:
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
