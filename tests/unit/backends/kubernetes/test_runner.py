from __future__ import annotations

from dataclasses import replace

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.runner import KEPT_SECONDS, MOST_STATUSES, CacheKey, StatusCache
from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.status import JobState, JobStatus

RECORDED = JobStatus(job_id="a", state=JobState.QUEUED, submitted=1.0)
FOUND = replace(RECORDED, reason="in queue team-a")
KEY = CacheKey(seen=JobObjects(), recorded=RECORDED, place=QueuePlace(number=2, of=3))


def test_it_stands_for_a_moment_while_nothing_changes() -> None:
    statuses = StatusCache()
    assert statuses.recall("a", KEY, now=100.0) is None
    assert statuses.keep("a", KEY, FOUND, now=100.0) is FOUND
    again = replace(KEY, recorded=replace(RECORDED))
    assert statuses.recall("a", again, now=100.0 + KEPT_SECONDS / 2) is FOUND
    assert statuses.recall("b", KEY, now=100.0) is None
    assert statuses.recall("a", KEY, now=100.0 + KEPT_SECONDS) is None
    assert statuses.recall("a", KEY, now=99.0) is None, "the clock was set back"


def test_whatever_changes_is_statuses_anew() -> None:
    statuses = StatusCache()
    statuses.keep("a", KEY, FOUND, now=100.0)
    for changed in (
        replace(KEY, seen=JobObjects()),
        replace(KEY, recorded=replace(RECORDED, owner="another")),
        replace(KEY, place=QueuePlace(number=1, of=3)),
    ):
        assert statuses.recall("a", changed, now=100.0) is None
    statuses.forget("a")
    assert statuses.recall("a", KEY, now=100.0) is None


def test_it_remembers_so_many_and_not_for_ever() -> None:
    statuses = StatusCache()
    for number in range(MOST_STATUSES + 1):
        statuses.keep(str(number), KEY, FOUND, now=100.0)
    assert statuses.recall("0", KEY, now=100.0) is None
    assert statuses.recall("1", KEY, now=100.0) is FOUND
