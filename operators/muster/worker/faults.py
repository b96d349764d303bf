"""Finds which rank was at fault, and what it said, among all that ended badly."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.verdict import Cause, ExitCode, Verdict
from muster.worker.ranks import TRACE_START, Rank

TRACE_LINES = 15

EXIT_CODES = {
    Cause.USER_ERROR: ExitCode.USER_ERROR,
    Cause.SPEC_ERROR: ExitCode.SPEC_ERROR,
    Cause.HANG: ExitCode.HANG,
    Cause.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Cause.GPU_OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Cause.RANK_LOST: ExitCode.RANK_LOST,
    Cause.COMMIT_FAILED: ExitCode.SEAL_FAILED,
    Cause.CANCELLED: ExitCode.STOPPED,
}

_LOST_PEER = (
    "gloo/transport",
    "Connection closed by peer [",
    "connectFullMesh",
    "NCCL error",
    "DistBackendError",
    "DistNetworkError",
    "ProcessGroupNCCL",
    "ProcessGroupGloo",
    "HorovodInternalError",
    "Horovod has been shut down",
)
_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "OutOfMemoryError: HIP out of memory")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How one rank failed. A follower failed only because a peer was gone, or was told to stop."""

    rank: int
    cause: Cause
    message: str
    traceback: tuple[str, ...]
    at: float
    follower: bool
    where: str = ""

    @property
    def verdict(self) -> Verdict:
        """What a task's log ends with."""
        return Verdict(cause=self.cause, message=self.message, advice=self._advice, rank=self.rank)

    @property
    def _advice(self) -> str:
        module = _missing_module(self.message)
        if module:
            return f"add {module} to the image's requirements.in and make its lock again, or mend the import"
        place = f" at {self.where}" if self.where else ""
        return _ADVICE[self.cause].format(place=place)


_ADVICE = {
    Cause.USER_ERROR: "mend the code{place} and run again; earlier stages are kept",
    Cause.SPEC_ERROR: "mend the Dag or the entrypoint; asking again cannot help",
    Cause.HANG: "see the stacks above{place}; a rank may wait in a collective that another never enters",
    Cause.OUT_OF_MEMORY: "give the stage more memory_gib or hold less at once{place}",
    Cause.GPU_OUT_OF_MEMORY: "make the batch smaller{place} or ask for a GPU class with more memory",
    Cause.RANK_LOST: "the gang starts again from its checkpoint; if it happens again, look for kill -9 or memory",
}


def faults(ranks: Sequence[Rank], *, hung: bool, world_size: int) -> list[Fault]:
    """Every rank's fault, the culprit first: who failed by itself before who followed, then by time."""
    found = [_fault(rank, hung=hung, world_size=world_size) for rank in ranks if rank.status]
    return sorted(found, key=lambda fault: (fault.follower, fault.at, fault.rank))


def lost_peer(rank: Rank) -> bool:
    """Whether a rank that ended badly says only that a peer is gone."""
    return _is_lost_peer(_said(rank)["message"])


def _fault(rank: Rank, *, hung: bool, world_size: int) -> Fault:
    said = _said(rank)
    by_signal = -rank.status if rank.status is not None and rank.status < 0 else 0
    at = float(said.get("at") or rank.traced or rank.ended)
    followed = rank.stopped is not None and (not said["message"] or at > rank.stopped)
    lost = world_size > 1 and _is_lost_peer(said["message"])
    return Fault(
        rank=rank.number,
        cause=Cause.HANG if hung else Cause.RANK_LOST if lost else _cause(said, by_signal),
        message=said["message"] or _ending(rank.status or 0),
        traceback=tuple(said["traceback"]),
        at=at,
        follower=not hung and (followed or lost),
        where=said.get("where", ""),
    )


def _cause(said: dict[str, Any], by_signal: int) -> Cause:
    message = said["message"]
    if said.get("kind") == "spec error":
        return Cause.SPEC_ERROR
    if any(text in message for text in _GPU_MEMORY):
        return Cause.GPU_OUT_OF_MEMORY
    if message.startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError", "_ArrayMemoryError")):
        return Cause.OUT_OF_MEMORY
    if by_signal in (signal.SIGKILL, signal.SIGTERM) and not message:
        return Cause.RANK_LOST
    return Cause.USER_ERROR


def _said(rank: Rank) -> dict[str, Any]:
    """What the rank left: its outcome, what @record wrote, or the last traceback among its lines."""
    for read in (_outcome, _recorded, _printed):
        said = read(rank)
        if said is not None:
            return said
    return {"message": "", "traceback": []}


def _outcome(rank: Rank) -> dict[str, Any] | None:
    outcome = read_json(rank.plan.outcome)
    return {"traceback": [], **outcome} if outcome and outcome.get("kind") != "done" else None


def _recorded(rank: Rank) -> dict[str, Any] | None:
    document = read_json(rank.plan.error_file)
    told = document.get("message") if document else None
    if not isinstance(told, dict):
        return None
    extra = told.get("extraInfo") or {}
    lines = str(extra.get("py_callstack", "")).rstrip("\n").split("\n")
    lines = [line for line in lines if line]
    # @record writes whole seconds, too coarse to tell who was first: the traceback's line says better
    return {
        "message": str(told.get("message", "")),
        "traceback": _bounded(lines),
        "at": rank.traced,
        "where": _place(lines),
    }


def _printed(rank: Rank) -> dict[str, Any] | None:
    lines = list(rank.tail)
    starts = [i for i, line in enumerate(lines) if line.startswith((TRACE_START, "Fatal Python error: "))]
    if not starts:
        return None
    block = lines[starts[-1] :]
    if block[0].startswith("Fatal"):
        crash = block[: TRACE_LINES + 1]
        return {"message": block[0], "traceback": crash, "at": None, "where": _place(reversed(crash))}
    end = next(
        (i for i, line in enumerate(block[1:], 1) if line and not line.startswith(" ")), len(block) - 1
    )
    return {
        "message": block[end],
        "traceback": _bounded(block[: end + 1]),
        "at": rank.traced,
        "where": _place(block[:end]),
    }


def _bounded(lines: Sequence[str]) -> list[str]:
    if len(lines) <= TRACE_LINES:
        return list(lines)
    return [*lines[:1], "  …", *lines[2 - TRACE_LINES :]]


def _place(lines: Any) -> str:
    place = ""
    for line in lines:
        parts = line.strip().split('"')
        if line.strip().startswith("File ") and len(parts) > 2 and "site-packages" not in parts[1]:
            number = parts[2].removeprefix(", line ").split(",")[0].split(" ")[0]
            place = f"{parts[1]}:{number}" if number.isdigit() else place
    return place


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status} and no traceback"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        return f"killed by {name} (kill -9, or the kernel for want of memory)"
    return f"killed by {name} ({signal.strsignal(-status)})"


def _is_lost_peer(message: str) -> bool:
    return any(text in message for text in _LOST_PEER)


def _missing_module(message: str) -> str:
    head = "ModuleNotFoundError: No module named "
    return (
        message.removeprefix(head).split(";")[0].strip("'\"").split(".")[0]
        if message.startswith(head)
        else ""
    )


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in a file that a rank wrote, or None where there is none or it is torn."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
