"""Starts and stops the cluster's programs, each in a control group that is called as it is.

A program has no parent: the process that started it may end, or be killed, and the program stays in its group.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import groups
from tests.cluster.layout import Layout

from muster.core.errors import BackendError

_LOOK_SECONDS = 0.05
_LAST_LINES = 15
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# $0 is the group's file; the process enters it before it becomes another.
_ENTER = 'echo $$ > "$0" && exec setsid --fork "$@"'


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """One program.

    :param name: also that of its group and its log; one on a node is called ``NODE.PROGRAM``.
    :param namespaces: options of nsenter.
    :param environment: all of it, but for PATH.
    :param ready: whether it does its work by now.
    """

    name: str
    command: tuple[str | Path, ...]
    ready: Callable[[], bool]
    namespaces: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def start(layout: Layout, daemon: Daemon) -> None:
    """Start a program unless it runs."""
    if running(layout, daemon.name):
        return
    layout.logs.mkdir(parents=True, exist_ok=True)
    command = [str(word) for word in ("nsenter", *daemon.namespaces, "--", *daemon.command)]
    with _log(layout, daemon.name).open("ab") as log:
        subprocess.run(
            ["sh", "-c", _ENTER, groups.register(layout.group(daemon.name)), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": _PATH, "HOME": str(layout.root), **daemon.environment},
            cwd="/",
            check=True,
        )


def wait(layout: Layout, daemon: Daemon, *, seconds: float = 240) -> None:
    """Return when a program does its work.

    :raises BackendError: it ended, or is not ready in time; with the last lines of its log.
    """
    deadline = time.monotonic() + seconds
    while not daemon.ready():
        ended = not running(layout, daemon.name)
        if ended or time.monotonic() > deadline:
            said = "it ended" if ended else f"not ready after {seconds:.0f} s"
            log = _log(layout, daemon.name)
            raise BackendError(f"{daemon.name}: {said}. {log}:\n{_tail(log)}")
        time.sleep(_LOOK_SECONDS)


def stop(layout: Layout, name: str) -> None:
    """Kill a program and what it started; one that does not run is fine."""
    groups.kill(layout.group(name))
    groups.remove(layout.group(name))


def running(layout: Layout, name: str) -> list[int]:
    """Return the processes of a program."""
    return groups.pids(layout.group(name))


def _log(layout: Layout, name: str) -> Path:
    return layout.logs / f"{name}.log"


def _tail(log: Path) -> str:
    with log.open(errors="replace") as lines:
        return "".join(deque(lines, maxlen=_LAST_LINES)).rstrip()
