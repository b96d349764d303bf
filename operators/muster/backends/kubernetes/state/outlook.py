"""What a cluster's jobs compete for, and which do now: pure, from quotas, nodes, Workloads and pods.

A gang of Kueue's takes three pools of each resource: its queue's quota with what that may borrow, its cohort's quota,
and of cards those of the nodes of the flavor's class. Where there is no Kueue, nodes alone count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from muster.backends.forecast import Amounts, Competition, Demand
from muster.backends.kubernetes.cluster.facts import Flavor, Node, condition, limits_of, quotas
from muster.backends.kubernetes.cluster.quantities import (
    CPU,
    GIB,
    MEMORY,
    is_device,
    pod_requests,
    pod_set_requests,
    quantity,
    times,
    total,
)
from muster.backends.kubernetes.labels import JOB, NAME
from muster.backends.kubernetes.state.observe import gpu_classes
from muster.backends.kubernetes.state.queueing import held, queue_of, runs
from muster.backends.kubernetes.state.seen import seconds
from muster.core.job import JobSpec

_TURNOVER_SECONDS = 4.0  # measured: from the last pod's end to the next gang's first line
_OTHERS = "jobs of other namespaces"
_MOST_CHOICES = 64
_STRICT = "StrictFIFO"

_Titles: TypeAlias = Mapping[str, tuple[str | None, str]]  # by uid and by job_id: job_id, title


@dataclass(frozen=True, kw_only=True)
class PodNeeds:
    """What pods of one kind take together. :param classes: of GPU that they name; empty for any."""

    needs: Amounts
    classes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ClusterDocuments:
    """What was read of a cluster at one look.

    :param nodes: None where they may not be read. :param cohorts: None likewise.
    :param roots: JobSets and Jobs; `pods` those that have not ended, where there is no Kueue.
    :param kueue: whether there is Kueue.
    """

    kueue: bool = True
    cluster_queues: Sequence[Mapping[str, Any]] = ()
    local_queues: Sequence[Mapping[str, Any]] = ()
    flavors: Sequence[Mapping[str, Any]] = ()
    cohorts: Sequence[Mapping[str, Any]] | None = ()
    workloads: Sequence[Mapping[str, Any]] = ()
    nodes: Sequence[Mapping[str, Any]] | None = ()
    roots: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    priority_classes: Sequence[Mapping[str, Any]] = ()


def _wanted_of(job: JobSpec, *, resource: str) -> tuple[PodNeeds, ...]:
    """Return what a job asks for, by role, the least where it is elastic. :param resource: what a card is called."""
    return tuple(
        PodNeeds(
            needs=times(
                {CPU: role.resources.cpus, MEMORY: role.resources.memory_gib * GIB}
                | ({resource: float(role.resources.gpus)} if role.resources.gpus else {}),
                role.least,
            ),
            classes=frozenset(role.resources.gpu_class),
        )
        for role in job.roles
    )


def with_queues(
    found: ClusterDocuments, jobs: Iterable[tuple[JobSpec, str, int]], *, resource: str
) -> Competition:
    """Return the outlook of a cluster with Kueue.

    :param jobs: each with the LocalQueue that it would wait in, and its priority.
    """
    places, titles = _Places(found), _titles(found.roots)
    running = [_admitted(each, places, titles) for each in found.workloads if runs(each)]
    waits = [each for each in held(found.workloads) if each["spec"].get("active", True)]
    return Competition(
        pools=places.pools,
        running=(*running, *places.others(running)),
        waiting=tuple(_held(each, places, titles) for each in waits),
        passed_seconds=places.strict,
        turnover_seconds=_TURNOVER_SECONDS,
        planned=tuple(
            Demand(
                name=job.name,
                choices=places.choices(_wanted_of(job, resource=resource), places.team(queue)),
                line=places.team(queue),
                priority=priority,
                gpus=sum(role.least * role.resources.gpus for role in job.roles),
            )
            for job, queue, priority in jobs
        ),
        unseen="" if found.nodes is not None else "these credentials may not list nodes: only quotas count",
        down=_down(map(Node.of, found.nodes or ())),
    )


def without_queues(found: ClusterDocuments, jobs: Iterable[JobSpec], *, resource: str) -> Competition:
    """Return the outlook of a cluster where the scheduler alone decides."""
    nodes = [Node.of(each) for each in found.nodes or ()]
    pools = _of_nodes(nodes, every=True)
    by_job: dict[str, list[Mapping[str, Any]]] = {}
    for pod in found.pods:
        by_job.setdefault(pod["metadata"]["labels"][JOB], []).append(pod)
    titles = _titles(found.roots)
    demands = [_of_pods(job_id, pods, nodes, titles) for job_id, pods in by_job.items()]
    return Competition(
        pools=pools,
        running=tuple(each for each in demands if each.started is not None),
        waiting=tuple(each for each in demands if each.started is None),
        turnover_seconds=_TURNOVER_SECONDS,
        planned=tuple(
            Demand(
                name=job.name,
                choices=_on_nodes(_wanted_of(job, resource=resource), {node.gpu_class for node in nodes}),
                gpus=sum(role.least * role.resources.gpus for role in job.roles),
            )
            for job in jobs
        ),
        unseen="" if found.nodes is not None else "these credentials may not list nodes: nothing is forecast",
        down=_down(nodes),
    )


class _Places:
    """The pools of a cluster with Kueue, and which of them a pod may take from."""

    def __init__(self, found: ClusterDocuments) -> None:
        self._queues = {each["metadata"]["name"]: each for each in found.cluster_queues}
        self._flavors = {each.name: each for each in map(Flavor.of, found.flavors)}
        self._teams = {
            each["metadata"]["name"]: str(each["spec"].get("clusterQueue", "")) for each in found.local_queues
        }
        limits = limits_of(found.cluster_queues, found.cohorts)
        self.limits = limits
        self.pools = {
            _quota(team, flavor, name): amount
            for team, flavors in limits.items()
            for flavor, amounts in flavors.items()
            for name, amount in amounts.items()
            if amount < math.inf
        }
        for each in found.cluster_queues:
            cohort = each["spec"].get("cohortName")
            for flavor, resource in quotas(each) if cohort else ():
                pool = _quota(f"cohort {cohort}", flavor, resource["name"])
                self.pools[pool] = self.pools.get(pool, 0.0) + quantity(resource.get("nominalQuota", 0))
        if found.nodes is not None:
            self.pools |= _of_nodes([Node.of(each) for each in found.nodes], every=False)

    @property
    def strict(self) -> dict[str, float]:
        """The teams whose first workload lets no other one pass."""
        return {
            name: 0.0
            for name, each in self._queues.items()
            if each["spec"].get("queueingStrategy") == _STRICT
        }

    def team(self, local_queue: str) -> str:
        """Return the ClusterQueue behind a LocalQueue."""
        return self._teams.get(local_queue, "")

    def choices(self, parts: Sequence[PodNeeds], team: str) -> tuple[Amounts, ...]:
        """Return what parts of one workload would take, for each way to give them flavors, in the queue's order."""
        options = [self._options(part, team) for part in parts]
        ways = itertools.islice(itertools.product(*options), _MOST_CHOICES)
        found = (total(way) for way in ways)
        return tuple(each for each in found if self._ever(each))

    def taken(self, needs: Amounts, flavors: Mapping[str, str], team: str) -> dict[str, float]:
        """Return what one part takes of each pool. :param flavors: by resource."""
        cohort = (self._queues.get(team) or {"spec": {}})["spec"].get("cohortName")
        amounts: dict[str, float] = {}
        for name, flavor in flavors.items():
            owners = (team, *([f"cohort {cohort}"] if cohort else ()))
            pools = [_quota(owner, flavor, name) for owner in owners]
            known = self._flavors.get(flavor)
            if is_device(name):
                pools.append(_cards(known.gpu_class if known else None, name))
            for pool in pools:
                if pool in self.pools and name in needs:
                    amounts[pool] = needs[name]
        return amounts

    def others(self, running: Iterable[Demand]) -> Iterator[Demand]:
        """Yield what each team holds of its quota beyond the workloads that were seen."""
        seen = total(each.choices[0] for each in running)
        for team, queue in self._queues.items():
            left: dict[str, float] = {}
            for flavor in (queue.get("status") or {}).get("flavorsReservation") or ():
                for each in flavor.get("resources") or ():
                    pool = _quota(team, flavor["name"], each["name"])
                    unseen = quantity(each.get("total", 0)) - seen.get(pool, 0.0)
                    if unseen > 1e-6:
                        taken = self.taken({each["name"]: unseen}, {each["name"]: flavor["name"]}, team)
                        left = total((left, taken))
            if left:
                yield Demand(name=_OTHERS, choices=(left,), line=team, started=math.inf)

    def _options(self, part: PodNeeds, team: str) -> list[dict[str, float]]:
        groups: dict[frozenset[str], list[str]] = {}
        for flavor, amounts in (self.limits.get(team) or {}).items():
            groups.setdefault(frozenset(amounts), []).append(flavor)
        ways: list[list[dict[str, str]]] = [
            [
                dict.fromkeys(covered & set(part.needs), flavor)
                for flavor in flavors
                if self._suits(flavor, part)
            ]
            for covered, flavors in groups.items()
            if covered & set(part.needs)
        ]
        return [
            self.taken(part.needs, {name: flavor for way in chosen for name, flavor in way.items()}, team)
            for chosen in itertools.product(*ways)
        ]

    def _suits(self, flavor: str, part: PodNeeds) -> bool:
        known = self._flavors.get(flavor)
        return not part.classes or known is None or known.gpu_class in part.classes

    def _ever(self, taken: Amounts) -> bool:
        return all(amount <= self.pools[pool] + 1e-9 for pool, amount in taken.items())


def _quota(owner: str, flavor: str, name: str) -> str:
    return f"{owner}: {name} of {flavor}"


def _cards(gpu_class: str | None, name: str) -> str:
    return f"nodes of {gpu_class or 'any class'}: {name}"


def _of_nodes(nodes: Iterable[Node], *, every: bool) -> dict[str, float]:
    """Return what usable nodes have, by class; `every` resource, or of devices alone."""
    found: dict[str, float] = {}
    for node in nodes:
        if node.why_not or node.control_plane:
            continue
        for name, amount in node.room.items():
            if every or is_device(name):
                pool = _cards(node.gpu_class, name)
                found[pool] = found.get(pool, 0.0) + amount
    return found


def _down(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(f"{node.name} ({node.why_not})" for node in nodes if node.why_not and not node.control_plane)


def _on_nodes(parts: Sequence[PodNeeds], classes: set[str | None]) -> tuple[Amounts, ...]:
    options = [
        [
            {_cards(each, name): amount for name, amount in part.needs.items()}
            for each in sorted(classes, key=str)
            if not part.classes or each in part.classes
        ]
        for part in parts
    ]
    return tuple(total(way) for way in itertools.islice(itertools.product(*options), _MOST_CHOICES))


def _admitted(workload: Mapping[str, Any], places: _Places, titles: _Titles) -> Demand:
    admission = workload["status"].get("admission") or {}
    team = str(admission.get("clusterQueue") or places.team(queue_of(workload)))
    parts = [
        places.taken(
            {name: quantity(text) for name, text in (each.get("resourceUsage") or {}).items()},
            each.get("flavors") or {},
            team,
        )
        for each in admission.get("podSetAssignments") or ()
    ]
    started = seconds(condition(workload, "Admitted").get("lastTransitionTime"))
    return Demand(**_named(workload, titles), choices=(total(parts),), line=team, started=started or 0.0)


def _held(workload: Mapping[str, Any], places: _Places, titles: _Titles) -> Demand:
    spec, team = workload["spec"], places.team(queue_of(workload))
    parts = [
        PodNeeds(needs=pod_set_requests(each), classes=frozenset(gpu_classes(each["template"]["spec"])))
        for each in spec.get("podSets") or ()
    ]
    return Demand(
        **_named(workload, titles),
        choices=places.choices(parts, team),
        line=team,
        priority=int(spec.get("priority") or 0),
        since=seconds(workload["metadata"].get("creationTimestamp")) or 0.0,
    )


def _named(workload: Mapping[str, Any], titles: _Titles) -> dict[str, Any]:
    owner: Mapping[str, Any] = next(iter(workload["metadata"].get("ownerReferences") or ()), {})
    job_id, title = titles.get(str(owner.get("uid")), (None, ""))
    return {"name": title or str(owner.get("name") or workload["metadata"]["name"]), "job_id": job_id}


def _titles(roots: Iterable[Mapping[str, Any]]) -> _Titles:
    found: dict[str, tuple[str | None, str]] = {}
    for each in roots:
        metadata = each["metadata"]
        job_id = (metadata.get("labels") or {}).get(JOB)
        entry = (job_id, (metadata.get("annotations") or {}).get(NAME, ""))
        found[str(metadata.get("uid"))] = entry
        if job_id:
            found[job_id] = entry
    return found


def _of_pods(
    job_id: str,
    pods: Sequence[Mapping[str, Any]],
    nodes: Sequence[Node],
    titles: _Titles,
) -> Demand:
    classes = {node.name: node.gpu_class for node in nodes}
    placed = [pod for pod in pods if pod["spec"].get("nodeName")]
    began = [seconds(pod["metadata"].get("creationTimestamp")) or 0.0 for pod in pods]
    if placed:
        choices: tuple[Amounts, ...] = (
            total(
                {
                    _cards(classes.get(pod["spec"]["nodeName"]), name): amount
                    for name, amount in pod_requests(pod["spec"]).items()
                }
                for pod in placed
            ),
        )
    else:
        parts = [
            PodNeeds(needs=pod_requests(pod["spec"]), classes=frozenset(gpu_classes(pod["spec"])))
            for pod in pods
        ]
        choices = _on_nodes(parts, set(classes.values()))
    return Demand(
        name=titles.get(job_id, (None, ""))[1] or job_id,
        job_id=job_id,
        choices=choices,
        since=min(began),
        started=min(began) if placed else None,
    )
