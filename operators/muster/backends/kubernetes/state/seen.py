"""What the API shows of one job, read once: its objects by kind, and of each pod what is asked about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from muster.backends.kubernetes.api.kinds import EVENT, JOB, JOB_SET, POD, POD_GROUP, WORKLOAD, Document
from muster.backends.kubernetes.cluster.facts import condition, holds
from muster.backends.kubernetes.labels import FAILURES, IGNORED, INDEX, MAIN, RESTART, ROLE
from muster.core.job import JobSpec


@dataclass(frozen=True, kw_only=True)
class JobObjects:
    """The objects of one job.

    :param root: the JobSet, or the Job of a job that has one pod; None where there is none any more.
    :param jobs: the Jobs of a JobSet.
    :param events: about any of these, as far as they were fetched.
    """

    root: Document | None = None
    jobs: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()
    workload: Document | None = None
    pod_group: Document | None = None
    events: tuple[Document, ...] = ()

    @classmethod
    def of(cls, documents: Iterable[Document]) -> JobObjects:
        """Sort a job's objects by kind; of several Workloads the newest counts."""
        found: dict[str, list[Document]] = {}
        for document in documents:
            found.setdefault(str(document["kind"]), []).append(document)
        for same in found.values():
            same.sort(key=lambda each: str(each["metadata"].get("creationTimestamp") or ""))
        sets, jobs = found.get(JOB_SET.name, []), found.get(JOB.name, [])
        return cls(
            root=_last(sets or jobs),
            jobs=tuple(jobs if sets else ()),
            pods=tuple(found.get(POD.name, ())),
            workload=_last(found.get(WORKLOAD.name, [])),
            pod_group=_last(found.get(POD_GROUP.name, [])),
            events=tuple(found.get(EVENT.name, ())),
        )

    @cached_property
    def read_pods(self) -> tuple[SeenPod, ...]:
        """The pods, each read once: a job that does not change is judged again and again."""
        return tuple(map(SeenPod.of, self.pods))

    @property
    def restarts(self) -> int:
        """How often the gang was started again."""
        if self.root is None:
            return 0
        if self.root["kind"] == JOB_SET.name:
            return int((self.root.get("status") or {}).get("restarts") or 0)
        return max((pod.restart for pod in self.read_pods), default=0)

    @property
    def free_restarts(self) -> int:
        """How many of them are none of its job's `max_restarts`, as JobSet counts; 0 of a Job."""
        status = {} if self.root is None else self.root.get("status") or {}
        return int(status.get("restarts") or 0) - int(status.get("restartsCountTowardsMax") or 0)

    def replicas(self) -> tuple[SeenPod, ...]:
        """The pods of the start that counts, one a replica, by role and index."""
        newest: dict[tuple[str, int], SeenPod] = {}
        for pod in sorted(self.read_pods, key=lambda pod: (pod.restart, pod.created)):
            if pod.restart >= self.restarts:
                newest[pod.role, pod.index] = pod
        return tuple(newest[key] for key in sorted(newest))


def _last(documents: list[Document]) -> Document | None:
    return documents[-1] if documents else None


@dataclass(frozen=True, kw_only=True)
class Container:
    """How one container is: it waits, runs or has ended. Times are seconds since the epoch.

    :param said: its termination message, or the end of its log where it left none.
    """

    name: str
    waiting: str = ""
    waiting_message: str = ""
    running: bool = False
    ended: str = ""
    code: int | None = None
    said: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    image: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Container:
        """Read one of a pod's ``containerStatuses``."""
        state = status.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        began = ended or state.get("running") or {}
        return cls(
            name=status["name"],
            waiting=waiting.get("reason", ""),
            waiting_message=waiting.get("message", ""),
            running="running" in state,
            ended=ended.get("reason") or ("Ended" if ended else ""),
            code=ended.get("exitCode"),
            said=ended.get("message", ""),
            started_at=seconds(began.get("startedAt")),
            ended_at=seconds(ended.get("finishedAt")),
            image=status.get("image", ""),
        )


@dataclass(frozen=True, kw_only=True)
class SeenPod:
    """One pod.

    :param restart: the start of the gang that it belongs to, from 0.
    :param reason: why the kubelet ended it, such as ``Evicted``; `message` in its words.
    :param owner: the uid of the Job that made it.
    :param set_up: its volumes are mounted and its network is there.
    :param disrupted: why the cluster ended it: the reason of its DisruptionTarget condition, or of Kueue's.
    :param unplaced: why no node has it: the message of PodScheduled; empty once it has one.
    """

    name: str
    role: str
    index: int
    restart: int
    created: float
    phase: str
    owner: str = ""
    node: str = ""
    placed_at: float | None = None
    set_up: bool = False
    deleting: bool = False
    reason: str = ""
    message: str = ""
    disrupted: str = ""
    disrupted_message: str = ""
    gated: bool = False
    unplaced: str = ""
    group: str = ""
    first: tuple[Container, ...] = ()
    main: Container = field(default_factory=lambda: Container(name=MAIN))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SeenPod:
        """Read a ``Pod`` of ours."""
        metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
        labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
        scheduled = condition(document, "PodScheduled")
        disrupted = condition(document, "DisruptionTarget") or condition(document, "TerminatedByKueue")
        by_name = {each["name"]: Container.of(each) for each in status.get("containerStatuses") or ()}
        return cls(
            name=metadata["name"],
            role=labels.get(ROLE, ""),
            index=int(notes.get(INDEX) or labels.get(INDEX) or 0),
            restart=_restart(labels, notes),
            created=seconds(metadata.get("creationTimestamp")) or 0.0,
            phase=status.get("phase", "Pending"),
            owner=next((each["uid"] for each in metadata.get("ownerReferences") or ()), ""),
            node=spec.get("nodeName", ""),
            placed_at=seconds(scheduled.get("lastTransitionTime")) if spec.get("nodeName") else None,
            set_up=holds(document, "PodReadyToStartContainers"),
            deleting="deletionTimestamp" in metadata,
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            disrupted=disrupted.get("reason", "") if disrupted.get("status") == "True" else "",
            disrupted_message=disrupted.get("message", ""),
            gated=scheduled.get("reason") == "SchedulingGated",
            unplaced=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
            group=(spec.get("schedulingGroup") or {}).get("podGroupName", ""),
            first=tuple(map(Container.of, status.get("initContainerStatuses") or ())),
            main=by_name.get(MAIN, Container(name=MAIN)),
        )

    @property
    def replica(self) -> str:
        """What people call it: ``main-0``."""
        return f"{self.role}-{self.index}"

    @property
    def containers(self) -> tuple[Container, ...]:
        """In the order in which they run."""
        return (*self.first, self.main)

    @property
    def sealed(self) -> bool:
        """Whether its worker has ended well."""
        return self.phase == "Succeeded" or self.main.code == 0

    @property
    def runs(self) -> bool:
        """Whether its ranks run, as far as its node has said."""
        return self.main.running and not self.deleting

    def first_rank(self, job: JobSpec) -> int | None:
        """The global rank of its first rank; None where the job has no such role."""
        before = 0
        for role in job.roles:
            if role.name == self.role:
                return before + self.index * role.ranks
            before += role.replicas * role.ranks
        return None


@dataclass(frozen=True, kw_only=True)
class SeenEvent:
    """One warning. :param about: the uid of the object; `first` and `last` time, seconds since the epoch."""

    reason: str
    said: str
    about: str
    kind: str
    name: str
    first: float
    last: float

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SeenEvent:
        """Read an ``Event``, as a kubelet writes it or in the newer form that controllers use."""
        about, series = document.get("involvedObject") or {}, document.get("series") or {}
        made = document.get("eventTime") or document["metadata"].get("creationTimestamp")
        first = seconds(document.get("firstTimestamp") or made) or 0.0
        return cls(
            reason=str(document.get("reason") or ""),
            said=str(document.get("message") or ""),
            about=str(about.get("uid") or ""),
            kind=str(about.get("kind") or ""),
            name=str(about.get("name") or ""),
            first=first,
            last=seconds(series.get("lastObservedTime") or document.get("lastTimestamp")) or first,
        )


def _restart(labels: Mapping[str, str], notes: Mapping[str, str]) -> int:
    """JobSet counts starts of the gang, a Job those of each index, free ones apart."""
    if RESTART in labels:
        return int(labels[RESTART])
    return int(notes.get(FAILURES) or 0) + int(notes.get(IGNORED) or 0)


def uid_of(document: Mapping[str, Any]) -> str:
    """Return the uid of an object."""
    return str(document["metadata"]["uid"])


def seconds(text: str | None) -> float | None:
    """Return a time of the API, RFC 3339, as seconds since the epoch."""
    return None if not text else datetime.fromisoformat(text).timestamp()
