"""Everything that the API told of a namespace's pods and Workloads, one after the other, and what it means for gangs.

Two watches tell it, from before the first gang to after the last. Their samples are put into one order by
the objects' versions: those of one cluster can be compared, whatever the kind (KEP-5504).
"""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any

from tests.cluster import kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

from muster.backends.kubernetes.labels import BOOTSTRAP, MAIN

Document = Mapping[str, Any]
PODS = "/api/v1/namespaces/{}/pods"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads"
CARDS = "nvidia.com/gpu"
GANG = "jobset.sigs.k8s.io/jobset-name"  # a label of pods
_LONGEST_SECONDS = 7200


@dataclass(frozen=True, kw_only=True)
class PodSample:
    """A pod as it was at one version.

    :param room: why there is none for it; empty where it has a node, or the scheduler has not looked for one yet.
    :param ran: when its ranks began and ended, seconds since the epoch, as its node told.
    :param prepared: the same of its init container.
    :param conditions: those that hold, ``PodScheduled`` for one.
    :param at: when this was told, seconds since the epoch.
    """

    version: int
    at: float
    gang: str
    name: str
    phase: str
    room: str
    ran: tuple[float | None, float | None]
    gone: bool
    prepared: tuple[float | None, float | None] = (None, None)
    conditions: frozenset[str] = frozenset()

    @property
    def runs(self) -> bool:
        return self.phase == "Running" and not self.gone


@dataclass(frozen=True, kw_only=True)
class AdmissionSample:
    """What Kueue had decided about a gang at one version.

    :param pods: for how many of its pods room was set aside; 0 where it waits.
    :param at: when this was told, seconds since the epoch.
    :param cards: that were set aside for them, since `admitted`, until `over`; None where that is not so by now.
    """

    version: int
    at: float
    gang: str
    pods: int
    finished: bool
    cards: int = 0
    admitted: float | None = None
    over: float | None = None


Sample = PodSample | AdmissionSample


@dataclass(frozen=True)
class Held:
    """A time in which a gang had cards, in seconds since the epoch."""

    since: float
    until: float
    cards: int


def admissions(samples: Iterable[Sample], *, now: float) -> dict[str, list[Held]]:
    """Return by gang when it had its cards, as its Workload told. :param now: until when those that go on count."""
    found: dict[str, list[Held]] = {}
    for sample in samples:
        if isinstance(sample, AdmissionSample):
            times = found.setdefault(sample.gang, [])
            if sample.admitted is not None and (not times or times[-1].since < sample.admitted):
                times.append(Held(sample.admitted, math.inf, sample.cards))
            if sample.over is not None and times and times[-1].until == math.inf:
                times[-1] = replace(times[-1], until=sample.over)
    return {
        gang: [replace(each, until=min(each.until, now)) for each in times] for gang, times in found.items()
    }


class Recorder:
    """Records both watches while its block runs; afterwards :attr:`samples` holds them in their order."""

    def __init__(self, layout: Layout, *, namespace: str = NAMESPACE) -> None:
        self._layout = layout
        self._namespace = namespace
        self._found: list[Sample] = []
        self._lost: list[str] = []
        self._stopping = False

    @property
    def samples(self) -> list[Sample]:
        """All that was told. A watch that did not last to the end is an error."""
        assert not self._lost, self._lost
        return sorted(self._found, key=lambda sample: sample.version)

    def __enter__(self) -> Recorder:
        self._watches = [self._open(path.format(self._namespace)) for path in (PODS, WORKLOADS)]
        self._threads = [
            threading.Thread(target=self._read, args=(watch,), daemon=True) for watch in self._watches
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        for watch in self._watches:
            watch.kill()
        for thread in self._threads:
            thread.join()
        for watch in self._watches:
            watch.wait()
            assert watch.stdout is not None
            watch.stdout.close()

    def _open(self, path: str) -> subprocess.Popen[str]:
        """Watch from now on: nothing is lost between the question and the first answer."""
        now = json.loads(kubectl.run(self._layout, "get", f"--raw={path}?limit=1"))["metadata"][
            "resourceVersion"
        ]
        query = f"watch=true&resourceVersion={now}&timeoutSeconds={_LONGEST_SECONDS}"
        command = [
            str(self._layout.programs / "kubectl"),
            f"--kubeconfig={self._layout.kubeconfig}",
            "get",
            f"--raw={path}?{query}",
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _read(self, watch: subprocess.Popen[str]) -> None:
        assert watch.stdout is not None
        for line in watch.stdout:
            if not line.endswith("\n"):
                break  # a kill cut it
            event = json.loads(line)
            if event["type"] == "ERROR":
                self._lost.append(line)
            elif (sample := sample_of(event["object"], gone=event["type"] == "DELETED")) is not None:
                self._found.append(sample)
        if not self._stopping:
            self._lost.append(f"{watch.args!r} ended")


@dataclass
class Gang:
    """What became of one gang.

    :param admitted: for how many pods, at each admission.
    :param waiting: its pods that have no room, and why, at this moment of the replay.
    """

    size: int
    admitted: list[int] = field(default_factory=list)
    has_room: bool = False
    finished: bool = False
    pods: dict[str, PodSample] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def running(self) -> int:
        return sum(pod.runs for pod in self.pods.values())

    def together(self) -> bool:
        """Whether there was a moment at which the ranks of all pods ran, by what their nodes told."""
        begins, ends = self._times()
        return None not in (*begins, *ends) and max(begins) <= min(ends)

    def spread_seconds(self) -> float:
        """How long it took from the first pod's start to the last's."""
        begins, _ = self._times()
        return max(begins) - min(begins)

    def _times(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        begins, ends = zip(*(pod.ran for pod in self.pods.values()), strict=True)
        return begins, ends


@dataclass
class Replay:
    """Goes through all samples, and notes in each gang what must never be.

    :param sizes: pods of each gang by its name. :param cards: what one of its pods holds.
    :param most_cards: that were set aside at once. :param most_gangs: that had room at once.
    """

    sizes: Mapping[str, int]
    cards: Mapping[str, int]
    most_cards: int = 0
    most_gangs: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        self.gangs = {name: Gang(size) for name, size in self.sizes.items()}

    def run(self, samples: Iterable[Sample]) -> Replay:
        for sample in samples:
            gang = self.gangs.get(sample.gang)
            if gang is not None:
                self.samples += 1
                (_admission if isinstance(sample, AdmissionSample) else _pod)(gang, sample)
                self._count()
        return self

    def _count(self) -> None:
        inside = [name for name, gang in self.gangs.items() if gang.has_room]
        self.most_gangs = max(self.most_gangs, len(inside))
        self.most_cards = max(self.most_cards, sum(self.sizes[name] * self.cards[name] for name in inside))


def _admission(gang: Gang, sample: AdmissionSample) -> None:
    if sample.pods and not gang.has_room and not gang.finished:
        gang.admitted.append(sample.pods)
    if gang.has_room and not sample.pods and not sample.finished:
        gang.wrong.append(f"at {sample.version} its room was taken away")
    gang.finished = gang.finished or sample.finished
    gang.has_room = bool(sample.pods) and not sample.finished


def _pod(gang: Gang, sample: PodSample) -> None:
    if not gang.admitted:
        gang.wrong.append(
            f"at {sample.version} {sample.name} is there, and no room was set aside for its gang"
        )
    gang.pods[sample.name] = sample
    gang.waiting.pop(sample.name, None)
    if sample.room and not sample.gone:
        gang.waiting[sample.name] = sample.room
    if gang.waiting and gang.running():
        gang.wrong.append(
            f"at {sample.version} {gang.running()} of {gang.size} pods run, and {gang.waiting} wait"
        )


def sample_of(document: Document, *, gone: bool) -> Sample | None:
    """Read an object as a watch told it just now; None where it is no gang's."""
    if document["kind"] == "Workload":
        return _admission_sample(document, gone)
    return _pod_sample(document, gone) if GANG in document["metadata"].get("labels", ()) else None


def _admission_sample(document: Document, gone: bool) -> AdmissionSample | None:
    owners = document["metadata"].get("ownerReferences") or ()
    if not owners:
        return None
    status, now = document.get("status") or {}, time.time()
    parts = (status.get("admission") or {}).get("podSetAssignments") or ()
    finished, admitted = (_condition(status, each) for each in ("Finished", "Admitted"))
    holds, since = admitted.get("status") == "True", _seconds(admitted.get("lastTransitionTime"))
    over = None if holds else since
    if finished.get("status") == "True":
        over = _seconds(finished["lastTransitionTime"])
    return AdmissionSample(
        version=int(document["metadata"]["resourceVersion"]),
        at=now,
        gang=owners[0]["name"],
        pods=sum(part["count"] for part in parts),
        finished=gone or finished.get("status") == "True",
        cards=sum(int((part.get("resourceUsage") or {}).get(CARDS, 0)) for part in parts),
        admitted=since if holds else None,
        over=now if gone and over is None else over,
    )


def _pod_sample(document: Document, gone: bool) -> PodSample:
    metadata, status = document["metadata"], document.get("status") or {}
    scheduled = _condition(status, "PodScheduled")
    return PodSample(
        version=int(metadata["resourceVersion"]),
        at=time.time(),
        gang=metadata["labels"][GANG],
        name=metadata["name"],
        phase=status.get("phase", "Pending"),
        room=scheduled.get("message", "no room") if scheduled.get("reason") == "Unschedulable" else "",
        ran=_times(status.get("containerStatuses"), MAIN),
        gone=gone,
        prepared=_times(status.get("initContainerStatuses"), BOOTSTRAP),
        conditions=frozenset(
            each["type"] for each in status.get("conditions") or () if each["status"] == "True"
        ),
    )


def _times(containers: Sequence[Document] | None, name: str) -> tuple[float | None, float | None]:
    """Return when a container began and ended."""
    state = next((each.get("state") or {} for each in containers or () if each["name"] == name), {})
    times = state.get("terminated") or state.get("running") or {}
    return _seconds(times.get("startedAt")), _seconds(times.get("finishedAt"))


def _condition(status: Document, of_type: str) -> Mapping[str, str]:
    return next((each for each in status.get("conditions") or () if each["type"] == of_type), {})


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
