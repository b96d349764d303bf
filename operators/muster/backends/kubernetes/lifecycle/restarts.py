"""Restarts by the cluster: why, in the job's log, as its earlier pods are soon gone; and an end to those that help nobody."""

from __future__ import annotations

from collections.abc import Sequence

from muster.backends.kubernetes.state.faults import fault
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod
from muster.backends.kubernetes.state.verdicts import first_fault
from muster.core.errors import StoreError
from muster.core.going_on import starts_again
from muster.core.job import JobSpec
from muster.core.room import is_full
from muster.core.verdict import Cause, Verdict
from muster.volumes.service.client import ServiceStore

# So many free starts in so long a time, and never all replicas: the cluster would go on like that for ever.
SPINS, SPIN_SECONDS = 10, 60.0


class RestartNotes:
    """Tells each restart once, however many of us see it, and sees restarts that lead nowhere."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._told: dict[str, set[str]] = {}  # by job, what each restart is called
        self._began: dict[
            str, tuple[float, int]
        ] = {}  # since when not all replicas began, and the free restarts by then

    def tell(self, job: JobSpec, job_id: str, seen: JobObjects) -> None:
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
        self._began.pop(job_id, None)

    def spins(self, job: JobSpec, job_id: str, seen: JobObjects, *, now: float) -> Verdict | None:
        """Return the verdict on a gang that the cluster starts again and again, and that never begins whole.

        None of that counts as a restart, so nothing else would end it: its next try has new objects, and Kueue places it
        anew. Ranks on good nodes begin each time, and wait for those whose node refuses its pod.
        """
        free = seen.free_restarts
        began = sum(pod.main.started_at is not None for pod in seen.replicas())
        if began >= job.replicas:
            self._began.pop(job_id, None)
            return None
        since, before = self._began.setdefault(job_id, (now, free))
        if free - before < SPINS or now - since < SPIN_SECONDS:
            return None
        last = _fault(job, seen.read_pods)
        return Verdict(
            cause=Cause.NODE_LOST,
            message=(
                f"the cluster started its pods {free - before} times in {now - since:.0f} s, and {began} of {job.replicas} replicas began"
                f"{f': {last.message}' if last else ''}"
            ),
            advice="it is placed anew at its next try; `kubectl get events` says why its pods do not start",
        )


def _fault(job: JobSpec, pods: Sequence[SeenPod]) -> Verdict | None:
    """Say what went wrong first in some pods, as far as that is seen."""
    return first_fault([each for pod in pods if (each := fault(pod, job)) is not None])
