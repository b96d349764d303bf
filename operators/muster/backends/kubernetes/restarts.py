"""Says in a job's log why its gang was started again: its pods of before are gone by the time somebody asks."""

from __future__ import annotations

from muster.backends.kubernetes.faults import fault
from muster.backends.kubernetes.seen import Seen, SeenPod
from muster.backends.kubernetes.verdicts import first_fault
from muster.core.job import JobSpec
from muster.volumes.service.client import ServiceStore


class Heralds:
    """Tells each restart once, however many of us see it."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._told: dict[str, int] = {}

    def tell(self, job: JobSpec, job_id: str, seen: Seen) -> None:
        """Tell of the restarts that this one has not told of yet; those without a fault that it knows are left out."""
        told, restarts = self._told.get(job_id, 0), seen.restarts
        if restarts <= told or seen.root is None:
            return
        for number in range(told + 1, restarts + 1):
            self._tell(job, job_id, seen, number)
        self._told[job_id] = restarts

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job, which has ended."""
        self._told.pop(job_id, None)

    def _tell(self, job: JobSpec, job_id: str, seen: Seen, number: int) -> None:
        before = [pod for pod in map(SeenPod.of, seen.pods) if pod.restart == number - 1]
        found = first_fault([each for pod in before if (each := fault(pod, job)) is not None])
        if found is None:
            return
        who = "" if found.rank is None else f", rank {found.rank}"
        line = f"[muster] {found.cause.value}{who}: {found.message}; the whole gang starts again from its checkpoint\n"
        assert seen.root is not None
        name = f"restart-{seen.root['metadata']['uid']}-{number}"
        self._store.ledger.append(job_id, line.encode(), request=name)
