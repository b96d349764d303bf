from __future__ import annotations

from muster.backends.local.supervisor import EVERY_SECONDS, StatusUpdates
from muster.core.progress import Progress
from muster.core.status import JobState, JobStatus

STATUS = JobStatus(
    job_id="a-job", state=JobState.RUNNING, submitted=1.0, links={"MLflow": "https://example.com/"}
)


def test_what_is_told_often_is_written_now_and_then_and_the_last_of_it_always() -> None:
    now = [10.0]
    news = StatusUpdates(STATUS, clock=lambda: now[0])
    written = []
    for step in range(1, 1001):
        news.hear(b"[rank 0] muster: step=%d\n" % step)
        written += [news.told] if news.due() else []
        now[0] += 0.01
    assert len(written) == 10 / EVERY_SECONDS
    now[0] += EVERY_SECONDS
    assert news.due()
    assert news.told.progress == {"step": Progress(value=1000)}
    assert news.told.links == STATUS.links
    now[0] += EVERY_SECONDS
    assert not news.due()


def test_a_line_like_any_other_is_no_news() -> None:
    news = StatusUpdates(STATUS)
    news.hear(b"[rank 0] step 3\nmuster: step=3\n")
    assert not news.due()
