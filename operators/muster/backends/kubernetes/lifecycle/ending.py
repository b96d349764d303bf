"""Ends jobs on a cluster without success; see :mod:`muster.backends.jobs.ending`.

What the store service has committed, or is about to, stands. Restarts by the cluster are told in the job's log, as its
earlier pods are soon gone; those that lead nowhere are ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from muster.backends.jobs.ending import decide, record
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.faults import fault
from muster.backends.kubernetes.state.observe import ObservedJob, merged
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod, seconds
from muster.backends.kubernetes.state.sight import Sight, delete_root, find_root
from muster.backends.kubernetes.state.verdicts import first_fault
from muster.core.errors import StoreError
from muster.core.job import JobSpec
from muster.core.replica import starts_again
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.volumes.service.client import ServiceStore

log = logging.getLogger(__name__)

# A node that is lost never says that its pods have ended. So long after their grace they count as ended:
# what they still write is fenced.
_GIVEN_UP_SECONDS = 30.0

# Free starts are limited in number and time, and never cover all replicas: else the cluster would restart for ever.
SPINS, SPIN_SECONDS = 10, 60.0


class JobEnding:
    """Brings jobs to the end that they have come to."""

    def __init__(self, client: Client, *, site: ClusterSite, store: ServiceStore, sight: Sight) -> None:
        self._client = client
        self._site = site
        self._store = store
        self._sight = sight

    def end(
        self, job: JobSpec, status: JobStatus, verdict: Verdict, *, observed: ObservedJob | None = None
    ) -> JobStatus:
        """Write down why a job ends, and end it as far as that goes without waiting."""
        self.decide(status, verdict.going_on(job.origin.again), observed=observed)
        return self.go_on(job, status.job_id)

    def decide(
        self,
        status: JobStatus,
        verdict: Verdict,
        *,
        observed: ObservedJob | None = None,
        owner: str | None = None,
    ) -> bool:
        """Write down why a job ends. From here on it does, unless all of its replicas have sealed.

        :param owner: write it only while this one owns the job.
        :return: False where another one owns it by now, and nothing was written.
        """
        noted = status if observed is None else merged(status, observed)
        # Only the store service writes down that it commits, and whatever it does not commit comes to its end here.
        state = status.state if noted.state is JobState.COMMITTING else noted.state
        return decide(self._store.ledger, replace(noted, state=state), verdict, owner=owner)

    def go_on(self, job: JobSpec, job_id: str) -> JobStatus:
        """Do what is left of a job's end, and return what is recorded of it now. Idempotent, and does not wait.

        A job that has no verdict and has not ended is left alone.
        """
        status = self._store.ledger.status(job_id)
        if not status.state.ended and (status.verdict is None or status.state is JobState.COMMITTING):
            return status
        self.clear(job, job_id)
        if status.state.ended or self.running(job_id):
            return status
        return self._record(status)

    def clear(self, job: JobSpec, job_id: str) -> bool:
        """Begin to delete a job's objects; whether that was not begun yet."""
        root = find_root(self._client, job, job_id, namespace=self._site.namespace)
        return root is not None and delete_root(self._client, root)

    def running(self, job_id: str) -> list[str]:
        """Return the names of the pods that have not ended, without those on nodes that are given up."""
        pods = self._sight.running(job_id)
        return [pod["metadata"]["name"] for pod in pods if not self._is_given_up(pod)]

    def _is_given_up(self, pod: Document) -> bool:
        due = seconds(pod["metadata"].get("deletionTimestamp"))  # it has its grace until then
        return due is not None and time.time() > due + _GIVEN_UP_SECONDS

    def _record(self, status: JobStatus) -> JobStatus:
        """Record the end. Of several of us the first wins, and all say the same."""
        job_id, ledger = status.job_id, self._store.ledger
        assert status.verdict is not None
        append = partial(ledger.append, request="verdict")
        record(ledger, status, status.verdict, append=append, now=time.time)
        self._store.release(job_id)
        return ledger.status(job_id)


class RestartNotes:
    """Tells each restart of one job once, however many of us see it, and sees restarts that lead nowhere."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._told = set[str]()  # what each restart is called
        self._began: tuple[float, int] | None = None  # since when not all did, and the free restarts by then

    def tell(self, job: JobSpec, job_id: str, seen: JobObjects) -> None:
        """Tell of the restarts that this one has not told of yet, once it sees what failed.

        The cluster may say that it has started a gang again before it says why.
        """
        if seen.root is None:
            return
        uid = seen.root["metadata"]["uid"]
        names = {number: f"restart-{uid}-{number}" for number in range(1, seen.restarts + 1)}
        untold = {number: name for number, name in names.items() if name not in self._told}
        pods = seen.read_pods if untold else ()
        for number, name in untold.items():
            found = _fault(job, [pod for pod in pods if pod.restart == number - 1])
            if found is not None:
                try:
                    line = f"{starts_again(found)}\n"
                    self._store.ledger.append(job_id, line.encode(), request=name)
                except StoreError as error:  # a full claim, or a token that only reads
                    log.info("not in the log of job %s: that it starts again (%s)", job_id, error)
                    return  # what runs does not fail for want of a line: the next look tells it, or another's
                self._told.add(name)

    def spins(self, job: JobSpec, seen: JobObjects, *, now: float) -> Verdict | None:
        """Return the verdict on a gang that the cluster starts again and again, and that never begins whole.

        None of that counts as a restart, so nothing else would end it: its next try has new objects, and Kueue places it
        anew. Ranks on good nodes begin each time, and wait for those whose node refuses its pod.
        """
        free = seen.free_restarts
        began = sum(pod.main.started_at is not None for pod in seen.replicas())
        if began >= job.replicas:
            self._began = None
            return None
        since, before = self._began = self._began or (now, free)
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
