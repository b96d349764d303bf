from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.airflow.attempts.log import (
    BURST_LINES,
    BURST_REASONS,
    KEPT_LINES,
    LINE_LENGTH,
    LINES_PER_SECOND,
    REASON_SECONDS,
    StateLog,
    TaskLog,
    fit,
)
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def written() -> list[str]:
    return []


@pytest.fixture
def log(written: list[str], clock: Clock) -> TaskLog:
    return TaskLog(written.append, job_id="a-job", clock=clock)


def ranks(count: int, *, begin: int = 0) -> list[str]:
    return [f"[rank 0] {number}" for number in range(begin, begin + count)]


def left_out(line: str) -> int:
    assert line.endswith(" left out; the full log: muster jobs logs a-job")
    return int(line.split()[1].replace(",", ""))


def test_what_comes_slowly_is_written_at_once_and_whole(
    log: TaskLog, clock: Clock, written: list[str]
) -> None:
    for number in range(3000):
        log(ranks(1, begin=number))
        assert len(written) == number + 1
        clock.now += 1 / LINES_PER_SECOND
    log.close()
    assert written == ranks(3000)


def test_a_flood_is_cut_and_its_last_lines_are_there(log: TaskLog, written: list[str]) -> None:
    log(ranks(100_000))
    assert written == ranks(BURST_LINES)
    log.close()
    assert written[BURST_LINES + 1 :] == ranks(KEPT_LINES, begin=100_000 - KEPT_LINES)
    assert left_out(written[BURST_LINES]) == 100_000 - BURST_LINES - KEPT_LINES


def test_every_line_of_a_long_flood_is_written_or_counted(
    log: TaskLog, clock: Clock, written: list[str]
) -> None:
    for second in range(600):
        log(ranks(500, begin=second * 500))
        clock.now += 1
    log.close()
    said = [line for line in written if line.startswith("[rank")]
    gaps = [left_out(line) for line in written if not line.startswith("[rank")]
    assert len(said) + sum(gaps) == 600 * 500
    assert len(said) <= BURST_LINES + 600 * LINES_PER_SECOND + KEPT_LINES
    assert len(gaps) < len(said) / 50  # stretches that can be read, not a notice for every other line
    numbers = [int(line.split()[-1]) for line in said]
    assert numbers == sorted(numbers)


def test_what_waits_is_written_in_silence_too(log: TaskLog, clock: Clock, written: list[str]) -> None:
    log(ranks(BURST_LINES + 10))
    assert len(written) == BURST_LINES
    clock.now += 1
    log()
    assert written == ranks(BURST_LINES + 10)


def test_what_muster_says_is_never_left_out_and_stays_in_its_place(log: TaskLog, written: list[str]) -> None:
    log([*ranks(5000), "[muster] hang; the whole gang starts again", *ranks(5000, begin=5000)])
    log.close()
    at = written.index("[muster] hang; the whole gang starts again")
    assert left_out(written[at - 1]) == 5000 - BURST_LINES
    assert left_out(written[at + 1]) == 5000 - KEPT_LINES


def test_bytes_count_too(log: TaskLog, written: list[str]) -> None:
    log(["[rank 0] " + "x" * 1900] * 300)
    assert sum(map(len, written)) <= 256 * 1024
    log.close()
    assert len(written) > KEPT_LINES


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[rank 0] ::group::all of it", "[rank 0] : :group::all of it"),
        ("[rank 0] a::endgroup::", "[rank 0] a: :endgroup::"),
        ("[rank 0] std::group", "[rank 0] std::group"),
        ("[rank 0] " + "é" * 10_000_000, None),
    ],
)
def test_a_line_is_made_fit_for_a_page(line: str, shown: str | None) -> None:
    if shown is None:
        shown = f"{line[:LINE_LENGTH]} … ({len(line) - LINE_LENGTH:,} characters more in the full log)"
    assert fit(line) == shown


def test_the_verdict_is_left_to_whoever_raises_it(log: TaskLog, written: list[str]) -> None:
    verdict = Verdict(cause=Cause.USER_ERROR, message="no", advice="mend it").render(job_id="a-job")
    faked = [f"[rank 0] {line}" for line in verdict.splitlines()]
    log([*ranks(2), *faked])
    log(["rank 0: no", *verdict.splitlines()])
    log.close()
    assert written == [*ranks(2), *faked, "rank 0: no"]


def test_what_imitates_muster_is_a_ranks_line(log: TaskLog, written: list[str]) -> None:
    make: Callable[[int], str] = lambda n: f"[rank 3] [muster] {n}"  # noqa: E731
    log([make(n) for n in range(10_000)])
    assert len(written) == BURST_LINES


class Said:
    """A logger that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *words: str) -> None:
        self.lines.append(text % words)


def status(state: JobState, reason: str = "") -> JobStatus:
    return JobStatus(job_id="a-job", state=state, reason=reason, submitted=1.0)


def test_each_state_and_reason_is_said_once_and_an_end_by_whoever_waited() -> None:
    said = Said()
    log = StateLog(said)
    for state, reason in [
        (JobState.QUEUED, "waiting for its turn"),
        (JobState.QUEUED, "waiting for its turn"),
        (JobState.QUEUED, "waiting for 3 GiB"),
        (JobState.RUNNING, ""),
        (JobState.SUCCEEDED, ""),
    ]:
        log(status(state, reason))
    assert said.lines == ["queued: waiting for its turn", "queued: waiting for 3 GiB", "running"]


def test_a_place_in_a_long_queue_is_said_now_and_then(clock: Clock) -> None:
    said = Said()
    log = StateLog(said, clock=clock)
    for place in range(1000, 0, -1):
        log(status(JobState.QUEUED, f"place {place}"))
        clock.now += 1
    assert len(said.lines) == pytest.approx(1 + BURST_REASONS + 1000 / REASON_SECONDS, abs=1)
    log(status(JobState.RUNNING))
    log(status(JobState.PREPARING, "starting again"))
    log(status(JobState.PREPARING, "1 of 2 run"))
    assert said.lines[-3:] == ["running", "preparing: starting again", "preparing: 1 of 2 run"]


def test_who_comes_behind_a_job_is_no_news_to_it(clock: Clock) -> None:
    said = Said()
    log = StateLog(said, clock=clock)
    for length in (3, 4, 500):
        log(status(JobState.QUEUED, f"in queue a, place 3 of {length}: waits its turn"))
        clock.now += REASON_SECONDS
    log(status(JobState.QUEUED, "in queue a, place 2 of 500: waits its turn"))
    assert said.lines == [
        f"queued: in queue a, place {place}: waits its turn" for place in ("3 of 3", "2 of 500")
    ]


def test_the_newest_reason_is_said_when_its_turn_comes(clock: Clock) -> None:
    said = Said()
    log = StateLog(said, clock=clock)
    for place in range(20, 0, -1):
        log(status(JobState.QUEUED, f"place {place}"))
    assert said.lines[-1] != "queued: place 1"
    clock.now += REASON_SECONDS + 0.1
    log(status(JobState.QUEUED, "place 1"))
    assert said.lines[-1] == "queued: place 1"
