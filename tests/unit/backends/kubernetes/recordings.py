"""What a real cluster showed of jobs, whole objects, as tests/cluster/test_verdicts.py wrote it down.

To write it anew: ``MUSTER_RECORDINGS=tests/unit/backends/kubernetes/recorded`` in the environment of
``make test-cluster``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.job import JobSpec
from muster.core.wire import loads

FOLDER = Path(__file__).parent / "recorded"

Document = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """The objects of one job at one moment. :param now: seconds since the epoch."""

    job: JobSpec
    now: float
    documents: tuple[Document, ...]

    @property
    def seen(self) -> JobObjects:
        return JobObjects.of(self.documents)

    def changed(
        self, kind: str, change: Callable[[Document], object], *, index: int | None = None
    ) -> Recording:
        """Return it with every object of a kind, or the one at `index`, changed in place by `change`."""
        documents = copy.deepcopy(self.documents)
        own = [each for each in documents if each["kind"] == kind]
        for each in own if index is None else [own[index]]:
            change(each)
        return Recording(self.job, self.now, documents)

    def without(self, kind: str) -> Recording:
        """Return it without the objects of a kind."""
        kept = tuple(each for each in self.documents if each["kind"] != kind)
        return Recording(self.job, self.now, kept)

    def with_one(self, document: Document) -> Recording:
        """Return it with one object more."""
        return Recording(self.job, self.now, (*self.documents, document))


def recorded(name: str) -> Recording:
    """Return a recording by its name."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    head, *documents = map(json.loads, lines)
    return Recording(loads(JobSpec, json.dumps(head["job"])), head["now"], tuple(documents))


def names() -> list[str]:
    """Return what there is."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def set_condition(kind: str, **fields: str) -> Callable[[Document], None]:
    """Return a change that gives an object a condition."""

    def change(document: Document) -> None:
        conditions = document["status"].setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each["type"] != kind]
        conditions.append(
            {"type": kind, "status": "True", "lastTransitionTime": "2026-11-21T19:00:00Z", **fields}
        )

    return change


def set_ended(
    code: int, said: str = "", *, reason: str = "Error", at: str = "2026-11-21T19:00:00Z"
) -> Callable[[Document], None]:
    """Return a change that lets a pod's main container end badly."""

    def change(pod: Document) -> None:
        pod["status"]["phase"] = "Failed"
        (status,) = pod["status"]["containerStatuses"]
        ended = {"containerID": "containerd://0", "exitCode": code, "reason": reason, "finishedAt": at}
        status["state"] = {"terminated": ended | ({"message": said} if said else {})}

    return change


def set_waiting(reason: str, message: str = "") -> Callable[[Document], None]:
    """Return a change that keeps a pod's main container from starting."""

    def change(pod: Document) -> None:
        pod["status"]["phase"] = "Pending"
        (status,) = pod["status"]["containerStatuses"]
        status["state"] = {"waiting": {"reason": reason, "message": message}}

    return change


def set_unmounted(pod: Document) -> None:
    """Let a pod have a node, and wait for its volumes there."""
    set_condition("PodReadyToStartContainers", status="False")(pod)
    pod["status"]["phase"] = "Pending"
    for status in (*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"]):
        status["state"] = {"waiting": {"reason": "PodInitializing"}}


def warning(reason: str, message: str, about: Document, *, first: float, last: float) -> Document:
    """Return an event as a kubelet writes it. :param first: and `last` time, seconds since the epoch."""
    metadata = about["metadata"]

    def at(moment: float) -> str:
        return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    return {
        "kind": "Event",
        "type": "Warning",
        "reason": reason,
        "message": message,
        "metadata": {"name": f"{metadata['name']}.1", "uid": "e"},
        "involvedObject": {"kind": about["kind"], "name": metadata["name"], "uid": metadata["uid"]},
        "firstTimestamp": at(first),
        "lastTimestamp": at(last),
        "count": 2,
    }


def set_status(**fields: Any) -> Callable[[Document], None]:
    """Return a change of an object's status."""
    return lambda document: document["status"].update(fields)
