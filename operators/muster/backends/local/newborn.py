"""A supervisor that a nursery has forked: it is told what it is, and brings its job to its end."""

from __future__ import annotations

import os
from dataclasses import replace

from muster.backends.local import start  # noqa: F401 a supervisor imports it at its end
from muster.backends.local.orders import Orders
from muster.backends.local.spawn import spawn_early
from muster.backends.local.supervisor import Supervisor
from muster.core.wire import loads


def begin(line: int, claim: int) -> None:
    """Take over the variables of the process that asked for this supervisor, and work."""
    told, workers = spawn_early(line)
    os.environ.clear()
    os.environ.update(told["variables"])
    orders = replace(loads(Orders, told["orders"]), claim_handle=claim)
    Supervisor(orders, told["secrets"], workers).run()
