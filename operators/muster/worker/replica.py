"""One replica from start to end: read the document, run the ranks, seal, report, exit.

The worker dies with the process that started it. A backend that closes the gap between its fork and that
promise sets ``MUSTER_PARENT_PID`` to its own pid: a worker with another parent ends at once.

On a machine the supervisor reads the worker's lines, and its report and part-manifest from files. In a pod
:mod:`muster.worker.pod` reads them, and sends them to the store service at ``MUSTER_STORE_URL``.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

from muster.core.advice import advice_on
from muster.core.errors import SpecError
from muster.core.linux import die_with
from muster.core.patience import Patience
from muster.core.progress import Pattern
from muster.core.replica import Replica, Report
from muster.core.room import CLAIM, Room, is_full, make_room
from muster.core.text import shortened
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps, loads
from muster.worker import command, entrypoint
from muster.worker.code import copy_code, left_behind, protect, shown_in
from muster.worker.faults import (
    EXIT_CODES,
    WorkerFault,
    advised,
    failed,
    faults,
    first_left,
    hang,
    lost_head,
    lost_peer,
    only_miss,
    sealed_at,
    tell_ended,
)
from muster.worker.last_words import read_json
from muster.worker.launchers.launcher import EngineLauncher, error_file, launcher_of, rank_environment
from muster.worker.ranks import InRank, Rank, RankPlan, Ranks, say
from muster.worker.seal import seal, write_durably
from muster.worker.usage import Usage
from muster.worker.watches import Doubles, Pruning, Silence, Unkept

IN_POD = "MUSTER_STORE_URL"
_FOLLOWER_LENGTH = 160
_MOST_LEFT = 5
LEFT_SECONDS = 10.0
"""How long ranks that only miss a peer wait for word of one that ended well; who knows of a failure ends the wait by SIGTERM."""
_NEVER = frozenset({errno.ENAMETOOLONG, errno.E2BIG, errno.EPERM})


def main(arguments: Sequence[str]) -> int:
    """Run ``REPLICA.json`` and return the exit code; in the fork of a rank, run that rank's entrypoint.

    :param arguments: that file; and the attempt, where it is a later one than the file's.
    """
    die_with(int(os.environ.pop("MUSTER_PARENT_PID", None) or os.getppid()))
    try:
        with open(arguments[0], encoding="utf-8") as file:
            replica = loads(Replica, file.read())
        if len(arguments) > 1:
            replica = replace(replica, attempt=int(arguments[1]))
    except (IndexError, OSError, SpecError, ValueError) as error:
        say(f"the worker cannot read what to do: {error}\nusage: python WORKER REPLICA.json [ATTEMPT]")
        return ExitCode.SPEC_ERROR
    in_pod = IN_POD in os.environ
    if in_pod:
        from muster.worker.pod import Outlets, attend

        attend(replica, Outlets.take(os.environ))
    snapshot, home = replica.code, os.environ.get("HOME", "")
    before = shown_in(home)
    try:
        replica = _own_folder(replica)
        protect(path for paths in replica.inputs.values() for path in paths)
        report = _run_ranks(replica, Disks(replica, claim=in_pod), Usage(replica, say=say, in_pod=in_pod))
    except InRank as here:
        plan = here.plan
    except SpecError as error:
        _conclude(replica, _refused(Cause.SPEC_ERROR, str(error)))
    except OSError as error:
        cause = _cause(error, else_cause=Cause.RANK_LOST, authors=Cause.SPEC_ERROR)
        _conclude(replica, _unable(cause, f"cannot start the ranks: {error}", Disks(replica, claim=in_pod)))
    else:
        if report.exit_code is ExitCode.SEALED and snapshot and replica.code:
            _tell_left_behind("the code's copy", left_behind(snapshot, replica.code))
            _tell_left_behind(f"{home}, new since it began", sorted(shown_in(home) - before))
        _conclude(replica, report)
    return entrypoint.run(replica, outcome_file=plan.outcome)  # after except: errors get no context


def _own_folder(replica: Replica) -> Replica:
    """Give this attempt a fresh folder below scratch, with its copy of the code."""
    scratch = os.path.join(replica.scratch, f"attempt-{replica.attempt}")
    os.makedirs(scratch)
    code = copy_code(replica.code, os.path.join(scratch, "code")) if replica.code else None
    return replace(replica, scratch=scratch, code=code)


def _run_ranks(replica: Replica, disks: Disks, usage: Usage) -> Report:
    spec = replica.spec
    plans = plan_ranks(replica)
    launcher = launcher_of(spec.launcher)
    # Before silence is measured: this is no hang of the ranks.
    aside = launcher.meet(replica, [plan.environment for plan in plans])
    usage.silence = silence = Silence(
        spec.hang_timeout_seconds,
        sign=os.path.dirname(replica.sealed),
        watched=(replica.checkpoints, *replica.staging.values()),
    )
    doubles, pruning = Doubles(replica, say=say), Pruning(replica, say=say)
    leader, whole = spec.leader_of(replica.job_role), spec.world_size == replica.job_role.ranks
    ranks = Ranks(
        grace_seconds=spec.grace_seconds,
        silence=silence,
        failed=failed,
        follows=lost_peer,
        over=None if leader is None else lambda: sealed_at(replica, leader) is not None,
        watches=(doubles, usage, pruning, Unkept(replica, say=say)),
        tidy=not spec.launcher.drives,
        pattern=Pattern(spec.metric_pattern) if spec.metric_pattern else None,
        serves=_serves(replica) if spec.launcher.drives else None,
    )
    ended = ranks.run(plans, aside=aside)
    over = None if leader is None else sealed_at(replica, leader)
    left = first_left(replica, ended) if over is None and (ranks.hung or any(map(failed, ended))) else None
    interrupted_at = ranks.interrupted_at
    if left is None and over is None and not whole and not ranks.hung and only_miss(ended):
        word = Patience(LEFT_SECONDS, first=0.01, longest=0.2)
        while left is None and ranks.interrupted_at is None and word.wait():
            left = first_left(replica, ended)
    if ranks.hung:
        return _failed(
            [hang(ended, seconds=spec.hang_timeout_seconds, left=left, joined=spec.launcher.joins)]
        )
    found = [
        advised(disks.blamed(each), replica) for each in faults(ended, world_size=spec.world_size, left=left)
    ]
    if leader is not None and over is not None:  # what these ranks said after that is of no consequence
        found = [each for each in found if not each.follower and each.at < over]
        if not found:
            say(f"[muster] role {replica.role} is told to stop: {leader.name} has ended well")
    if ranks.unserved is not None and (found or any(rank.stopped is not None for rank in ended)):
        found = sorted([lost_head(*ranks.unserved), *found], key=lambda fault: (fault.follower, fault.at))
    if interrupted_at is not None and over is None:
        # a fault from before the stop is the reason
        found = [each for each in found if not each.follower and each.at < interrupted_at]
        return (
            _failed(found)
            if found
            else _refused(Cause.CANCELLED, f"replica {replica.role}-{replica.index} was told to stop")
        )
    if found:
        return _failed(found, whole=whole)
    tell_ended(replica)
    doubles.look(now=True)
    pruning.finish()
    return _succeeded(replica, ended, disks)


def _serves(replica: Replica) -> Callable[[], bool]:
    from muster.worker.launchers import engine  # only for one: it loads socket

    return partial(engine.serves, replica)


def plan_ranks(replica: Replica) -> list[RankPlan]:
    """Return the plan of each rank.

    :raises SpecError: the command holds an unknown name, or its program is not there.
    """
    return [_plan(replica, local_rank) for local_rank in range(replica.job_role.ranks)]


def _plan(replica: Replica, local_rank: int) -> RankPlan:
    rank = replica.first_rank + local_rank
    environment = rank_environment(replica, local_rank, base=os.environ)
    arguments, folder = _program(replica, environment)
    return RankPlan(
        rank=rank,
        arguments=arguments,
        environment=environment,
        folder=folder,
        outcome=os.path.join(replica.scratch, f"rank-{rank}-outcome.json"),
        error_file=error_file(replica, local_rank),
        code=replica.code,
    )


def _program(replica: Replica, environment: dict[str, str]) -> tuple[list[str] | None, str]:
    """Return the words to run, none for an entrypoint, and the folder to start in."""
    if not replica.works:
        return command.prepare(replica, environment)
    command.prepare_worker(replica, environment)
    engine = cast("EngineLauncher", launcher_of(replica.spec.launcher))
    return engine.worker(replica, environment), replica.scratch


def _succeeded(replica: Replica, ended: Sequence[Rank], disks: Disks) -> Report:
    """Seal. The report is written first: a sealed replica is committed even if its end is not seen."""
    first = next((rank for rank in ended if rank.number == 0), None)
    outcome = (read_json(first.plan.outcome) if first else None) or {}
    report = Report(
        exit_code=ExitCode.SEALED,
        metrics=outcome.get("metrics") or {},
        modules=_read_by([read_json(rank.plan.outcome) or {} for rank in ended]) if first else None,
    )
    try:
        write_durably(replica.report, dumps(report))
        seal(replica)
    except SpecError as error:
        return _refused(Cause.SPEC_ERROR, str(error))
    except OSError as error:
        cause = _cause(error, else_cause=Cause.COMMIT_FAILED, authors=Cause.USER_ERROR)
        return _unable(cause, f"cannot seal what was staged: {error}", disks)
    return report


def _read_by(outcomes: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The author's files that any of these ranks read; None where one of them does not tell."""
    told = [outcome.get("modules") for outcome in outcomes]
    if any(names is None for names in told):
        return None
    return tuple(sorted({name for names in told for name in names or ()}))


def _tell_left_behind(where: str, left: Sequence[str]) -> None:
    if left:
        more = f" and {len(left) - _MOST_LEFT} more" if len(left) > _MOST_LEFT else ""
        names = ", ".join(f"{name!r:.120}"[1:-1] for name in left[:_MOST_LEFT])
        say(
            f"[muster] warning: left behind in {where}: {names}{more} (not kept); what is to be kept "
            "belongs into an output's folder: {outputs.NAME} in a command"
        )


def _failed(found: Sequence[WorkerFault], *, whole: bool = True) -> Report:
    """Report the culprit, and end the log with it: one line for each follower, then the culprit's words.

    :param whole: these ranks are the whole gang; else, if the first fault is a follower's, the culprit is in
        another replica, whose words come last.
    """
    culprit, *followers = found
    elsewhere = culprit.follower and not whole
    lines = [_followed(each) for each in (found if elsewhere else followers)]
    if not elsewhere:
        who = "" if culprit.rank is None else f"rank {culprit.rank}: "
        if not culprit.printed:
            # No line of an exception's own text may look like one of muster's or another rank's.
            lines += [f" {line}" if line.startswith("[") else line for line in culprit.traceback]
        lines.append(f"{who}{culprit.verdict.message}")
    say("\n".join(lines))
    return Report(
        exit_code=EXIT_CODES[culprit.cause],
        verdict=culprit.verdict,
        at=culprit.at,
        traceback=culprit.traceback,
    )


def _followed(fault: WorkerFault) -> str:
    where = f" at {fault.where}" if fault.where else ""
    return shortened(f"rank {fault.rank} followed{where}: {fault.message}", _FOLLOWER_LENGTH)


def _refused(cause: Cause, message: str, *, advice: str = "") -> Report:
    verdict = Verdict(cause=cause, message=message, advice=advice or advice_on(cause))
    say(verdict.message)
    return Report(exit_code=EXIT_CODES[cause], verdict=verdict, at=time.time())


def _cause(error: OSError, *, else_cause: Cause, authors: Cause) -> Cause:
    """Return the cause of an error: a full disk, a request that cannot work, or one that may later."""
    if is_full(error):
        return Cause.DISK_FULL
    return authors if error.errno in _NEVER else else_cause


def _unable(cause: Cause, message: str, disks: Disks) -> Report:
    if cause is Cause.DISK_FULL:
        return _refused(cause, disks.told(message), advice=disks.advice)
    return _refused(cause, message)


def _conclude(replica: Replica, report: Report) -> NoReturn:
    """Write why it failed, and end. Nothing is buffered, and the interpreter's shutdown would take 5 ms."""
    if report.exit_code is not ExitCode.SEALED:
        try:
            _write(replica, report)
        except OSError as error:
            say(f"the report cannot be written to {replica.report}: {error}")
    os._exit(report.exit_code)


def _write(replica: Replica, report: Report) -> None:
    """Write the report of a failed replica; on a full disk, free room for it first."""
    try:
        write_durably(replica.report, dumps(report))
    except OSError as error:
        if not is_full(error):
            raise
        for folder in replica.staging.values():
            shutil.rmtree(folder, ignore_errors=True)
        write_durably(replica.report, dumps(report))


_SHARED = "/dev/shm"  # noqa: S108 - where ranks share tensors
_SHARED_DISK = f"shared memory, {_SHARED},"
_SHARED_ADVICE = f"delete what no process uses in {_SHARED}, let a DataLoader have fewer workers, or make it larger; then run again"
_NOT_BYTES = 1 << 20
_SAID = ("No space left on device", "Disk quota exceeded")
# Errors of libraries that do not say why a write failed: torch.save, numpy's tofile.
_WRITES = ("OSError", "RuntimeError")


class Disks:
    """The disks that one replica writes to.

    :param claim: whether its outputs and checkpoints lie on a cluster's claim.
    """

    def __init__(self, replica: Replica, *, claim: bool) -> None:
        self._replica = replica
        self._claim = CLAIM if claim else ""

    def blamed(self, fault: WorkerFault) -> WorkerFault:
        """Return the fault, changed to that of a full disk where a disk is full."""
        if fault.cause is not Cause.USER_ERROR:
            return fault
        fullest = self.fullest()
        said = any(text in fault.message for text in _SAID)
        full = fullest is not None and fullest.free_bytes < _NOT_BYTES
        if not (said or (full and fault.message.startswith(_WRITES))):
            return fault
        return replace(fault, cause=Cause.DISK_FULL, message=self.told(fault.message), advice=self.advice)

    @property
    def advice(self) -> str:
        """How to make room."""
        fullest = self.fullest()
        if fullest is not None and fullest.disk == _SHARED_DISK:
            return _SHARED_ADVICE
        return make_room(self._replica.checkpoints)

    def told(self, message: str) -> str:
        """Add the free space of the fullest disk to a message."""
        fullest = self.fullest()
        return message if fullest is None else f"{message}: {fullest}"

    def fullest(self) -> Room | None:
        """The disk with the least room; of several equally full ones, the disk of the outputs."""
        return min(self.rooms(), key=lambda room: (room.files_left != 0, room.free_bytes), default=None)

    def rooms(self) -> Iterator[Room]:
        """The room of each disk now."""
        named = dict.fromkeys((*self._replica.staging.values(), self._replica.checkpoints), self._claim)
        named |= {self._replica.scratch: "", _SHARED: _SHARED_DISK}
        for path, disk in named.items():
            with suppress(OSError):  # a disk that cannot be measured is not the full one
                room = Room.of(path, disk=disk)
                # Some file systems report no size. Shared memory is usually small, and counts only when it
                # is full.
                if room.total_bytes and (path != _SHARED or room.free_bytes < _NOT_BYTES):
                    yield room
