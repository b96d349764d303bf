"""Finds the rank at fault among those that failed, and the cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.advice import advice_on
from muster.core.room import make_room
from muster.core.verdict import SEEN_LATE_SECONDS, Cause, ExitCode, Verdict
from muster.worker.last_words import LastWords, last_line, last_words, read_json, stack
from muster.worker.ranks import Rank

EXIT_CODES = {
    Cause.USER_ERROR: ExitCode.USER_ERROR,
    Cause.SPEC_ERROR: ExitCode.SPEC_ERROR,
    Cause.HANG: ExitCode.HANG,
    Cause.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Cause.GPU_OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Cause.RANK_LOST: ExitCode.RANK_LOST,
    Cause.DISK_FULL: ExitCode.SEAL_FAILED,  # for the backend both are the same: not the rank's fault
    Cause.COMMIT_FAILED: ExitCode.SEAL_FAILED,
    Cause.CANCELLED: ExitCode.STOPPED,
}

# Errors of gloo, NCCL, c10d and Horovod for a peer that is gone. Python's own ConnectionError is not
# among them: an author's download may raise it.
_LOST_PEER = (
    "gloo/transport",
    "Connection closed by peer [",
    "connectFullMesh",
    "NCCL error",
    "DistBackendError",
    "DistNetworkError",
    "ProcessGroupNCCL",
    "ProcessGroupGloo",
    "Watchdog caught collective operation timeout",
    "HorovodInternalError",
    "Horovod has been shut down",
)
_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "HIP out of memory")
# Errors of torch, CUDA and JAX where there is no card, or none that the process may use.
_NO_GPU = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "no CUDA-capable device is detected",
    "CUDA driver version is insufficient",
    "torch.cuda.is_available() is False",
)
_TOO_FEW_GPUS = "invalid device ordinal"
_MEMORY = (
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
)
_JVM_MEMORY = "java.lang.OutOfMemoryError"
_SHUTDOWN = " while Python was shutting down"
_BARE_EXIT = re.compile(r"SystemExit: \d+\Z")
_MODULE = "ModuleNotFoundError: No module named "


@dataclass(frozen=True, kw_only=True)
class WorkerFault:
    """How one rank failed.

    :param at: when, in seconds since the epoch.
    :param follower: it failed only because a peer is gone, or after it was told to stop.
    :param printed: the rank printed its traceback itself.
    :param advice: what to do about it, where the cause's general advice does not fit.
    """

    rank: int | None
    cause: Cause
    message: str
    at: float
    traceback: tuple[str, ...] = ()
    where: str = ""
    follower: bool = False
    printed: bool = False
    advice: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict that ends a task's log."""
        usual = make_room() if self.cause is Cause.DISK_FULL else advice_on(self.cause, where=self.where)
        advice = self.advice or usual
        if self.message.startswith(_MODULE):
            name = self.message.removeprefix(_MODULE).strip("'").split("'")[0].split(".")[0]
            advice = f"add {name} to the image's requirements.in and lock it again, or mend the import"
        elif _TOO_FEW_GPUS in self.message:
            advice = (
                "the code wants a GPU that its replica does not have: give its task resources=Resources(gpus=N), a GPU for each "
                "of its ranks, and let the code take the one of its LOCAL_RANK"
            )
        elif any(text in self.message for text in _NO_GPU):
            advice = (
                "the code wants a GPU: give its task resources=Resources(gpus=1), and an image whose libraries are built "
                "for CUDA; `muster gpus` shows what there is"
            )
        elif _JVM_MEMORY in self.message:
            advice = (
                "the JVM of Spark's driver has half of its replica's memory: collect less of it into the driver, or give its task "
                "resources=Resources(memory_gib=…) of more"
            )
        elif _SHUTDOWN in self.message:
            advice = (
                "its code had run to the end, and libraries crash there at times (torch does): call "
                "torch.distributed.destroy_process_group() last, or os._exit(0) once all is written"
            )
        return Verdict(cause=self.cause, message=self.message, advice=advice, rank=self.rank)


def faults(ranks: Sequence[Rank], *, world_size: int) -> list[WorkerFault]:
    """Return every rank's fault, the culprit first: own failures before followers, each by time."""
    found = [_fault(rank, world_size=world_size) for rank in ranks if rank.status or _vanished(rank)]
    return sorted(found, key=lambda fault: (fault.follower, fault.at))


def hang(ranks: Sequence[Rank], *, seconds: float) -> WorkerFault:
    """Return the fault of a hang: where each rank was when all had been silent for `seconds`."""
    stacks = [(rank, stack(rank)) for rank in ranks]
    places = [f"rank {rank.number} at {words.where}" for rank, words in stacks if words.where]
    return WorkerFault(
        rank=ranks[0].number if len(ranks) == 1 else None,
        cause=Cause.HANG,
        message=f"no line and no progress for {seconds:g} s: {', '.join(places[:8]) or 'no stack is known'}",
        at=min(rank.ended for rank in ranks),
        traceback=next((words.traceback for _, words in stacks if words.where), ()),
        printed=True,
    )


def lost_head(at: float, status: int) -> WorkerFault:
    """Return the fault of an engine's head that ended under a driver that runs."""
    names = {number.value: number.name for number in signal.Signals}
    how = f"exit status {status}" if status > 0 else f"killed by {names.get(-status, f'signal {-status}')}"
    return WorkerFault(
        rank=None,
        cause=Cause.RANK_LOST,
        message=f"the engine's head ended ({how}) while the driver ran",
        at=at - SEEN_LATE_SECONDS,
    )


def lost_peer(rank: Rank) -> bool:
    """Whether a failed rank reports only that a peer is gone."""
    return names_lost_peer(last_words(rank).message)


def names_lost_peer(message: str) -> bool:
    """Whether a rank's last words say that a peer is gone."""
    return any(text in message for text in _LOST_PEER)


def _fault(rank: Rank, *, world_size: int) -> WorkerFault:
    said = last_words(rank)
    if rank.status == -signal.SIGKILL and rank.stopped is None and not said.kind:
        said = LastWords()  # its earlier output is not the reason it was killed
    lost = world_size > 1 and names_lost_peer(said.message)
    late = SEEN_LATE_SECONDS if rank.stopped is None and _was_killed(rank, said) else 0.0
    at = said.at or rank.traced or rank.ended - late
    stopped = rank.stopped is not None and (not said.message or at > rank.stopped)
    return WorkerFault(
        rank=rank.number,
        cause=Cause.RANK_LOST if lost else _cause(rank, said),
        message=_message(rank, said),
        at=at,
        traceback=said.traceback,
        where=said.where,
        advice=said.advice,
        follower=lost or stopped,
        printed=said.printed,
    )


def _message(rank: Rank, said: LastWords) -> str:
    status = rank.status or 0
    if said.kind == "shutdown":
        return f"{_ending(status)}{_SHUTDOWN}" + (f": {said.message}" if said.message else "")
    if said.message and not _BARE_EXIT.match(said.message):
        return said.message
    if status > 0 and (line := last_line(rank)):
        return f"{said.message or f'ended with exit status {status}'}; its last line: {line}"
    return said.message or _ending(status)


def _cause(rank: Rank, said: LastWords) -> Cause:
    if said.kind == "spec error":
        return Cause.SPEC_ERROR
    if any(text in said.message for text in _GPU_MEMORY):
        return Cause.GPU_OUT_OF_MEMORY
    if said.message.startswith(_MEMORY) or _JVM_MEMORY in said.message:
        return Cause.OUT_OF_MEMORY
    return Cause.RANK_LOST if _was_killed(rank, said) else Cause.USER_ERROR


def _was_killed(rank: Rank, said: LastWords) -> bool:
    return rank.status in (-signal.SIGKILL, -signal.SIGTERM) and not said.message


def _vanished(rank: Rank) -> bool:
    """Whether an entrypoint's process ended well before its function returned: os._exit, exit() in C."""
    return rank.plan.arguments is None and rank.status == 0 and read_json(rank.plan.outcome) is None


def _ending(status: int) -> str:
    if status == 0:
        return "ended with exit status 0 before its entrypoint returned (os._exit, or exit in a library)"
    if status > 0:
        return f"ended with exit status {status} and no traceback"
    if status == -signal.SIGKILL:
        return "killed by SIGKILL (kill -9, or the kernel for want of memory)"
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-status, f'signal {-status}')} ({signal.strsignal(-status)})"
