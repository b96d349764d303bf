"""How a job on a cluster is, in the words of :class:`~muster.core.status.JobStatus`, and when it held its resources: pure, from its objects.

Kueue's admission tells the latter: quota is held from Admitted on, until the workload is evicted or has finished. Of a gang that Kueue
does not see, it is the time since its pods have nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.cluster.facts import Flavor, condition, holds
from muster.backends.kubernetes.labels import GPU_CLASS
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod, seconds, uid_of
from muster.core.job import JobSpec
from muster.core.status import JobState, JobStatus
from muster.core.tally import Allotment, Tally
from muster.core.text import one_line

_MORE_NEEDED = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+?), (\S+) more needed")
_TOO_MUCH = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+?), previously considered podsets requests \(([^)]*)\) "
    r"\+ current podset request \(([^)]*)\) > maximum capacity \(([^)]*)\)"
)
# It goes on with the flavor after the one it tried last, and tells only of those that it then tries: at times
# that is none that the job may use at all.
_ELSEWHERE = re.compile(r"flavor \S+ doesn't match node affinity(, flavor \S+ doesn't match node affinity)*")
_ASSIGN = re.compile(r"^couldn't assign flavors to pod set ([^:]+): ")
_NOT_ASSIGNED = "; couldn't assign"
_MISMATCH = re.compile(r"flavor (\S+) doesn't match node affinity")
_NO_NODE = re.compile(r"no topology domains at level: (\S+)")
_NOT_LOOKED = "the scheduler has not looked yet"
_LAST = "Kueue tells only of what it tried last"
_EVICTED = {
    "Preempted": "was preempted by a job of higher priority and waits again",
    "NodeFailures": "lost a node and waits again",
    "PodsReadyTimeout": "did not start in time and waits again",
    "ClusterQueueStopped": "was put back as its queue was stopped",
    "LocalQueueStopped": "was put back as its queue was stopped",
}


@dataclass(frozen=True, kw_only=True)
class ObservedJob:
    """A job as the cluster shows it.

    :param reason: one line for people: what it waits for, what it is preparing, how much of it runs.
    :param started: seconds since the epoch at which all of the gang ran; None while some of it does not.
    :param nodes: per replica, such as ``main-0``, the node that has it.
    """

    state: JobState
    reason: str
    replicas: int
    started: float | None = None
    restarts: int = 0
    nodes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))
        object.__setattr__(self, "nodes", MappingProxyType(dict(self.nodes)))


def observe(
    seen: JobObjects,
    job: JobSpec,
    *,
    place: QueuePlace | None = None,
    flavors: Mapping[str, Flavor] | None = None,
) -> ObservedJob:
    """Say how a job is. Why it ended without success, :func:`~.verdicts.verdict` says.

    :param place: in its queue; None where Kueue was not asked.
    :param flavors: of the cluster, by name; where they are not known, one is called as the class that it stands for.
    """
    pods = seen.replicas()
    state, reason = _state(seen, job, pods, place, flavors)
    return ObservedJob(
        state=state,
        reason=reason,
        replicas=job.replicas,
        started=_started(pods) if state in (JobState.RUNNING, JobState.COMMITTING) else None,
        restarts=seen.restarts,
        nodes={pod.replica: pod.node for pod in pods if pod.node},
    )


def merged(status: JobStatus, observed: ObservedJob) -> JobStatus:
    """Add to what is recorded of a job that has not ended what was observed of it."""
    return replace(
        status,
        # That it has failed is for its verdict to say.
        state=status.state if observed.state is JobState.FAILED else observed.state,
        reason=observed.reason,
        started=status.started or observed.started,
        restarts=max(status.restarts, observed.restarts),
    )


def _started(pods: Sequence[SeenPod]) -> float | None:
    times = [pod.main.started_at for pod in pods]
    return max((time for time in times if time is not None), default=None)


def _state(
    seen: JobObjects,
    job: JobSpec,
    pods: Sequence[SeenPod],
    place: QueuePlace | None,
    flavors: Mapping[str, Flavor] | None,
) -> tuple[JobState, str]:
    if seen.root is None:
        return JobState.QUEUED, "its objects are not to be seen yet"
    if completed(seen.root):
        return JobState.COMMITTING, "every replica has sealed"
    if failed(seen.root):
        said = failure(seen.root)
        return JobState.FAILED, str(said.get("message") or said.get("reason") or "it has failed")
    if seen.workload is not None and not holds(seen.workload, "Admitted"):
        return JobState.QUEUED, _waits(seen.workload, place, flavors)
    if seen.workload is None and seen.root["spec"].get("suspend"):
        return JobState.QUEUED, "waits until Kueue has seen it"
    if seen.workload is None and pods and not any(pod.node or pod.gated for pod in pods):
        unplaced = (pod.unplaced for pod in pods if pod.unplaced)
        return JobState.QUEUED, f"waits for nodes: {next(unplaced, _NOT_LOOKED)}"
    return _placed(job, pods, restarts=seen.restarts)


def _placed(job: JobSpec, pods: Sequence[SeenPod], *, restarts: int) -> tuple[JobState, str]:
    """Say how the pods are of a gang that nothing holds back."""
    wanted = job.replicas
    going = sum(pod.runs or pod.sealed for pod in pods)
    if going >= wanted:
        sealed = sum(pod.sealed for pod in pods)
        rest = f", {sealed} sealed" if sealed else ""
        return JobState.RUNNING, f"{_count(wanted)} {'run' if wanted > 1 else 'runs'}{rest}"
    again = f"starting again ({restarts}): " if restarts else ""
    return JobState.PREPARING, f"{again}{going} of {_count(wanted)} run; {_hindrance(pods)}"


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _hindrance(pods: Sequence[SeenPod]) -> str:
    """What keeps the replica that is furthest from running."""
    waiting = [pod for pod in pods if not pod.runs and not pod.sealed]
    if not waiting:
        return "the other pods are being made"
    return min((_of_pod(pod) for pod in waiting), key=lambda each: each[0])[1]


def _of_pod(pod: SeenPod) -> tuple[int, str]:
    """How telling what keeps a pod is, 0 the most, and what that is."""
    if pod.deleting and pod.disrupted == "DeletionByTaintManager":
        return 0, f"node {pod.node} no longer answers, {pod.replica} is given up"
    if pod.deleting:
        return 1, f"{pod.replica} is being taken off node {pod.node or 'none'}"
    if pod.gated:
        return 4, f"Kueue chooses a node for {pod.replica}"
    if not pod.node:
        return 2, f"{pod.replica} waits for a node: {pod.unplaced or _NOT_LOOKED}"
    where = f"{pod.replica} on node {pod.node}"
    for container in pod.containers:
        if container.waiting_message:
            return 0, f"{where}: {container.waiting}: {container.waiting_message}"
        if container.running and container.name != pod.main.name:
            return 3, f"{where} fetches its code and the worker"
        if container.code:
            return 0, f"{where} has ended with exit code {container.code}"
    return 3, f"{where} is being set up"


def _waits(
    workload: Mapping[str, Any], place: QueuePlace | None, flavors: Mapping[str, Flavor] | None
) -> str:
    """Say why Kueue holds a job back, and where in the queue it is."""
    at = f", place {place.number} of {place.of}" if place else ""
    return f"in queue {workload['spec'].get('queueName') or '?'}{at}: {waits_for(workload, flavors)}"


def waits_for(workload: Mapping[str, Any], flavors: Mapping[str, Flavor] | None = None) -> str:
    """Say what a Workload of Kueue waits for. :param flavors: as in :func:`observe`."""
    before = _put_back(workload)
    if holds(workload, "QuotaReserved"):
        return f"{before}has its quota, waits for {_checks(workload)}"
    # Kueue leaves those that are like one that has just been put back without a word of their own.
    message = str(condition(workload, "QuotaReserved").get("message") or "waits its turn")
    return before + plain_reason(message, usable=usable(workload, flavors))


def usable(
    workload: Mapping[str, Any], flavors: Mapping[str, Flavor] | None = None
) -> dict[str, frozenset[str]]:
    """Return, by pod set, the flavors of the GPU classes that a workload names; those alone that name some."""
    found = {}
    for each in workload["spec"].get("podSets") or ():
        classes = gpu_classes((each.get("template") or {}).get("spec") or {})
        if classes:
            stand_for = {name for name, flavor in (flavors or {}).items() if flavor.gpu_class in classes}
            found[str(each.get("name"))] = frozenset(stand_for or classes)
    return found


def gpu_classes(pod: Mapping[str, Any]) -> set[str]:
    """Return the GPU classes that a pod requires of its node."""
    node = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    return {
        str(value)
        for term in terms
        for expression in term.get("matchExpressions") or ()
        if (expression.get("key"), expression.get("operator")) == (GPU_CLASS, "In")
        for value in expression.get("values") or ()
    }


def _put_back(workload: Mapping[str, Any]) -> str:
    """Say why a workload that had been let in waits again; nothing of one that never was."""
    if not holds(workload, "Evicted"):
        return ""
    reason = str(condition(workload, "Evicted").get("reason"))
    if reason == "Preempted" and str(condition(workload, "Preempted").get("reason")).startswith("InCohort"):
        return "gave back what its team had borrowed and waits again; "
    return f"{_EVICTED.get(reason, f'was put back ({reason})')}; "


def _checks(workload: Mapping[str, Any]) -> str:
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [str(check["name"]) for check in checks if check.get("state") != "Ready"]
    return f"the admission check {', '.join(waiting)}" if waiting else "Kueue to place it"


def plain_reason(message: str, *, usable: Mapping[str, frozenset[str]] | None = None) -> str:
    """Return Kueue's reason in fewer words: what more is needed, or is too much, where it says that.

    :param usable: by pod set, the flavors of the classes that it names: of others nothing is told, for it never gets them.
    """
    if not usable:
        return _plain(message, None)
    first, *others = message.split(_NOT_ASSIGNED)
    parts = [(part, _ASSIGN.match(part)) for part in (first, *(f"couldn't assign{rest}" for rest in others))]
    said = [_plain(part, usable.get(named[1]) if named else None) for part, named in parts]
    return " and ".join(dict.fromkeys(said))


def _plain(message: str, usable: frozenset[str] | None) -> str:

    def counts(flavor: str) -> bool:
        return usable is None or flavor in usable

    needed = [found for found in _MORE_NEEDED.findall(message) if counts(found[1])]
    if needed:
        wants = [f"{amount} more {resource} of flavor {flavor}" for resource, flavor, amount in needed]
        return f"needs {' or '.join(dict.fromkeys(wants))}"
    over = [
        f"{resource} of flavor {flavor} ({amount if before == '0' else f'{before} + {amount}'}, it has {most})"
        for resource, flavor, before, amount, most in _TOO_MUCH.findall(message)
        if counts(flavor)
    ]
    if over:
        return f"asks for too much {' or '.join(dict.fromkeys(over))}"
    plain = _NO_NODE.sub(r"no node that it may use takes pods now and has label \1", _ASSIGN.sub("", message))
    if usable is not None:
        return _without_others(plain, usable)
    return f"{plain}; {_LAST}" if _ELSEWHERE.fullmatch(plain) else plain


def _without_others(plain: str, usable: frozenset[str]) -> str:
    """Leave out what is said of flavors that a gang never gets; where that is all, say of which there is no room."""
    for pattern in (_MORE_NEEDED, _TOO_MUCH):
        plain = pattern.sub("", plain)
    plain = _MISMATCH.sub(lambda found: found[0] if found[1] in usable else "", plain)
    rest = ", ".join(filter(None, (part.strip(" ,") for part in plain.split(", "))))
    return rest or f"waits for room of flavor {' or '.join(sorted(usable))}; {_LAST}"


def completed(root: Mapping[str, Any]) -> bool:
    """Whether every pod of a JobSet or Job has ended well."""
    return holds(root, "Completed") or holds(root, "Complete")


def failed(root: Mapping[str, Any]) -> bool:
    """Whether a JobSet or Job has failed for good: nothing starts it again."""
    return holds(root, "Failed")


def failure(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says why a JobSet or Job has failed; empty where it has not."""
    found = condition(root, "Failed")
    return found if found.get("status") == "True" else {}


_SAME_SECONDS = 1.0  # the API's times are whole seconds


def tallied(before: Tally, seen: JobObjects, job: JobSpec) -> Tally:
    """Return a job's tally with what is seen now.

    :param job: with the replicas that it has now.
    """
    workload, last = seen.workload, before.times[-1] if before.times else None
    if workload is not None and not _is_of(workload, seen.root):
        return before  # of the size that an elastic gang had
    since, until = admission(workload) if workload is not None else (_since_placed(seen), None)
    if since is not None:
        again = workload is not None and last is not None and since > last.since + _SAME_SECONDS
        if last is None or again or last.replicas != job.replicas:
            over = None if last is None else _given_back(workload, after=last.since, before=since)
            gpus = sum(role.replicas * role.resources.gpus for role in job.roles)
            held = Allotment(since=since, replicas=job.replicas, gpus=gpus)
            before = (before if over is None else before.ended(over)).begun(held)
    return before if until is None else before.ended(until)


def admission(workload: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return since when a workload has its quota, and until when it had it."""
    admitted = condition(workload, "Admitted")
    at = seconds(admitted.get("lastTransitionTime"))
    if admitted.get("status") != "True":
        return None, at
    finished = condition(workload, "Finished") if holds(workload, "Finished") else {}
    return at, seconds(finished.get("lastTransitionTime"))


def _since_placed(seen: JobObjects) -> float | None:
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
