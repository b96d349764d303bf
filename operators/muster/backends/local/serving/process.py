"""Processes of a model server's environment: none outlives keeper and guardian, or inherits a variable of the deployer."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from muster.backends.local.variables import NO_TELEMETRY
from muster.core.deployment import DeploymentSpec
from muster.core.errors import DeploymentError
from muster.core.interpreters import python_command
from muster.core.linux import die_with, die_without, signal_name
from muster.core.shipped import shipped

GIB = 1 << 30

LOG_BYTES = 16 << 20
UNKNOWN = 1 << 16  # no exit code
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")


class Adopted:
    """A process that an earlier keeper started: how it ended the kernel tells none but that one.

    :param handle: its pidfd.
    """

    def __init__(self, handle: int, pid: int) -> None:
        self.handle = handle
        self.pid = pid

    def poll(self) -> int | None:
        """Return None while it runs, and then :data:`UNKNOWN`."""
        return UNKNOWN if select.select([self.handle], [], [], 0)[0] else None

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has ended. :raises subprocess.TimeoutExpired: it has not in time."""
        if not select.select([self.handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("the model server", timeout or 0.0)


def start(
    words: list[str],
    python: Path,
    log: Path,
    *,
    fds: tuple[int, ...] = (),
    leash: int | None = None,
    memory_gib: float | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``python -m words``.

    :param leash: a pipe whose other end it does not outlive; None: it does not outlive this process.
    :raises DeploymentError: it cannot be started.
    """
    try:
        keep_short(log)
        with log.open("ab") as out:
            return subprocess.Popen(
                python_command("-m", *words, of=python),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment_variables(),
                pass_fds=(*fds, *([] if leash is None else [leash])),
                preexec_fn=_dying_with(os.getpid(), leash, memory_gib=memory_gib),
            )
    except OSError as error:
        raise DeploymentError(f"the model server cannot be started: {error}") from error


def try_apart(
    spec: DeploymentSpec,
    python: Path,
    model: Path,
    folder: Path,
    *,
    revision: str,
    deadline: float,
    setup: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Load a version and ask it the smoke requests in a process of its own, which may crash; yield meanwhile.

    :param folder: the deployment's, for what the process is given and what it says.
    :param setup: how its workers run; None for an ONNX model.
    :raises DeploymentError: it crashes, does not load or does not answer in time.
    """
    asked, log = folder / f"trial-{revision}.json", folder / f"trial-{revision}.log"
    requests = [
        {"name": smoke.name, "inputs": {name: list(column) for name, column in smoke.inputs.items()}}
        for smoke in spec.smoke
    ]
    trial = None
    try:
        asked.write_text(json.dumps(requests), encoding="utf-8")
        log.unlink(missing_ok=True)
        words = ["muster_serving.trial", str(model), str(asked)]
        memory_gib: float | None = spec.resources.memory_gib
        if setup is not None:
            one = {"workers": 1, "memory_gib": spec.resources.memory_gib / setup["workers"]}
            words.append(json.dumps({**setup, **one}))
            memory_gib = None  # its worker limits itself
        trial = start(words, python, log, memory_gib=memory_gib)
        while trial.poll() is None:
            if time.monotonic() > deadline:
                seconds = spec.load_timeout_seconds
                raise DeploymentError(f"it was not loaded and tried within {seconds:g} s (load_timeout)")
            yield
        if trial.returncode < 0:
            raise DeploymentError(f"loading it ended a process by {signal_name(-trial.returncode)}")
        if trial.returncode:
            raise DeploymentError(last_line(log) or f"a trial load ended with exit code {trial.returncode}")
    finally:
        if trial:
            trial.kill()
            trial.wait()
        for path in (asked, log):
            path.unlink(missing_ok=True)


def limit_memory(pid: int, memory_gib: float) -> None:
    """Let a process have so much and no more: what does not fit is refused, the rest goes on."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, (int(memory_gib * GIB), hard))


def keep_short(log: Path) -> None:
    """Empty a log that has become too long; its writers append."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_BYTES:
            os.truncate(log, 0)


def log_end(log: Path) -> int:
    """Return how many bytes a log has."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def last_line(log: Path, *, after: int = 0) -> str:
    """Return the last line of a log that says something.

    :param after: how many bytes it had when what may say something began; where it has fewer now, it was emptied since.
    """
    try:
        text = log.read_bytes()
    except FileNotFoundError:
        return ""
    lines = text[after if after <= len(text) else 0 :][-4096:].decode(errors="replace").splitlines()
    return next((line.strip()[:2000] for line in reversed(lines) if line.strip()), "")


def environment_variables() -> dict[str, str]:
    """Return what a server may know of ours: no setting and no secret of the process that deployed it."""
    ours = {"PYTHONPATH": str(shipped("serving")), "PYTHONUNBUFFERED": "1"}
    return chosen_variables(INHERITED) | NO_TELEMETRY | ours


def chosen_variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of these variables that are set here."""
    return {name: os.environ[name] for name in names if name in os.environ}


def _dying_with(parent: int, leash: int | None, *, memory_gib: float | None) -> Callable[[], None]:
    def between_fork_and_exec() -> None:
        if leash is None:
            die_with(parent)
        else:
            die_without(leash)
        if memory_gib is not None:
            limit = int(memory_gib * GIB)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return between_fork_and_exec
