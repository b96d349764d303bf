"""Which replica of a gang was at fault first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.backends.replicas import bare_replica

from muster.backends.local.faults import first_fault
from muster.backends.local.limits import Overrun, Polled
from muster.backends.local.member import Member
from muster.backends.local.spawn import Worker
from muster.core.job import JobSpec, Role
from muster.core.replica import Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps

SPEC = JobSpec(
    name="test",
    image="python",
    image_digest="b3:" + "0" * 64,
    roles=(Role(command=("true",), replicas=3, ranks=2),),
)


class Ended:
    """Makes members that have ended as told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        index: int,
        code: int,
        *,
        cause: Cause | None = None,
        at: float = 0.0,
        stopped: bool = False,
        overrun: Overrun | None = None,
    ) -> Member:
        path = self.folder / f"{index}.json"
        replica = bare_replica(SPEC, index, report=path)
        if cause is not None:
            verdict = Verdict(cause=cause, message=f"from {index}", advice="do", rank=index * 2)
            path.write_text(dumps(Report(exit_code=ExitCode(code), verdict=verdict, at=at)))
        return Member(
            replica, Worker(0, -1, -1), Polled(1.0), code=code, ended_at=at, stopped=stopped, overrun=overrun
        )


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


def test_nothing_is_wrong_where_all_have_sealed(ended: Ended) -> None:
    assert first_fault([ended(index, ExitCode.SEALED) for index in range(3)]) is None


def test_what_happened_first_is_at_fault(ended: Ended) -> None:
    late = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=11.0)
    early = ended(1, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=10.0)
    fault = first_fault([late, early])
    assert fault is not None
    assert fault.message == "from 1"


def test_who_was_stopped_is_not_at_fault(ended: Ended) -> None:
    stopped = ended(0, ExitCode.STOPPED, cause=Cause.CANCELLED, at=1.0, stopped=True)
    killed = ended(1, -9, at=1.0, stopped=True)
    wrong = ended(2, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=10.0)
    fault = first_fault([stopped, killed, wrong])
    assert fault is not None
    assert fault.message == "from 2"


def test_memory_that_was_outgrown_explains_the_lost_rank_and_names_it(ended: Ended) -> None:
    victim = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=1.0)
    overrun = Overrun(used_gib=2.5, limit_gib=2.0)
    grown = ended(1, ExitCode.RANK_LOST, cause=Cause.RANK_LOST, at=2.0, overrun=overrun)
    fault = first_fault([victim, grown])
    assert fault is not None
    assert (fault.cause, fault.rank) == (Cause.OUT_OF_MEMORY, 2)
    assert "main-1 used 2.50 GiB, its limit is 2 GiB" in fault.message


def test_a_killed_worker_is_a_lost_rank(ended: Ended) -> None:
    fault = first_fault([ended(1, -9, at=5.0)])
    assert fault is not None
    assert (fault.cause, fault.rank) == (Cause.RANK_LOST, 2)
    assert "killed by signal 9" in fault.message


def test_a_peer_that_complained_before_we_saw_the_loss_is_not_at_fault(ended: Ended) -> None:
    peer = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=9.9)
    fault = first_fault([peer, ended(1, -9, at=10.0)])
    assert fault is not None
    assert fault.cause is Cause.RANK_LOST


def test_a_worker_that_somebody_else_stopped_is_lost(ended: Ended) -> None:
    fault = first_fault([ended(0, ExitCode.STOPPED, cause=Cause.CANCELLED, at=1.0)])
    assert fault is not None
    assert fault.cause is Cause.RANK_LOST


def test_a_worker_that_breaks_by_itself_is_not_started_again(ended: Ended) -> None:
    fault = first_fault([ended(0, 1, at=1.0)])
    assert fault is not None
    assert fault.cause is Cause.BACKEND_ERROR
    assert not fault.cause.restarts_gang


def test_a_hang_is_told_of_all_replicas_that_hung(ended: Ended) -> None:
    hung = [ended(index, ExitCode.HANG, cause=Cause.HANG, at=10.0 + index) for index in (0, 1)]
    for index, member in enumerate(hung):
        text = f"no line and no progress for 5 s: rank {index} at t.py:{index}"
        verdict = Verdict(cause=Cause.HANG, message=text, advice="do", rank=index)
        Path(member.replica.report).write_text(
            dumps(Report(exit_code=ExitCode.HANG, verdict=verdict, at=index))
        )
    fault = first_fault(hung)
    assert fault is not None
    assert fault.message == "no line and no progress for 5 s: rank 0 at t.py:0, rank 1 at t.py:1"
    assert fault.rank is None
