"""When a gang held its resources, from the cluster's objects: pure.

Kueue's admission tells it: quota is held from Admitted on, until the workload is evicted or has finished. Of a gang that Kueue
does not see, it is the time since its pods have nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.backends.kubernetes.cluster.facts import condition, holds
from muster.backends.kubernetes.state.seen import JobObjects, seconds, uid_of
from muster.core.job import JobSpec
from muster.core.tally import Allotment, Tally

_SAME_SECONDS = 1.0  # the API's times are whole seconds


def tallied(before: Tally, seen: JobObjects, job: JobSpec) -> Tally:
    """Return a job's tally with what is seen now.

    :param job: with the replicas that it has now.
    """
    workload, last = seen.workload, before.times[-1] if before.times else None
    if workload is not None and not _is_of(workload, seen.root):
        return before  # of the size that an elastic gang had
    since, until = _admission(workload) if workload is not None else (_placed(seen), None)
    if since is not None:
        again = workload is not None and last is not None and since > last.since + _SAME_SECONDS
        if last is None or again or last.replicas != job.replicas:
            over = None if last is None else _given_back(workload, after=last.since, before=since)
            gpus = sum(role.replicas * role.resources.gpus for role in job.roles)
            held = Allotment(since=since, replicas=job.replicas, gpus=gpus)
            before = (before if over is None else before.ended(over)).begun(held)
    return before if until is None else before.ended(until)


def _admission(workload: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return since when a workload has its quota, and until when it had it."""
    admitted = condition(workload, "Admitted")
    at = seconds(admitted.get("lastTransitionTime"))
    if admitted.get("status") != "True":
        return None, at
    finished = condition(workload, "Finished") if holds(workload, "Finished") else {}
    return at, seconds(finished.get("lastTransitionTime"))


def _placed(seen: JobObjects) -> float | None:
    """Return when the first pod had a node, once all of them have one."""
    placed = [pod.placed_at for pod in seen.replicas()]
    known = [at for at in placed if at is not None]
    return min(known) if known and len(known) == len(placed) else None


def _given_back(workload: Mapping[str, Any] | None, *, after: float, before: float) -> float | None:
    """Return when a gang gave its quota back between two admissions, as far as the workload still tells."""
    if workload is None:
        return None
    status = workload.get("status") or {}
    times = [seconds(each.get("lastTransitionTime")) for each in status.get("conditions") or ()]
    times.append(seconds(workload["metadata"].get("creationTimestamp")))
    return min((at for at in times if at is not None and after < at < before), default=None)


def _is_of(workload: Mapping[str, Any], root: Mapping[str, Any] | None) -> bool:
    owners = {str(each["uid"]) for each in workload["metadata"].get("ownerReferences") or ()}
    return root is not None and (not owners or uid_of(root) in owners)
