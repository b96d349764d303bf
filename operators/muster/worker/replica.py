"""One replica from start to end: read what to do, run the ranks, seal, report, exit.

The worker dies with whoever started it. A backend that wants no gap between its fork and that promise
sets ``MUSTER_PARENT_PID`` to its own pid: a worker whose parent is another by then ends at once.

On a machine its supervisor reads its lines and finds its report and its part-manifest as files. In a pod
:mod:`muster.worker.pod` does, and brings them to the store service that ``MUSTER_STORE_URL`` names.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from muster.core.errors import SpecError
from muster.core.job import Launcher
from muster.core.replica import Replica, Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps, loads
from muster.worker import command, entrypoint
from muster.worker.code import copy_code
from muster.worker.faults import EXIT_CODES, Fault, faults, hang, lost_peer
from muster.worker.last_words import read_json
from muster.worker.launchers import LOOPBACK, rank_environment
from muster.worker.mounts import protect
from muster.worker.processes import die_with_parent
from muster.worker.ranks import InRank, Rank, RankPlan, Ranks, say
from muster.worker.seal import seal, write_durably
from muster.worker.silence import Silence

FOLLOWER_LENGTH = 160


def main(arguments: Sequence[str]) -> int:
    """Run ``REPLICA.json`` and return the exit code; in the fork of a rank, run that rank's entrypoint."""
    die_with_parent(int(os.environ.pop("MUSTER_PARENT_PID", None) or os.getppid()))
    try:
        with open(arguments[0], encoding="utf-8") as file:
            replica = loads(Replica, file.read())
    except (IndexError, OSError, SpecError) as error:
        say(f"the worker cannot read what to do: {error}\nusage: python WORKER REPLICA.json")
        return ExitCode.SPEC_ERROR
    if "MUSTER_STORE_URL" in os.environ:
        from muster.worker.pod import Ways, attend

        attend(replica, Ways.take(os.environ))
    try:
        replica = _own_folder(replica)
        protect(path for paths in replica.inputs.values() for path in paths)
        report = _run_ranks(replica)
    except InRank as here:
        plan = here.plan
    except SpecError as error:
        _conclude(replica, _refused(Cause.SPEC_ERROR, str(error)))
    except OSError as error:
        _conclude(replica, _refused(_disk_or(Cause.RANK_LOST, error), f"cannot start the ranks: {error}"))
    else:
        _conclude(replica, report)
    return entrypoint.run(replica, outcome_file=plan.outcome)  # after except: its errors have no context


def _own_folder(replica: Replica) -> Replica:
    """Give this attempt a fresh folder below scratch, with its copy of the code."""
    scratch = os.path.join(replica.scratch, f"attempt-{replica.attempt}")
    os.makedirs(scratch)
    code = copy_code(replica.code, os.path.join(scratch, "code")) if replica.code else None
    return replace(replica, scratch=scratch, code=code)


def _run_ranks(replica: Replica) -> Report:
    spec = replica.spec
    plans = plan_ranks(replica)
    aside = _meet(replica, plans)  # before the ranks' silence is measured: this is no hang of theirs
    ranks = Ranks(
        grace_seconds=spec.grace_seconds,
        silence=Silence(
            spec.hang_timeout_seconds,
            sign=os.path.dirname(replica.sealed),
            watched=(replica.checkpoints, *replica.staging.values()),
        ),
        follows=lost_peer,
    )
    ended = ranks.run(plans, aside=aside)
    if ranks.hung:
        return _failed([hang(ended, seconds=spec.hang_timeout_seconds)])
    found = faults(ended, world_size=spec.world_size)
    if ranks.interrupted_at is not None:
        # what failed by itself before it was told to stop is the reason that counts
        found = [each for each in found if not each.follower and each.at < ranks.interrupted_at]
        return (
            _failed(found)
            if found
            else _refused(Cause.CANCELLED, f"replica {replica.role}-{replica.index} was told to stop")
        )
    whole = spec.world_size == replica.job_role.ranks
    return _failed(found, whole=whole) if found else _succeeded(replica, ended)


def _meet(replica: Replica, plans: Sequence[RankPlan]) -> list[int]:
    """Have ready what ranks need to find rank 0, and return the processes that serve it."""
    if replica.spec.launcher is Launcher.HOROVOD:
        from muster.worker.rendezvous import meet

        server = meet(replica, [plan.environment for plan in plans])
        return [] if server is None else [server]
    if replica.spec.launcher is Launcher.TORCHRUN and replica.master_address != LOOPBACK:
        from muster.worker.rendezvous import await_name

        await_name(replica.master_address)
    return []


def plan_ranks(replica: Replica) -> list[RankPlan]:
    """Say what to start for each rank.

    :raises SpecError: the command names what the job does not have, or a program that is not there.
    """
    return [_plan(replica, local_rank) for local_rank in range(replica.job_role.ranks)]


def _plan(replica: Replica, local_rank: int) -> RankPlan:
    rank = replica.first_rank + local_rank
    error_file = os.path.join(replica.scratch, f"rank-{rank}-error.json")
    environment = rank_environment(replica, local_rank, base=os.environ, error_file=error_file)
    arguments, folder = command.prepare(replica, environment)
    return RankPlan(
        rank=rank,
        arguments=arguments,
        environment=environment,
        folder=folder,
        outcome=os.path.join(replica.scratch, f"rank-{rank}-outcome.json"),
        error_file=error_file,
        code=replica.code,
    )


def _succeeded(replica: Replica, ended: Sequence[Rank]) -> Report:
    """Seal. The report is on disk before: a sealed replica is committed even if nobody saw it end."""
    first = next((rank for rank in ended if rank.number == 0), None)
    outcome = (read_json(first.plan.outcome) if first else None) or {}
    modules = outcome.get("modules")
    report = Report(
        exit_code=ExitCode.SEALED,
        metrics=outcome.get("metrics") or {},
        modules=None if modules is None else tuple(modules),
    )
    try:
        write_durably(replica.report, dumps(report))
        seal(replica)
    except SpecError as error:
        return _refused(Cause.SPEC_ERROR, str(error))
    except OSError as error:
        return _refused(_disk_or(Cause.COMMIT_FAILED, error), f"cannot seal what was staged: {error}")
    return report


def _failed(found: Sequence[Fault], *, whole: bool = True) -> Report:
    """Report the culprit, and end the log with it: what followed in a line each, then its own words.

    :param whole: these ranks are the whole gang; else a first fault that followed has its culprit in
        another replica, whose words are the ones to be seen.
    """
    culprit, *followers = found
    elsewhere = culprit.follower and not whole
    lines = [_followed(each) for each in (found if elsewhere else followers)]
    if not elsewhere:
        who = "" if culprit.rank is None else f"rank {culprit.rank}: "
        # No line of an exception's own text may pass for one of muster's or of another rank.
        lines += [f" {line}" if line.startswith("[") else line for line in culprit.traceback]
        lines.append(f"{who}{culprit.verdict.message}")
    say("\n".join(lines))
    return Report(
        exit_code=EXIT_CODES[culprit.cause],
        verdict=culprit.verdict,
        at=culprit.at,
        traceback=culprit.traceback,
    )


def _followed(fault: Fault) -> str:
    where = f" at {fault.where}" if fault.where else ""
    text = f"rank {fault.rank} followed{where}: {fault.message}"
    return text if len(text) <= FOLLOWER_LENGTH else text[: FOLLOWER_LENGTH - 1] + "…"


_ADVICE = {
    Cause.CANCELLED: "nothing was sealed; what was saved to checkpoints is kept",
    Cause.SPEC_ERROR: "mend the Dag or the code; asking again cannot help",
    Cause.COMMIT_FAILED: "make room on the disk that holds the store and the jobs, then run again",
    Cause.RANK_LOST: "look at the machine's processes and memory: it was tried as often as max_restarts allows",
}


def _refused(cause: Cause, message: str) -> Report:
    verdict = Verdict(cause=cause, message=message, advice=_ADVICE[cause])
    say(verdict.message)
    return Report(exit_code=EXIT_CODES[cause], verdict=verdict, at=time.time())


def _disk_or(cause: Cause, error: OSError) -> Cause:
    return Cause.COMMIT_FAILED if error.errno in (errno.ENOSPC, errno.EDQUOT) else cause


def _conclude(replica: Replica, report: Report) -> NoReturn:
    """Write why it failed, and end. Nothing is buffered, and an interpreter's own end takes 5 ms."""
    if report.exit_code is not ExitCode.SEALED:
        try:
            write_durably(replica.report, dumps(report))
        except OSError as error:
            say(f"the report cannot be written to {replica.report}: {error}")
    os._exit(report.exit_code)
