"""Starts a supervisor: detached from whoever started it, holding its job's claim, knowing its secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import muster
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import JOB_VARIABLE
from muster.backends.local.queue import Claim
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


@dataclass(frozen=True, kw_only=True)
class Orders:
    """All that a supervisor is told.

    :param claim_handle: the open file that holds the claim's lock.
    :param secrets_handle: the end of a pipe to read the secrets' values from; they are on no disk.
    """

    claim: Claim
    machine: Machine
    home: str
    cache: str
    claim_handle: int
    secrets_handle: int

    @property
    def job_id(self) -> str:
        """The job to bring to its end."""
        return self.claim.job_id

    @property
    def places(self) -> Places:
        """Where the backend's files lie."""
        return Places(Path(self.home))

    @property
    def settings(self) -> Settings:
        """Those of whoever submitted, as far as a supervisor needs them."""
        return Settings(home=Path(self.home), cache=Path(self.cache))


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
