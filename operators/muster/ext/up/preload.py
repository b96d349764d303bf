"""Airflow, imported once, in the process whose forks are Airflow's processes.

Each of the four imports two thousand modules, for two seconds of CPU, and nine tenths of them are the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

from muster.airflow.embedded.preload import SHARED, import_routes, no_collections, sources
from muster.ext.up import component
from muster.ext.up.components import ForkedComponent
from muster.ext.up.home import UpHome

# What else two of them or more import, at their start or at their first task.
_MODULES = (
    "airflow.__main__",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
    "airflow.dag_processing.manager",
    "airflow.dag_processing.processor",
    "airflow.executors.local_executor",
    "airflow.jobs.triggerer_job_runner",
    "muster.ext.up.waking",
    "uvicorn.main",
)


class PreloadedAirflow:
    """The process that has imported Airflow, and forks.

    :param files: what it has read for that; it forks no more once one has changed since.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._read = time.time()

    def fork(self, words: Sequence[str], log: int) -> ForkedComponent | None:
        """Return a new process that is the Airflow command `words`; None where it must be a program of its own.

        That is where the code is another by now, and where a thread runs that something has started here.

        :param log: an open file for what it prints.
        """
        if len(os.listdir("/proc/self/task")) > 1 or self._stale():  # noqa: PTH208 only their number counts
            return None
        return ForkedComponent(partial(_run, list(words)), log=log)

    def _stale(self) -> bool:
        try:
            return any(file.stat().st_mtime > self._read for file in self._files)
        except OSError:
            return True


def preload(home: UpHome) -> PreloadedAirflow | None:
    """Make this process the home's Airflow, for good; None where it cannot be: a program says better why.

    It has no thread and no open database afterwards, and has read no Dag.
    """
    if "airflow" in sys.modules:  # of another home, perhaps
        return None
    if home.exports():  # Airflow starts OpenTelemetry's threads when it is imported, and no fork has those
        return None
    become(home.environment())
    try:
        with _printed_to(home.log("imports")), no_collections():
            for name in (*SHARED, *_MODULES):
                import_module(name)
            import_routes()
            from sqlalchemy.orm import configure_mappers

            configure_mappers()
    except (Exception, SystemExit):  # each component is a program then, and its log says what is wrong
        return None
    return PreloadedAirflow([home.root / "airflow.cfg", *sources()])


def become(environment: Mapping[str, str]) -> None:
    """Give this process the variables of Airflow's processes."""
    os.environ["SPT_NOENV"] = environment["SPT_NOENV"]
    # It finds the place of the command line, which a fork changes, beside the variables that were there first.
    import_module("setproctitle").getproctitle()
    os.environ.clear()
    os.environ.update(environment)


def _run(words: list[str]) -> None:
    if (here := str(Path.cwd())) not in sys.path:  # as for a program that is started with -m
        sys.path.insert(0, here)
    component.main(words)


@contextmanager
def _printed_to(file: Path) -> Iterator[None]:
    """Have what this process and its libraries print in the block written to a file: the screen is a person's."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(handle) for handle in (1, 2)]
    with file.open("wb") as to:
        for handle in (1, 2):
            os.dup2(to.fileno(), handle)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for handle, kept in enumerate(before, 1):
            os.dup2(kept, handle)
            os.close(kept)
