"""What a pod's termination message says on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.masking import Masking
from muster.core.replica import Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps, loads
from muster.worker import pod

NOTHING = Masking([])
V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def failure(message: str, *traceback: str) -> Report:
    verdict = Verdict(cause=Cause.USER_ERROR, message=message, advice="mend it", rank=3)
    return Report(exit_code=ExitCode.USER_ERROR, verdict=verdict, at=5.0, traceback=traceback)


def test_a_report_comes_back_as_it_was() -> None:
    report = failure("KeyError: 'day'", "Traceback (most recent call last):", "KeyError: 'day'")
    assert loads(Report, dumps(pod.told(report, NOTHING))) == report


def test_results_are_left_to_the_store() -> None:
    report = Report(exit_code=ExitCode.SEALED, metrics={"loss": 0.5}, modules=("train.py",))
    said = loads(Report, dumps(pod.told(report, NOTHING)))
    assert said == Report(exit_code=ExitCode.SEALED)


def test_of_a_long_traceback_the_end_is_kept() -> None:
    lines = tuple(f"line {number} {'é' * 380}" for number in range(15))
    text = dumps(pod.told(failure("ValueError: é", *lines), NOTHING))
    assert len(text.encode()) <= pod.TERMINATION_BYTES
    kept = loads(Report, text).traceback
    assert kept == lines[-len(kept) :]
    assert len(kept) > 2


def test_the_longest_verdict_fits() -> None:
    said = Verdict(cause=Cause.USER_ERROR, message="\U0001f642" * 500, advice="\U0001f642" * 500)
    text = dumps(pod.told(Report(exit_code=ExitCode.USER_ERROR, verdict=said), NOTHING))
    assert len(text.encode()) <= pod.TERMINATION_BYTES


def test_no_secret_is_in_it() -> None:
    report = failure("no rows for sesame-4f1c", "open('sesame-4f1c')")
    assert "sesame" not in dumps(pod.told(report, Masking(["sesame-4f1c"])))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (-9, ExitCode.RANK_LOST, "the worker of replica main-0 was killed by signal 9"),
        (1, ExitCode.RANK_LOST, "the worker of replica main-0 ended with exit code 1"),
        (0, ExitCode.RANK_LOST, "the worker of replica main-0 ended with exit code 0"),
    ],
)
def test_a_worker_that_left_no_report(status: int, code: ExitCode, message: str) -> None:
    report = pod.killed("replica main-0", status)
    assert report.verdict is not None
    assert (report.exit_code, report.verdict.message) == (code, message)


def test_the_contracts_exit_codes_are_believed() -> None:
    assert pod.killed("replica main-0", ExitCode.SPEC_ERROR).exit_code is ExitCode.SPEC_ERROR


@pytest.mark.parametrize(("text", "count"), [(V2, 2), (V1, 5), ("oom_kill_disable 0\n", 0)])
def test_both_versions_of_control_groups(text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "counts").write_text(text)
    assert pod.oom_kills([str(tmp_path / "absent"), str(tmp_path / "counts")]) == count


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert pod.oom_kills([str(tmp_path / "absent")]) == 0
