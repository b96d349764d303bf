from __future__ import annotations

from dataclasses import replace

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.lifecycle.judged import KEPT_SECONDS, MOST_JOBS, Basis, Judged
from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.status import JobState, JobStatus

RECORDED = JobStatus(job_id="a", state=JobState.QUEUED, submitted=1.0)
FOUND = replace(RECORDED, reason="in queue team-a")
BASIS = Basis(seen=JobObjects(), recorded=RECORDED, place=QueuePlace(number=2, of=3))


def test_it_stands_for_a_moment_while_nothing_changes() -> None:
    judged = Judged()
    assert judged.recall("a", BASIS, now=100.0) is None
    assert judged.keep("a", BASIS, FOUND, now=100.0) is FOUND
    again = replace(BASIS, recorded=replace(RECORDED))
    assert judged.recall("a", again, now=100.0 + KEPT_SECONDS / 2) is FOUND
    assert judged.recall("b", BASIS, now=100.0) is None
    assert judged.recall("a", BASIS, now=100.0 + KEPT_SECONDS) is None
    assert judged.recall("a", BASIS, now=99.0) is None, "the clock was set back"


def test_whatever_changes_is_judged_anew() -> None:
    judged = Judged()
    judged.keep("a", BASIS, FOUND, now=100.0)
    for changed in (
        replace(BASIS, seen=JobObjects()),
        replace(BASIS, recorded=replace(RECORDED, owner="another")),
        replace(BASIS, place=QueuePlace(number=1, of=3)),
    ):
        assert judged.recall("a", changed, now=100.0) is None
    judged.forget("a")
    assert judged.recall("a", BASIS, now=100.0) is None


def test_it_remembers_so_many_and_not_for_ever() -> None:
    judged = Judged()
    for number in range(MOST_JOBS + 1):
        judged.keep(str(number), BASIS, FOUND, now=100.0)
    assert judged.recall("0", BASIS, now=100.0) is None
    assert judged.recall("1", BASIS, now=100.0) is FOUND
