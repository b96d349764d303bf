"""Finds the rank at fault among those that failed, and the cause.

=========================================  ===========  ===================  ==============
how a rank, a role or a head ends          cause        rank at fault        starts again
=========================================  ===========  ===================  ==============
it raises, or ends with another status     user error   that rank            no
it dies of a signal such as SIGSEGV        user error   that rank            no
SIGKILL or SIGTERM that muster never sent  rank lost    that rank            yes
status 0 while others wait for it:
they complain of a lost peer               user error   the rank that left   no
they hang, and the launcher joins them     user error   the rank that left   no
they hang, and nothing joins them          hang         the one that hangs   yes
an entrypoint's os._exit(0)                user error   that rank            no
all complain of a peer, and none is gone   rank lost    the first that did   yes
all hang                                   hang         none                 yes
a head fails, then its driver              rank lost    none                 yes
a driver fails, and its head lives         user error   the driver, rank 0   no
a head ends with status 0 (the driver's    as the       the driver, rank 0   no
``client.shutdown()``)                     driver ends
the role that this one ends with succeeds  none         none: told to stop   no
=========================================  ===========  ===================  ==============

:mod:`tests.unit.worker.test_ends` plays each line.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from muster.core.advice import advice_on, missing_package
from muster.core.job import Launcher, Role
from muster.core.linux import signal_name
from muster.core.replica import Replica
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
# Errors of ranks that wait for one that never comes: of a peer where one has left, of the author where all are there.
_WAITED = ("DistStoreError", "Barrier timed out", "errors_impl.UnavailableError")
_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "HIP out of memory")
# Errors of torch, CUDA and JAX where there is no card, or none that the process may use.
_NO_GPU = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "no CUDA-capable device is detected",
    "CUDA driver version is insufficient",
    "torch.cuda.is_available() is False",
    "no GPUs found",  # ProcessGroupNCCL
    "requires at least one CUDA device",
)
_TOO_FEW_GPUS = "invalid device ordinal"
_MEMORY = (
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
)
_JVM_MEMORY = "java.lang.OutOfMemoryError"
_STAY = (
    "every rank has to take part until all are done: give each the same number of steps (drop the last uneven batch, or "
    "torch's Join), or have all of them agree to stop; then run again"
)
_DASK = (
    "this gang is the cluster, and replicas= says how many workers it has: write Client() without n_workers and the like; or let a JobOperator "
    "run the script as it is, with a cluster of processes in one replica"
)
_SHARED = (
    "all replicas write into one {checkpoints}, and another one may have renamed the file: save where RANK is 0 (LOCAL_RANK is 0 in each replica), "
    "or below {checkpoints}/$RANK; then run again"
)
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
        if _TOO_FEW_GPUS in self.message:
            advice = (
                "the code wants a GPU that its replica does not have: give its task resources=Resources(gpus=N), a GPU for each "
                "of its ranks, and let the code take the one of its LOCAL_RANK"
            )
        elif any(text in self.message for text in _NO_GPU):
            advice = (
                "the code wants a GPU: give its task resources=Resources(gpus=1), and an image whose libraries are built "
                "for CUDA; `muster gpus` shows what there is. Without one torch.distributed wants the backend gloo, not nccl"
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


@dataclass(frozen=True, kw_only=True)
class Left:
    """A rank that ended with status 0 by itself, and when; of another replica its first one, when all of them had."""

    rank: int
    at: float

    def fault(self, waited: str, at: float) -> WorkerFault:
        """Return its fault, where the others could not go on without it.

        :param waited: who did, and what came of it.
        :param at: when that was seen: what fails before explains it better.
        """
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))
        return WorkerFault(
            rank=self.rank,
            cause=Cause.USER_ERROR,
            message=f"ended with exit status 0 at {when}, while {waited}",
            at=at,
            advice=_STAY,
        )


def advised(fault: WorkerFault, replica: Replica) -> WorkerFault:
    """Return a fault with the advice that follows from its job."""
    if fault.message.startswith(_MODULE):
        name = fault.message.removeprefix(_MODULE).strip("'").partition("'")[0]
        return replace(fault, advice=missing_package(name, replica.spec))
    if replica.spec.launcher is Launcher.DASK and "Unexpected keyword arguments" in fault.message:
        return replace(fault, advice=_DASK)
    if (
        replica.spec.replicas > 1
        and "FileNotFoundError" in fault.message
        and replica.checkpoints in fault.message
    ):
        return replace(fault, advice=_SHARED)
    return fault


def first_left(replica: Replica, ranks: Sequence[Rank]) -> Left | None:
    """Return the rank of the gang that was the first to end well while one of these did not; None where there is none."""
    here = [Left(rank=rank.number, at=rank.ended) for rank in ranks if not failed(rank) and not rank.stopped]
    elsewhere, first = list[Left](), 0
    for role in replica.spec.roles:
        for index in range(role.replicas):
            ended = (
                None if replica.spec.launcher.drives else _changed(_ended(replica.seal_of(role.name, index)))
            )
            if ended is not None:
                elsewhere.append(Left(rank=first, at=ended))
            first += role.ranks
    return min([*here, *elsewhere], key=lambda left: left.at, default=None)


def tell_ended(replica: Replica) -> None:
    """Leave word that all ranks of this replica have ended well, which other replicas may not wait for; it may take long to seal."""
    if replica.spec.replicas > 1:
        with suppress(OSError):  # a full disk is told by what comes next
            open(_ended(replica.sealed), "x").close()


def _ended(seal: str) -> str:
    return f"{seal}.ended"


def sealed_at(replica: Replica, role: Role) -> float | None:
    """Return when the last replica of a role has ended well, or None where one has not."""
    times = [_changed(replica.seal_of(role.name, index)) for index in range(role.replicas)]
    known = [at for at in times if at is not None]
    return max(known) if len(known) == len(times) else None


def _changed(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def faults(ranks: Sequence[Rank], *, world_size: int, left: Left | None = None) -> list[WorkerFault]:
    """Return every rank's fault, the culprit first: own failures before followers, each by time.

    :param left: it is the culprit where all others only miss a peer.
    """
    missed = (*_LOST_PEER, *_WAITED) if left is not None else _LOST_PEER
    found = [_fault(rank, world_size=world_size, missed=missed) for rank in ranks if failed(rank)]
    found.sort(key=lambda fault: (fault.follower, fault.at))
    if left is not None and found and found[0].follower and _names(found[0].message, missed):
        first = found[0]
        where = f" at {first.where}" if first.where else ""
        found.insert(
            0, left.fault(f"rank {first.rank} still waited for it{where}: {first.message}", first.at)
        )
    return found


def hang(
    ranks: Sequence[Rank], *, seconds: float, left: Left | None = None, joined: bool = False
) -> WorkerFault:
    """Return the fault of a hang: where each rank was when all had been silent for `seconds`.

    :param left: it is the culprit where the ranks are `joined`, and is told of where they are not.
    """
    there = [rank for rank in ranks if failed(rank) or rank.stopped is not None]
    stacks = [(rank, stack(rank)) for rank in there]
    places = [f"rank {rank.number} at {words.where}" for rank, words in stacks if words.where]
    message = f"no line and no progress for {seconds:g} s: {', '.join(places[:8]) or 'no stack is known'}"
    if left is not None and joined:
        return replace(left.fault(f"others still waited for it: {message}", left.at), printed=True)
    more = "" if left is None else f"; rank {left.rank} had ended well before"
    return WorkerFault(
        rank=there[0].number if len(there) == 1 else None,
        cause=Cause.HANG,
        message=message + more,
        at=min(rank.ended for rank in there),
        traceback=next((words.traceback for _, words in stacks if words.where), ()),
        printed=True,
    )


def lost_head(at: float, status: int) -> WorkerFault:
    """Return the fault of an engine's head that ended under a driver that runs.

    :param at: a time at which it still ran: what its driver said later may come of its end.
    """
    how = f"exit status {status}" if status > 0 else f"killed by {signal_name(-status)}"
    return WorkerFault(
        rank=None,
        cause=Cause.RANK_LOST,
        message=f"the engine's head ended ({how}) while the driver ran",
        at=at,
    )


def only_miss(ranks: Sequence[Rank]) -> bool:
    """Whether each of these ranks that failed by itself misses a peer, and all there is to blame is elsewhere."""
    blamed = [rank for rank in ranks if failed(rank) and rank.stopped is None]
    return bool(blamed) and all(_names(last_words(rank).message, (*_LOST_PEER, *_WAITED)) for rank in blamed)


def lost_peer(rank: Rank) -> bool:
    """Whether a failed rank reports only that a peer is gone."""
    return names_lost_peer(last_words(rank).message)


def names_lost_peer(message: str) -> bool:
    """Whether a rank's last words say that a peer is gone."""
    return _names(message, _LOST_PEER)


def _names(message: str, texts: Sequence[str]) -> bool:
    return any(text in message for text in texts) and not any(text in message for text in _NO_GPU)


def _fault(rank: Rank, *, world_size: int, missed: Sequence[str]) -> WorkerFault:
    said = last_words(rank)
    if rank.status == -signal.SIGKILL and rank.stopped is None and not said.kind:
        said = LastWords()  # its earlier output is not the reason it was killed
    lost = world_size > 1 and _names(said.message, missed)
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
    if said.message == "AssertionError":
        code = [line.strip() for line in said.traceback if line.startswith("    ") and line.strip(" ^~")]
        return f"AssertionError: {code[-1]}" if code else said.message
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


def failed(rank: Rank) -> bool:
    """Whether a rank that has ended failed.

    So does an entrypoint's process that ends with status 0 before its function has returned: os._exit, exit() in C.
    """
    return bool(rank.status) or (rank.plan.arguments is None and read_json(rank.plan.outcome) is None)


def _ending(status: int) -> str:
    if status == 0:
        return "ended with exit status 0 before its entrypoint returned (os._exit, or exit in a library)"
    if status > 0:
        return f"ended with exit status {status} and no traceback"
    if status == -signal.SIGKILL:
        return "killed by SIGKILL (kill -9, or the kernel for want of memory)"
    return f"killed by {signal_name(-status)} ({signal.strsignal(-status)})"
