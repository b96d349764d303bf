"""The status of a revision, from its objects: whether it answers, what it waits for, why it failed. Pure.

``Ready=True`` of an InferenceService is not enough: after an edit it is about the previous pod, and it is true of a
server that listens without a model. Seldon's condition is no better. So all of these count together: the condition, the
Deployment's numbers about its latest generation, the endpoints, and the restarts of containers. Whether the model
answers correctly is what smoke requests test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.cluster.facts import condition, holds
from muster.backends.kubernetes.serving.kinds import ServingPlatform
from muster.backends.releases.book import BookEntry
from muster.core.deployment import Revision, RevisionState
from muster.core.text import one_line

_STUCK = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container cannot be made",
    "CreateContainerError": "its container cannot be made",
}


@dataclass(frozen=True, kw_only=True)
class RevisionObjects:
    """The objects of one revision.

    :param service: what its platform made it of, an InferenceService; None where there is none.
    :param workload: the Deployment that the platform made for that.
    :param slices: the EndpointSlices of its Service.
    """

    service: Document | None = None
    workload: Document | None = None
    slices: Sequence[Document] = ()
    pods: Sequence[Document] = ()

    @property
    def present(self) -> list[Document]:
        """The pods that are not on their way out."""
        return [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]


def revision_status(
    live: BookEntry,
    objects: RevisionObjects,
    *,
    platform: ServingPlatform,
    percent: int | None,
    since: float,
    now: float,
    taken_back: bool = False,
) -> Revision:
    """Return the status of a revision.

    :param percent: its share of the traffic; 0 where it is kept for a rollback, None where the route does
        not name it.
    :param since: when it got that share.
    :param taken_back: it is, so it is judged no more, and had traffic perhaps.
    """
    wanted = live.spec.replicas
    endpoints = len(_endpoints(objects.slices))
    # One that serves is not doubted while its Deployment is scaled, or a pod of it is replaced.
    ready = min(_available(objects, platform), endpoints) if percent is None else endpoints
    restarts = sum(_restarts(pod) for pod in objects.present)
    reason = "" if ready >= wanted else _waits_for(objects, platform)
    state = RevisionState.SERVING if percent else RevisionState.READY
    judged = percent is None and not taken_back
    fault = _fault(live, objects, restarts=restarts, ready=ready, now=now) if judged else ""
    if fault:
        state = RevisionState.FAILED
        reason = one_line(f"{fault}: {reason or _last_end(objects)}".rstrip(": "))
    elif not percent and ready < wanted:
        state = RevisionState.STARTING
    return Revision(
        name=live.name,
        model=live.spec.model,
        state=state,
        percent=percent or 0,
        kept=percent == 0,
        ready=ready,
        wanted=wanted,
        restarts=restarts,
        since=since if percent else live.since,
        reason=reason or (_last_end(objects) if restarts else ""),
    )


def _fault(live: BookEntry, objects: RevisionObjects, *, restarts: int, ready: int, now: float) -> str:
    """Why a revision that never had traffic will not do: it ends by itself, or takes too long."""
    if restarts:
        return f"it ended {restarts} time{'s' if restarts > 1 else ''} before it had any traffic"
    began = max([live.since, *map(_made, objects.present)])  # one that was moved has its time again
    if ready < live.spec.replicas and now > began + live.spec.load_timeout_seconds:
        return (
            f"{ready} of {live.spec.replicas} replicas are ready after {live.spec.load_timeout_seconds:g} s"
        )
    return ""


def _made(pod: Document) -> float:
    """When a pod was made, in seconds since the epoch; 0 where it does not say."""
    text = pod["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _available(objects: RevisionObjects, platform: ServingPlatform) -> int:
    """How many replicas platform and Deployment hold for available; none while either is behind."""
    if objects.service is None or objects.workload is None or not holds(objects.service, platform.condition):
        return 0
    workload, status = objects.workload, objects.workload.get("status") or {}
    if workload["metadata"].get("generation") != status.get("observedGeneration"):
        return 0
    settled = {
        workload["spec"].get("replicas"),
        *(status.get(key, 0) for key in ("replicas", "updatedReplicas")),
    }
    return int(status.get("availableReplicas", 0)) if len(settled) == 1 else 0


def _endpoints(slices: Sequence[Document]) -> set[str]:
    return {
        str((endpoint.get("targetRef") or {}).get("name") or endpoint["addresses"][0])
        for each in slices
        for endpoint in each.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") is not False  # what is not said counts as so
    }


def _restarts(pod: Document) -> int:
    return sum(int(each.get("restartCount", 0)) for each in _containers(pod))


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _waits_for(objects: RevisionObjects, platform: ServingPlatform) -> str:
    """What keeps a revision from being ready, as the lowest object tells it."""
    if objects.service is None:
        return f"its {platform.kind.name} is not there: it is about to be made, or was deleted"
    if objects.workload is None:
        nothing = f"{platform.title} has made nothing of it yet: is its controller running?"
        return one_line(_said(objects.service, platform) or nothing)
    failed = condition(objects.workload, "ReplicaFailure")
    if failed.get("status") == "True":
        return one_line(f"its pods cannot be made: {failed.get('message')}")
    for pod in objects.present:
        if why := _pod_waits_for(pod):
            return f"{pod['metadata']['name']}: {why}"
    return "its replicas start"


def _said(service: Document, platform: ServingPlatform) -> str:
    """What a platform says of an object of which it has made nothing."""
    said = (condition(service, kind).get("message") for kind in (platform.condition, "Ready"))
    description = (service.get("status") or {}).get("description")  # Seldon's, where it gave up
    return next((str(each) for each in (*said, description) if each), "")


def _pod_waits_for(pod: Document) -> str:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return one_line(f"no node for it: {scheduled.get('message')}")
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _STUCK:
            return one_line(f"{_STUCK[reason]}: {waiting.get('message') or reason}")
        if not each.get("ready") and (end := _ended(each)):
            return end
    return ""


def _last_end(objects: RevisionObjects) -> str:
    for pod in objects.present:
        for each in _containers(pod):
            if end := _ended(each):
                return f"{pod['metadata']['name']}: {end}"
    return ""


def _ended(container: Mapping[str, Any]) -> str:
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated")
        if ended:
            if ended.get("reason") == "OOMKilled":
                return "it needed more memory than it is given"
            said = str(ended.get("message") or "").strip().rpartition("\n")[2]
            return one_line(
                f"it ended with exit code {ended.get('exitCode')}" + (f": {said}" if said else "")
            )
    return ""
