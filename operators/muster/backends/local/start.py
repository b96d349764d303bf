"""Starts jobs: the queue lets them in, and each gets a supervisor of its own.

A supervisor is detached from the process that started it, holds its job's claim, and knows its secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.jobs.ending import record
from muster.backends.local.machine import Machine
from muster.backends.local.nursery import nursery, start_python, submitters_variables
from muster.backends.local.orders import Orders
from muster.backends.local.places import Places
from muster.backends.local.queue import Claim, JobQueue, Ticket
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.verdict import Cause, Verdict
from muster.core.wire import dumps
from muster.images.environment import Environments
from muster.images.worker_archive import worker_folder
from muster.volumes.protocols import Ledger

# The first thing that a supervisor does is to leave: its parent, which the caller waits for, ends
# before anything heavy is imported, so that the caller is back at once and never has a zombie.
_MAIN = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from muster.backends.local.spawn import spawn_early\n"
    "told, workers = spawn_early(int(sys.argv[2]))\n"
    "from muster.backends.local.supervisor import main\n"
    "main(sys.argv[3], told['secrets'], workers)\n"
)


def _early(job: JobSpec, orders: Orders, secrets: Mapping[str, str]) -> dict[str, object]:
    """What :func:`.spawn.spawn_early` is told: secrets, and how to start workers if the image is ready.

    An interpreter of this machine is looked at before a worker starts with it.
    """
    ready = job.interpreter is None
    python = Environments(Path(orders.cache)).find(job.image, job.image_digest) if ready else None
    if python is None:
        return {"secrets": dict(secrets), "workers": 0}
    return {
        "secrets": dict(secrets),
        "workers": job.least,
        "command": orders.command(python),
        "environment": orders.variables(job, python, secrets),
    }


def _forked(job: JobSpec, orders: Orders, secrets: Mapping[str, str], log: int) -> bool:
    """Have this process's nursery fork the supervisor; False where it has none, or none that answers."""
    found = nursery()
    connection = None if found is None else found.fork(orders.claim_handle, log)
    if connection is None:
        return False
    told = {
        **_early(job, orders, secrets),
        "orders": dumps(orders),
        "variables": submitters_variables(),
    }
    with connection:
        connection.sendall(json.dumps(told).encode())
    return True


def _started(job: JobSpec, orders: Orders, secrets: Mapping[str, str], log: int) -> None:
    """Start an interpreter for the supervisor."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        with os.fdopen(read):  # our end closes first, so a write to a supervisor that died fails
            process = start_python(
                _MAIN, str(read), dumps(orders), output=log, given=(orders.claim_handle, read)
            )
            if process.wait() != 0:
                stderr = orders.places.job(orders.job_id).stderr
                raise BackendError(f"job {orders.job_id}: its supervisor did not start: see {stderr}")
        pipe.write(json.dumps(_early(job, orders, secrets)).encode())


# Its entry was taken out of the ledger, or cannot be read: a job of which only the ticket is left, which
# must not keep all others from starting.
_GONE = (NotFound, Corrupt)


class Starter:
    """Starts the waiting jobs that have room, in any process that looks at jobs."""

    def __init__(
        self, *, settings: Settings, machine: Machine, ledger: Ledger, resolve: Resolve = from_environment
    ) -> None:
        self.queue = JobQueue(Places(settings.home), machine)
        self._settings = settings
        self._machine = machine
        self._ledger = ledger
        self._resolve = resolve

    def admit(self, *, wait: bool) -> None:
        """Start every waiting job that has room, have room given back, and end those that waited too long."""
        self.queue.admit(self._start, overdue=self._overdue, wait=wait, able=self._able)

    def _start(self, claim: Claim, handle: int) -> bool:
        """Start one supervisor; False where this process lacks a secret: another one will come by."""
        try:
            spec = self._ledger.spec(claim.job_id)
        except _GONE:
            return True  # so its ticket goes
        secrets = self._secrets(spec)
        if secrets is None:
            return False
        try:
            self._launch(spec, claim, handle, secrets)
        except BackendError as error:
            self._end(
                claim.job_id, Cause.BACKEND_ERROR, str(error), "free some processes or memory, run again"
            )
        return True

    def _launch(self, job: JobSpec, claim: Claim, handle: int, secrets: Mapping[str, str]) -> None:
        """Start the supervisor of a claimed job and give it the claim's lock.

        :raises BackendError: the machine can start no process now.
        """
        settings = self._settings
        folder = Places(settings.home).job(claim.job_id)
        try:
            folder.root.mkdir(parents=True, exist_ok=True)
            orders = Orders(
                claim=claim,
                machine=self._machine,
                home=str(settings.home),
                cache=str(settings.cache),
                worker=str(worker_folder(settings.cache)),
                claim_handle=handle,
                compare=settings.compare,
                mirror=settings.mirror,
            )
            with folder.stderr.open("ab") as log:
                if not _forked(job, orders, secrets, log.fileno()):
                    _started(job, orders, secrets, log.fileno())
        except OSError as error:
            raise BackendError(f"job {claim.job_id}: no supervisor can be started ({error})") from error

    def _able(self, job_id: str) -> bool:
        """Whether this process could start a job."""
        try:
            return self._secrets(self._ledger.spec(job_id)) is not None
        except _GONE:
            return False

    def _secrets(self, spec: JobSpec) -> dict[str, str] | None:
        """Return the values of a job's secrets by variable; None where this process lacks one."""
        try:
            return {variable: self._resolve(secret) for variable, secret in spec.secrets.items()}
        except KeyError:
            return None

    def _overdue(self, ticket: Ticket, waited_for: str) -> None:
        try:
            seconds = self._ledger.spec(ticket.job_id).queue_timeout_seconds
        except _GONE:
            return
        waited = f"it waited longer than its queue_timeout of {seconds:.6g} s: {waited_for}"
        self._end(
            ticket.job_id, Cause.QUEUE_TIMEOUT, waited, "raise the timeout, or run it when less else runs"
        )
        Places(self._settings.home).job(ticket.job_id).remove()  # one that was preempted has left some there

    def _end(self, job_id: str, cause: Cause, message: str, advice: str) -> None:
        try:
            status, origin = self._ledger.status(job_id), self._ledger.spec(job_id).origin
        except _GONE:
            return
        verdict = Verdict(cause=cause, message=message, advice=advice).going_on(origin.again)
        record(self._ledger, status, verdict)
