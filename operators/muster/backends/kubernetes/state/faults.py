"""What went wrong in one pod: the cluster's doing, the machine's, or what its worker says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from muster.backends.kubernetes.labels import MAIN
from muster.backends.kubernetes.state.seen import Container, SeenPod
from muster.core.advice import advice_on
from muster.core.errors import SpecError
from muster.core.job import JobSpec
from muster.core.replica import Report
from muster.core.verdict import CAUSES, Cause, ExitCode, Verdict
from muster.core.wire import loads

POD_CAUSES = {**CAUSES, ExitCode.STOPPED: Cause.RANK_LOST}

SEE_POD = "see its last lines in the log, and `kubectl describe pod` for what the node says"

# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": (Cause.EVICTED, "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": (Cause.EVICTED, "was evicted: its node is being drained"),
    "TerminationByKubelet": (
        Cause.EVICTED,
        "was ended by its node, which ran short of something or shut down",
    ),
    "DeletionByTaintManager": (Cause.NODE_LOST, "was given up: its node no longer answers, or is not for it"),
    "DeletionByPodGC": (Cause.NODE_LOST, "was given up: its node is gone"),
    "NodeLost": (Cause.NODE_LOST, "was given up"),  # by muster's reaper, who says why
    "UnschedulableOnAssignedNode": (
        Cause.NODE_LOST,
        "was given up by Kueue: the node that it had chosen takes no pods",
    ),
}
# Why a kubelet ends or refuses a pod by itself (pod.status.reason).
_KUBELET = {
    "Evicted": (Cause.EVICTED, "was evicted"),
    "NodeLost": (Cause.NODE_LOST, "was lost with its node"),
    "Terminated": (Cause.NODE_LOST, "was ended: its node shut down"),
    "NodeShutdown": (Cause.NODE_LOST, "was refused: its node shuts down"),
    "NodeAffinity": (Cause.EVICTED, "was refused by its node, whose labels have changed"),
}
_OVERFULL = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
_NO_PROGRAM = re.compile(r'exec: "?([^":]+)"?: (?:executable file not found|stat |.*no such file)')
_KILLED = {137: "was killed by signal 9", 143: "was killed by signal 15"}
_LAST_LINE = re.compile(r"[^\n]*\S[^\n]*\s*\Z")


@dataclass(frozen=True, kw_only=True)
class PodFault:
    """What went wrong in one pod, and when (seconds since the epoch).

    :param follows: it was told to stop, or lost its peers: another pod's fault came first.
    :param hopeless: the same would happen again, and the cluster does not know: it starts the gang again.
    """

    at: float
    verdict: Verdict
    follows: bool = False
    hopeless: bool = False


def pod_advice(cause: Cause) -> str:
    """What to do about a cause that a pod's end shows."""
    return SEE_POD if cause is Cause.BACKEND_ERROR else advice_on(cause)


def fault(pod: SeenPod, job: JobSpec) -> PodFault | None:
    """Return what went wrong in a pod; None where nothing did, or nothing can be told yet."""
    for look in (_out_of_memory, _overfull, _disrupted, _kubelet, _ended):
        found = look(pod, job)
        if found is not None:
            return found
    return None


def _fault(
    pod: SeenPod, job: JobSpec, cause: Cause, message: str, *, advice: str = "", hopeless: bool = False
) -> PodFault:
    ended = [each.ended_at for each in pod.containers if each.ended_at is not None]
    verdict = Verdict(
        cause=cause,
        rank=pod.first_rank(job),
        message=message,
        advice=advice or pod_advice(cause),
    )
    return PodFault(at=max(ended, default=pod.created), verdict=verdict, hopeless=hopeless)


def _out_of_memory(pod: SeenPod, job: JobSpec) -> PodFault | None:
    """Memory that outgrew its limit explains all else that the pod may say."""
    killed = next((each for each in pod.containers if each.ended == "OOMKilled"), None)
    if killed is None:
        return None
    if killed.name != MAIN:
        message = (
            f"container {killed.name} of replica {pod.replica} outgrew its memory limit on node {pod.node}"
        )
        advice = "have less travel with the job: .musterignore keeps files out of its code"
        return _fault(pod, job, Cause.BACKEND_ERROR, message, advice=advice, hopeless=True)
    role = next((role for role in job.roles if role.name == pod.role), None)
    limit = f" of {role.resources.memory_gib:g} GiB" if role else ""
    message = f"replica {pod.replica} outgrew its memory limit{limit} on node {pod.node}"
    return _fault(pod, job, Cause.OUT_OF_MEMORY, message, hopeless=True)


def _overfull(pod: SeenPod, job: JobSpec) -> PodFault | None:
    found = (
        overfull(f"replica {pod.replica}", pod.message, rank=pod.first_rank(job))
        if pod.reason == "Evicted"
        else None
    )
    return None if found is None else PodFault(at=pod.created, verdict=found, hopeless=True)


def overfull(who: str, said: str, *, rank: int | None = None) -> Verdict | None:
    """Return the verdict on a pod that wrote more than it may, in the kubelet's words; None for others."""
    if not _OVERFULL.search(said):
        return None
    return Verdict(
        cause=Cause.SPEC_ERROR,
        rank=rank,
        message=f"{who} wrote more than it may: {said}",
        advice="raise disk_gib in its resources, or write less to scratch",
    )


def _disrupted(pod: SeenPod, job: JobSpec) -> PodFault | None:
    if not pod.disrupted:
        return None
    cause, what = _DISRUPTIONS.get(pod.disrupted, (Cause.EVICTED, f"was ended ({pod.disrupted})"))
    message = f"replica {pod.replica} on node {pod.node} {what}: {pod.message or pod.disrupted_message}"
    return _fault(pod, job, cause, message)


def _kubelet(pod: SeenPod, job: JobSpec) -> PodFault | None:
    if not pod.reason or pod.phase != "Failed":
        return None
    cause, what = _KUBELET.get(pod.reason, (Cause.BACKEND_ERROR, f"was ended ({pod.reason})"))
    return _fault(pod, job, cause, f"replica {pod.replica} on node {pod.node} {what}: {pod.message}")


def _ended(pod: SeenPod, job: JobSpec) -> PodFault | None:
    """Judge the first container that has ended badly."""
    bad = next((each for each in pod.containers if each.code), None)
    if bad is None:
        return None
    report = _report(bad.said)
    if report is not None and report.verdict is not None:
        # Nodes have clocks of their own, and who lost a peer ends first at times.
        follows = report.verdict.cause in (Cause.CANCELLED, Cause.RANK_LOST)
        verdict = _not_cancelled(pod, report.verdict)
        return PodFault(at=report.at or bad.ended_at or 0.0, verdict=verdict, follows=follows)
    if bad.ended in ("StartError", "ContainerCannotRun"):
        return _not_started(pod, bad, job)
    found = _by_code(pod, bad, job)
    return PodFault(at=found.at, verdict=found.verdict, follows=pod.deleting or bad.code == ExitCode.STOPPED)


def _not_cancelled(pod: SeenPod, said: Verdict) -> Verdict:
    """Name what a worker cannot know that got a SIGTERM: a job that is cancelled is ended before its pods are judged."""
    if said.cause is not Cause.CANCELLED:
        return said
    message = f"{said.message}: its pod on node {pod.node} was deleted, or its queue put the job back"
    return replace(said, cause=Cause.EVICTED, message=message, advice=pod_advice(Cause.EVICTED))


def _report(said: str) -> Report | None:
    """Read a worker's termination message: its report, if it fitted in."""
    if not said.startswith("{"):
        return None
    try:
        return loads(Report, said)
    except SpecError:
        return None


def _not_started(pod: SeenPod, container: Container, job: JobSpec) -> PodFault:
    missing = _NO_PROGRAM.search(container.said)
    if missing is None:
        said = f"replica {pod.replica}: container {container.name} cannot be started: {container.said}"
        return _fault(pod, job, Cause.BACKEND_ERROR, said)
    verdict = Verdict(
        cause=Cause.SPEC_ERROR,
        message=f"image {container.image} has no {missing[1]}: muster's worker runs in the image's own Python",
        advice="use an image with Python 3.10 or newer, python3 on its PATH",
    )
    return PodFault(at=container.ended_at or pod.created, verdict=verdict, hopeless=True)


def _by_code(pod: SeenPod, container: Container, job: JobSpec) -> PodFault:
    """The exit code is a contract and names the cause; the last line of the log says more."""
    code = container.code or 0
    last = _last_line(container.said)
    said = f": {last}" if last else ""
    who = "the worker" if container.name == MAIN else f"container {container.name}"
    if code in _KILLED:
        return _fault(pod, job, Cause.RANK_LOST, f"{who} of replica {pod.replica} {_KILLED[code]}{said}")
    cause = POD_CAUSES.get(code, Cause.BACKEND_ERROR)
    how = "was stopped from outside muster" if code == ExitCode.STOPPED else f"ended with exit code {code}"
    return _fault(pod, job, cause, f"{who} of replica {pod.replica} {how}{said}")


def _last_line(said: str) -> str:
    """The last line of a log; nothing where it is a report that was cut off."""
    match = _LAST_LINE.search(said)
    line = match[0].strip() if match else ""
    if line.startswith('{"'):
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return ""
    return line
