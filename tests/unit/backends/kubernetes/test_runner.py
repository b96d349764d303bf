from __future__ import annotations

from dataclasses import replace

from tests.unit.backends.kubernetes.lifecycle.test_ending import Lines

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.runner import KEPT_SECONDS, MOST_JOBS, JobMemories, JudgedStatus
from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.status import JobState, JobStatus

RECORDED = JobStatus(job_id="a", state=JobState.QUEUED, submitted=1.0)
FOUND = replace(RECORDED, reason="in queue team-a")
SEEN, PLACE = JobObjects(), QueuePlace(number=2, of=3)
JUDGED = JudgedStatus(seen=SEEN, recorded=RECORDED, place=PLACE, found=FOUND, at=100.0)


def test_it_stands_for_a_moment_while_nothing_changes() -> None:
    again = replace(RECORDED)
    assert JUDGED.stands(SEEN, again, replace(PLACE), now=100.0 + KEPT_SECONDS / 2)
    assert not JUDGED.stands(SEEN, RECORDED, PLACE, now=100.0 + KEPT_SECONDS)
    assert not JUDGED.stands(SEEN, RECORDED, PLACE, now=99.0), "the clock was set back"


def test_whatever_changes_is_judged_anew() -> None:
    assert not JUDGED.stands(JobObjects(), RECORDED, PLACE, now=100.0)
    assert not JUDGED.stands(SEEN, replace(RECORDED, owner="another"), PLACE, now=100.0)
    assert not JUDGED.stands(SEEN, RECORDED, QueuePlace(number=1, of=3), now=100.0)


def test_so_many_jobs_are_remembered_and_none_that_has_ended() -> None:
    memories = JobMemories(Lines())  # type: ignore[arg-type]
    first, second = memories.of("0"), memories.of("1")
    assert memories.of("0") is first
    for number in range(2, MOST_JOBS + 1):
        memories.of(str(number))
    assert memories.of("0") is first
    assert memories.of("1") is not second
    memories.forget("0")
    assert memories.of("0") is not first
