"""Writes into a job's log why its gang was restarted: its earlier pods are soon gone from the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from muster.backends.kubernetes.state.faults import fault
from muster.backends.kubernetes.state.seen import Seen, SeenPod
from muster.backends.kubernetes.state.verdicts import first_fault
from muster.core.errors import StoreError
from muster.core.going_on import starts_again
from muster.core.job import JobSpec
from muster.core.room import is_full
from muster.core.verdict import Verdict
from muster.volumes.service.client import ServiceStore


class RestartNotes:
    """Tells each restart once, however many of us see it."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._told: dict[str, set[str]] = {}  # by job, what each restart is called

    def tell(self, job: JobSpec, job_id: str, seen: Seen) -> None:
        """Tell of the restarts that this one has not told of yet, once it sees what failed.

        The cluster may say that it has started a gang again before it says why.
        """
        if seen.root is None:
            return
        uid, told = seen.root["metadata"]["uid"], self._told.get(job_id, ())
        names = {number: f"restart-{uid}-{number}" for number in range(1, seen.restarts + 1)}
        untold = {number: name for number, name in names.items() if name not in told}
        pods = seen.read_pods if untold else ()
        for number, name in untold.items():
            found = _fault(job, [pod for pod in pods if pod.restart == number - 1])
            if found is not None:
                try:
                    line = f"{starts_again(found)}\n"
                    self._store.ledger.append(job_id, line.encode(), request=name)
                except StoreError as error:
                    if not is_full(error):
                        raise
                    return  # what runs does not fail for want of a line: the next look tells it
                self._told.setdefault(job_id, set()).add(name)

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job, which has ended."""
        self._told.pop(job_id, None)


def _fault(job: JobSpec, pods: Sequence[SeenPod]) -> Verdict | None:
    """Say what went wrong first in some pods, as far as that is seen."""
    return first_fault([each for pod in pods if (each := fault(pod, job)) is not None])
