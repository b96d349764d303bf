"""Lets waiting jobs in: what the queue decides, written to the ledger and started as supervisors."""

from __future__ import annotations

import time
from dataclasses import replace

from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.local.launch import launch
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.queue import Claim, Queue, Ticket
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes.protocols import Ledger

# Its entry was taken out of the ledger, or cannot be read: a job of which only the ticket is left, which
# must not keep all others from starting.
_GONE = (NotFound, Corrupt)


class Admission:
    """Starts what has room, on behalf of whoever comes by."""

    def __init__(
        self, *, settings: Settings, machine: Machine, ledger: Ledger, resolve: Resolve = from_environment
    ) -> None:
        self.queue = Queue(Places(settings.home), machine)
        self._settings = settings
        self._machine = machine
        self._ledger = ledger
        self._resolve = resolve

    def admit(self, *, wait: bool) -> None:
        """Start every waiting job that has room, and end those that waited too long."""
        self.queue.admit(self._start, overdue=self._overdue, wait=wait)

    def _start(self, claim: Claim, handle: int) -> bool:
        """Start one supervisor; False where this process lacks a secret: another one will come by."""
        try:
            spec = self._ledger.spec(claim.job_id)
        except _GONE:
            return True  # so its ticket goes
        try:
            secrets = {variable: self._resolve(secret) for variable, secret in spec.secrets.items()}
        except KeyError:
            return False
        try:
            launch(spec, claim, handle, settings=self._settings, machine=self._machine, secrets=secrets)
        except BackendError as error:
            self._end(
                claim.job_id, Cause.BACKEND_ERROR, str(error), "free some processes or memory, run again"
            )
        return True

    def _overdue(self, ticket: Ticket, waited_for: str) -> None:
        seconds = ticket.deadline - ticket.submitted
        waited = f"it waited longer than its queue_timeout of {seconds:.6g} s: {waited_for}"
        self._end(
            ticket.job_id, Cause.QUEUE_TIMEOUT, waited, "raise the timeout, or run it when less else runs"
        )

    def _end(self, job_id: str, cause: Cause, message: str, advice: str) -> None:
        try:
            status, origin = self._ledger.status(job_id), self._ledger.spec(job_id).origin
        except _GONE:
            return
        verdict = Verdict(cause=cause, message=message, advice=advice).going_on(origin.again)
        self._ledger.append(job_id, (verdict.render(job_id=job_id) + "\n").encode())
        self._ledger.update(replace(status, state=JobState.FAILED, ended=time.time(), verdict=verdict))
