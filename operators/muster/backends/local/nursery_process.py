"""The program of a nursery (:mod:`muster.backends.local.nursery`): it imports what supervisors need, and forks them."""

from __future__ import annotations

import gc
import os
import signal
import socket
from dataclasses import replace
from functools import partial

from muster.backends.local import start  # noqa: F401 a supervisor imports it at its end
from muster.backends.local.nursery import READY
from muster.backends.local.orders import Orders
from muster.backends.local.spawn import spawn_early
from muster.backends.local.supervisor import Supervisor
from muster.core.forking import do_and_end, take_streams
from muster.core.linux import die_with
from muster.core.wire import loads


def serve(handle: int, parent: int) -> None:
    """Fork for each process that asks, until none is left that could ask: the whole program of the nursery.

    :param parent: the process that opened the nursery, and with which it dies.
    """
    die_with(parent)
    os.setsid()  # Ctrl-C is the run's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the forks
    gc.freeze()
    with socket.socket(fileno=handle) as asked:
        asked.set_inheritable(False)
        asked.send(READY)
        while True:
            word, handles, _, _ = socket.recv_fds(asked, 1, 3, socket.MSG_CMSG_CLOEXEC)
            if not word:
                return
            if os.fork() == 0:
                asked.close()
                do_and_end(partial(_become, *handles), registered=False)
            for each in handles:
                os.close(each)


def _become(line: int, claim: int, log: int) -> None:
    """Be what a supervisor is that was started without a nursery."""
    if os.fork():  # no child of ours: who ends the run with all of its descendants does not end its jobs
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    take_streams(log)
    os.close(log)
    os.write(line, READY)
    told, workers = spawn_early(line)
    os.environ.clear()
    os.environ.update(told["variables"])
    orders = replace(loads(Orders, told["orders"]), claim_handle=claim)
    Supervisor(orders, told["secrets"], workers).run()
