"""Reports of a pod's end for its termination message, also where the worker left none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from muster.core.advice import advice_on
from muster.core.masking import Masking
from muster.core.replica import Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps
from muster.worker.faults import EXIT_CODES

TERMINATION_BYTES = 4096  # the most a kubelet reads

# The memory events of this container's control group; versions 2 and 1 of cgroups.
_OOM_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def failed(cause: Cause, message: str, *, rank: int | None = None, at: float = 0.0) -> Report:
    """Return a report that the worker did not write."""
    verdict = Verdict(cause=cause, message=message, advice=advice_on(cause), rank=rank)
    return Report(exit_code=EXIT_CODES[cause], verdict=verdict, at=at or time.time())


def killed(name: str, status: int) -> Report:
    """Return the report of a replica whose worker left none.

    :param name: the replica's name.
    :param status: the worker's exit code, or minus the number of the signal that ended it.
    """
    if status in set(ExitCode) - {ExitCode.SEALED}:
        return Report(exit_code=ExitCode(status), at=time.time())
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    return failed(Cause.RANK_LOST, f"the worker of {name} {how}")


def termination_message(report: Report, masking: Masking) -> str:
    """Return a report as JSON without secrets and results, its traceback cut to what a kubelet reads."""
    return dumps(told(report, masking))


def told(report: Report, masking: Masking) -> Report:
    """Return a report without secrets and results, its traceback cut to what a kubelet reads."""
    verdict = report.verdict
    if verdict is not None:
        said, advice = masking.text(verdict.message), masking.text(verdict.advice)
        verdict = replace(verdict, message=said, advice=advice)
    lines = tuple(masking.text(line) for line in report.traceback)
    while True:
        cut = replace(report, verdict=verdict, traceback=lines, metrics={}, modules=None)
        if len(dumps(cut).encode("utf-8", "replace")) <= TERMINATION_BYTES or not lines:
            return cut
        lines = lines[1:]


def oom_kills(files: Sequence[str] = _OOM_COUNTS) -> int:
    """Return how many processes of this container the kernel has killed because its memory limit was reached."""
    for path in files:
        with suppress(OSError), open(path, encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0
