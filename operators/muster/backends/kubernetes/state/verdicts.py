"""Why a job on a cluster ended, or never will go on: pure, from its objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.backends.kubernetes.cluster.facts import Cluster, condition, holds
from muster.backends.kubernetes.cluster.feasibility import check_nodes, pod_sets
from muster.backends.kubernetes.manifests.gangs import KEPT_SECONDS
from muster.backends.kubernetes.state.faults import POD_CAUSES, PodFault, fault, pod_advice
from muster.backends.kubernetes.state.observe import completed, failed, failure
from muster.backends.kubernetes.state.seen import JobObjects, seconds
from muster.backends.kubernetes.state.stuck import SETTLE_SECONDS, stuck
from muster.core.advice import advice_on
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
        return Verdict(
            cause=Cause.RUN_TIMEOUT,
            message=f"it ran longer than its run_timeout of {job.run_timeout_seconds:g} s",
            advice=advice_on(Cause.RUN_TIMEOUT),
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
        return Verdict(
            cause=Cause.RUN_TIMEOUT,
            message=f"it ran longer than it may: {deadline.get('message')}",
            advice=advice_on(Cause.RUN_TIMEOUT),
        )
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
            words = f"the cluster took pod {gone[1]} away"
            return Verdict(cause=Cause.EVICTED, message=words, advice=advice_on(Cause.EVICTED))
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
