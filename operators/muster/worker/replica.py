"""One replica from start to end: read what to do, run the ranks, seal, report, exit.

The worker dies with whoever started it. A backend that wants no gap between its fork and that promise
sets ``MUSTER_PARENT_PID`` to its own pid: a worker whose parent is another by then ends at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from muster.core.errors import SpecError
from muster.core.replica import Replica, Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps, loads
from muster.worker import command, entrypoint
from muster.worker.faults import EXIT_CODES, Fault, faults, lost_peer, read_json
from muster.worker.launchers import rank_environment
from muster.worker.processes import die_with_parent
from muster.worker.ranks import InRank, Rank, RankPlan, Ranks, say
from muster.worker.seal import seal, write_durably


def main(arguments: Sequence[str]) -> int:
    """Run ``REPLICA.json`` and return the exit code; in the fork of a rank, run that rank's entrypoint."""
    die_with_parent(int(os.environ.pop("MUSTER_PARENT_PID", None) or os.getppid()))
    try:
        with open(arguments[0], encoding="utf-8") as file:
            replica = loads(Replica, file.read())
    except (IndexError, OSError, SpecError) as error:
        say(f"the worker cannot read what to do: {error}\nusage: python WORKER REPLICA.json")
        return ExitCode.SPEC_ERROR
    try:
        report = _carry_out(replica)
    except InRank as here:
        plan = here.plan
    else:
        return _deliver(replica, report)
    return entrypoint.run(replica, outcome_file=plan.outcome)  # outside except: no context to its errors


def _deliver(replica: Replica, report: Report) -> int:
    try:
        write_durably(replica.report, dumps(report))
    except OSError as error:
        say(f"the report cannot be written to {replica.report}: {error}")
    return report.exit_code


def _carry_out(replica: Replica) -> Report:
    try:
        plans = plan_ranks(replica)
        ranks = Ranks(
            grace_seconds=replica.spec.grace_seconds,
            hang_seconds=replica.spec.hang_timeout_seconds,
            progress=lambda: _last_change(replica),
            follows=lost_peer,
        )
        ended = ranks.run(plans)
        if ranks.interrupted:
            return _refused(Cause.CANCELLED, "told to stop", "nothing was sealed; checkpoints are kept")
        found = faults(ended, hung=ranks.hung, world_size=replica.spec.world_size)
        return _failed(found) if found else _succeeded(replica, ended)
    except SpecError as error:
        return _refused(Cause.SPEC_ERROR, str(error), "mend the Dag or the code; asking again cannot help")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "make room on the disk that holds the store" if full else "look at the disk and its mounts"
        return _refused(Cause.COMMIT_FAILED, f"cannot write: {error}", f"{advice}, then run again")


def plan_ranks(replica: Replica) -> list[RankPlan]:
    """Say what to start for each rank.

    :raises SpecError: the command names what the job does not have, or a program that is not there.
    """
    return [_plan(replica, local_rank) for local_rank in range(replica.job_role.ranks)]


def _plan(replica: Replica, local_rank: int) -> RankPlan:
    rank = replica.first_rank + local_rank
    folder = os.path.join(replica.scratch, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    outcome, error_file = os.path.join(folder, "outcome.json"), os.path.join(folder, "error.json")
    environment = rank_environment(replica, local_rank, base=os.environ, error_file=error_file)
    arguments, start = command.prepare(replica, environment)
    return RankPlan(
        rank=rank,
        arguments=arguments,
        environment=environment,
        folder=start,
        outcome=outcome,
        error_file=error_file,
    )


def _succeeded(replica: Replica, ended: Sequence[Rank]) -> Report:
    first = next((rank for rank in ended if rank.number == 0), None)
    outcome = read_json(first.plan.outcome) if first else None
    seal(replica)
    if outcome is None:
        return Report(exit_code=ExitCode.SEALED)
    return Report(
        exit_code=ExitCode.SEALED,
        metrics=outcome.get("metrics") or {},
        modules=tuple(outcome["modules"]) if "modules" in outcome else None,
    )


def _failed(found: Sequence[Fault]) -> Report:
    """Report the culprit, and end the log with it: what followed in a line each, then its own words."""
    culprit, *followers = found
    lines = [f"rank {each.rank} followed: {each.message[:160]}" for each in followers]
    say("\n".join([*lines, *culprit.traceback, f"rank {culprit.rank}: {culprit.verdict.message}"]))
    return Report(
        exit_code=EXIT_CODES[culprit.cause],
        verdict=culprit.verdict,
        at=culprit.at,
        traceback=culprit.traceback,
    )


def _refused(cause: Cause, message: str, advice: str) -> Report:
    say(message)
    return Report(exit_code=EXIT_CODES[cause], verdict=Verdict(cause=cause, message=message, advice=advice))


def _last_change(replica: Replica) -> float:
    """When something was last added to the checkpoints or to an output."""
    return max(os.stat(folder).st_mtime for folder in (replica.checkpoints, *replica.staging.values()))
