"""Starts a supervisor: detached from whoever started it, holding its job's claim, knowing its secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import muster
from muster.backends.local.machine import Machine
from muster.backends.local.orders import Orders
from muster.backends.local.places import Places
from muster.backends.local.processes import JOB_VARIABLE
from muster.backends.local.queue import Claim
from muster.backends.worker_archive import worker_folder
from muster.core.errors import BackendError
from muster.core.settings import Settings
from muster.core.wire import dumps

# The first thing that a supervisor does is to leave: its parent, which the caller waits for, ends
# before anything heavy is imported, so that the caller is back at once and never has a zombie.
_MAIN = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "sys.path.insert(0, sys.argv[2])\n"
    "from muster.backends.local.supervisor import main\n"
    "main(sys.argv[1])\n"
)


def launch(
    claim: Claim, handle: int, *, settings: Settings, machine: Machine, secrets: Mapping[str, str]
) -> None:
    """Start the supervisor of a claimed job and give it the claim's lock.

    :raises BackendError: the machine can start no process now.
    """
    folder = Places(settings.home).job(claim.job_id)
    folder.root.mkdir(parents=True, exist_ok=True)
    read, write = os.pipe()
    orders = Orders(
        claim=claim,
        machine=machine,
        home=str(settings.home),
        cache=str(settings.cache),
        worker=str(worker_folder(settings.cache)),
        claim_handle=handle,
        secrets_handle=read,
    )
    environment = {name: text for name, text in os.environ.items() if name != JOB_VARIABLE}
    try:
        _spawn(orders, environment, folder.stderr, (handle, read))
        os.write(write, json.dumps(dict(secrets)).encode())
    except OSError as error:
        raise BackendError(f"job {claim.job_id}: no supervisor can be started ({error})") from error
    finally:
        os.close(read)
        os.close(write)


def _spawn(orders: Orders, environment: Mapping[str, str], stderr: Path, handles: tuple[int, int]) -> None:
    root = str(Path(muster.__file__).parent.parent)
    with stderr.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _MAIN, dumps(orders), root],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            pass_fds=handles,
        )
        if process.wait() != 0:
            raise BackendError(f"job {orders.job_id}: its supervisor did not start: see {stderr}")
