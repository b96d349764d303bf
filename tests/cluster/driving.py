"""A process that drives one release on the test cluster, to be killed: ``python -m tests.cluster.driving FILE``.

The file holds a :class:`Task` as JSON. What happens is printed, a line a change, and last how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import deploying, lines
from tests.cluster.inside import layout

from muster.backends.releases.driver import begin
from muster.core.deployment import DeploymentSpec
from muster.core.wire import dumps, loads

BY = "driving"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is released. :param store: where its store lies on the claim."""

    store: str
    spec: DeploymentSpec


@contextmanager
def driven(task: Task, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process that drives it; at the end it is killed, whatever it does. :param folder: for its order and log."""
    order = folder / "task.json"
    order.write_text(dumps(task))
    with (folder / "driving.log").open("ab") as log:
        command = [sys.executable, "-m", __name__, str(order)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def main() -> None:
    """Drive it to its end."""
    order = Path(sys.argv[1])
    task = loads(Task, order.read_text())
    served = deploying.connected(layout(), order.parent, store_folder=task.store)
    driver = begin(served.deployments(), task.spec, lines.STEPS, by=BY, say=_say)
    outcome = lines.finish(driver)
    _say(f"{outcome.ending.value} {outcome.reason}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
