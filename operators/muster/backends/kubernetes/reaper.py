"""Frees pods that stay Terminating on a lost node: ``python -m muster.backends.kubernetes.reaper``.

That a pod has ended is for its node to say, and until then its Job makes no other in its place: a node
that never answers again would hold its gangs for ever. The reaper says it for the node, as Kubernetes'
own garbage collector of pods does where an administrator has tainted a node as out of service
(pkg/controller/podgc): it marks such a pod as failed and disrupted, then deletes it without grace. A
deletion alone would do nothing: the Job keeps the pod (``batch.kubernetes.io/job-tracking``) until it
has seen how it ended.

Ranks may live on behind a cut cable; the store fences them (:mod:`muster.volumes.service.starts`).

It remembers nothing, so it may be killed at any moment, and two of them do what one does. It needs to
``list``, ``watch`` and ``delete`` pods and to ``patch`` pods/status in its namespace, and to ``get``
nodes.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from muster.backends.kubernetes.api.access import connect, program
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import NODE, POD, Document
from muster.backends.kubernetes.api.watching import Change, ChangeWatch
from muster.backends.kubernetes.cluster.facts import condition
from muster.backends.kubernetes.labels import JOB
from muster.backends.kubernetes.state.seen import seconds
from muster.core.errors import Conflict, MusterError, NotFound, Unreachable

LOST_SECONDS = 10.0
"""A node that answers again tells so within this time: kubelets report every ten seconds."""

ROUND_SECONDS = 2.0

_DISRUPTED = "DisruptionTarget"
_ENDED = ("Succeeded", "Failed")
_LOST = "NodeLost"

log = logging.getLogger(__name__)


def lost(pod: Mapping[str, Any], node: Mapping[str, Any] | None, *, now: float) -> str:
    """Say why a pod that is to end never will; nothing where its node may yet end it.

    :param node: as the API has it; None where it is gone.
    :param now: seconds since the epoch, by a clock that agrees with the cluster's to within seconds.
    """
    metadata, name = pod["metadata"], pod["spec"].get("nodeName", "")
    if JOB not in (metadata.get("labels") or {}) or not metadata.get("deletionTimestamp") or not name:
        return ""
    if node is None:
        return f"node {name} is gone"
    ready = condition(node, "Ready")
    silent = now - (seconds(ready.get("lastTransitionTime")) or now)
    if silent < LOST_SECONDS:
        return ""
    if ready["status"] == "Unknown":
        return f"node {name} has been lost for {silent:.0f} s"
    overdue = now - (seconds(metadata["deletionTimestamp"]) or now)  # which counts in the pod's grace
    if ready["status"] == "False" and overdue >= LOST_SECONDS:
        return (
            f"node {name} has not been ready for {silent:.0f} s, and should have ended it {overdue:.0f} s ago"
        )
    return ""


def failed(pod: Mapping[str, Any], why: str, *, now: float) -> Document:
    """Return the patch that marks a lost node's pod as ended by a disruption, so its controller makes a new one."""
    conditions = list((pod.get("status") or {}).get("conditions") or ())
    if condition(pod, _DISRUPTED).get("status") != "True":
        conditions = [each for each in conditions if each["type"] != _DISRUPTED]
        conditions.append(
            {
                "type": _DISRUPTED,
                "status": "True",
                "reason": _LOST,
                "message": why,
                "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            }
        )
    return {
        "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]},  # only as it was judged
        "status": {"phase": "Failed", "reason": _LOST, "message": why, "conditions": conditions},
    }


class Reaper:
    """Watches over our pods of one namespace."""

    def __init__(self, client: Client, *, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self._client = client.patient(0.0)  # the next round asks again
        self._namespace = namespace
        self._clock = clock
        self._watch = ChangeWatch(client, POD, namespace=namespace, labels=JOB)
        self._changed = threading.Condition()
        self._ending: dict[str, Document] = {}  # by uid
        self._closed = threading.Event()
        self._wrong: set[str] = set()

    def run(self) -> None:
        """Free what has to be freed, until :meth:`close`. It asks for nodes while pods are Terminating only."""
        threading.Thread(target=self._follow, name="muster-watch-pods", daemon=True).start()
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self._closed.is_set())
            self._closed.wait(ROUND_SECONDS)  # most end by themselves
            self._round()

    def close(self) -> None:
        """End :meth:`run`. Idempotent."""
        self._closed.set()
        self._watch.close()
        with self._changed:
            self._changed.notify_all()

    def _follow(self) -> None:
        for change in self._watch.changes():
            with self._changed:
                self._apply(change)
                self._changed.notify_all()

    def _apply(self, change: Change) -> None:
        if change.whole:
            self._ending.clear()
        for pod in change.put:
            if pod["metadata"].get("deletionTimestamp"):
                self._ending[pod["metadata"]["uid"]] = pod
        for pod in change.gone:
            self._ending.pop(pod["metadata"]["uid"], None)

    def _round(self) -> None:
        wrong = set(self._errors())
        for message in sorted(wrong - self._wrong):  # what keeps on going wrong is said once
            log.warning("%s; trying again", message)
        self._wrong = wrong

    def _errors(self) -> Iterator[str]:
        """Look at each pod that is to end, and yield what went wrong."""
        with self._changed:
            ending = list(self._ending.values())
        nodes: dict[str, Document | None] = {}
        for pod in ending:
            try:
                self._look(pod, nodes)
            except Unreachable as error:
                yield str(error)
                return
            except MusterError as error:
                yield str(error)

    def _look(self, pod: Document, nodes: dict[str, Document | None]) -> None:
        name = pod["spec"].get("nodeName", "")
        if name and name not in nodes:
            nodes[name] = self._client.get(NODE, name)
        why = lost(pod, nodes.get(name), now=self._clock())
        if why and self._free(pod, why):
            metadata = pod["metadata"]
            log.info("freed pod %s of job %s: %s", metadata["name"], metadata["labels"][JOB], why)

    def _free(self, pod: Document, why: str) -> bool:
        """Say that a pod has ended, and delete it; whether there was anything to do."""
        metadata, name, freed = pod["metadata"], pod["metadata"]["name"], False
        try:
            if (pod.get("status") or {}).get("phase") not in _ENDED:
                change = failed(pod, why, now=self._clock())
                self._client.patch(POD, name, change, namespace=self._namespace, subresource="status")
                freed = True
            if metadata.get("deletionGracePeriodSeconds") != 0:  # else it is only its Job that keeps it
                uid = metadata["uid"]
                freed |= self._client.delete(POD, name, namespace=self._namespace, grace_seconds=0, uid=uid)
        except (Conflict, NotFound):  # it is no longer as it was judged: the next round looks again
            return False
        return freed


def main(arguments: Sequence[str]) -> int:
    """Run until told to end; the exit code says whether it could."""
    module = "muster.backends.kubernetes.reaper"
    asked = program(module, "Free the pods of jobs that stay Terminating on lost nodes.").parse_args(
        arguments
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        reaper = Reaper(Client(connect(kubeconfig=asked.kubeconfig)), namespace=asked.namespace)
    except MusterError as error:
        sys.stderr.write(f"the reaper cannot start: {error}\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reaper.close())
    log.info("watching over the pods of namespace %s", asked.namespace)
    reaper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
