"""What differs between ``muster run`` and Airflow: each line of the page is tried, and what Airflow does besides is done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.page import DOCS
from tests.e2e.author import MUSTER
from tests.waiting import GUARD_SECONDS, eventually

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import Approval, RunResult
from muster.core.errors import SpecError

Write = Callable[..., None]
Run = Callable[..., RunResult]

SLEEPS = 300  # seconds of a function that hears no signal
ONE = "@task\ndef one() -> None: ...\n"


def states(result: RunResult) -> dict[str, str]:
    return {stage.task_id: stage.state for stage in result.stages}


def tell(told: Path) -> str:
    """Callbacks: one that writes why and about what it was called, and one that fails."""
    return f"""\
def tell(context):
    from pathlib import Path
    Path({str(told)!r}).write_text(f"{{context['reason']}} {{context['ti'].task_id}} {{context['run_id']}}")

def broken(context):
    raise ValueError("no mail")

"""


def runs_of(dag_id: str) -> int:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        return session.scalar(select(func.count()).where(DagRun.dag_id == dag_id)) or 0


def schedule(write: Write, run: Run, folder: Path) -> None:
    write(ONE + "one()")
    file = folder / "dag.py"
    file.write_text(
        file.read_text()
        .replace("schedule=None", 'schedule="@daily"')
        .replace("catchup=False", "catchup=True")
    )
    assert states(run()) == {"one": "success"}
    assert runs_of(folder.name) == 1


def assets(write: Write, run: Run, folder: Path) -> None:
    write(
        f"""
        from airflow.sdk import Asset
        @task(outlets=[Asset("x://{folder.name}")])
        def one() -> None: ...
        one()
        @dag(dag_id="{folder.name}_after", schedule=[Asset("x://{folder.name}")], start_date=datetime(2024, 1, 1))
        def after() -> None:
            one.override(outlets=[])()
        globals()["after"] = after()
        """
    )
    assert run().succeeded
    assert runs_of(f"{folder.name}_after") == 0


def triggers(write: Write, run: Run, folder: Path) -> None:
    before = runs_of(folder.name)
    write(
        ONE + "from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator\n"
        f'one() >> TriggerDagRunOperator(task_id="other", trigger_dag_id="{folder.name}")'
    )
    with pytest.raises(SpecError, match=f"task other of Dag {folder.name} triggers another Dag.*muster up"):
        run()
    assert runs_of(folder.name) == before


def approvals(write: Write, run: Run, folder: Path) -> None:
    write(
        ONE + "from airflow.providers.standard.operators.hitl import ApprovalOperator\n"
        'ApprovalOperator(task_id="sure", subject="Give it?", response_timeout=timedelta(seconds=0.1)) >> one()'
    )
    with pytest.raises(
        SpecError, match=r"task sure .* asks a person, and this is no terminal: .*--answer sure=Approve"
    ):
        run()
    with pytest.raises(
        SpecError, match="'Perhaps' is no answer to task sure: its options are Approve, Reject"
    ):
        run(answers={"sure": "Perhaps"})
    with pytest.raises(SpecError, match="no stage of that name asks; those that do: sure"):
        run(answers={"one": "Approve"})
    assert states(run(answers={"sure": "approve"})) == {"sure": "success", "one": "success"}
    assert states(run(answers={"sure": "Reject"})) == {"sure": "success", "one": "skipped"}


def deferrals(write: Write, run: Run, folder: Path) -> None:
    write(
        "from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor\n"
        'TimeDeltaSensor(task_id="wait", delta=timedelta(seconds=0), deferrable=True)'
    )
    assert states(run()) == {"wait": "success"}


def late(write: Write, run: Run, folder: Path) -> None:
    write(
        f"""
        import time
        @task
        def slow() -> None:
            time.sleep({SLEEPS})
        @task(retries=3)
        def after() -> None: ...
        slow() >> after()
        """
    )
    file = folder / "dag.py"
    keywords = "dagrun_timeout=timedelta(seconds=1), on_failure_callback=tell"
    file.write_text(file.read_text().replace("@dag(", f"{tell(folder / 'told')}@dag({keywords}, ", 1))
    began = time.monotonic()
    result = run()
    assert (result.state, states(result)) == ("failed", {"slow": "skipped", "after": "skipped"})
    assert time.monotonic() - began < SLEEPS
    reason, last, run_id = (folder / "told").read_text().split()
    assert (reason, run_id) == ("timed_out", result.run_id)
    assert last in ("slow", "after"), "on a busy machine neither has begun within a second"


LINES: dict[str, Callable[[Write, Run, Path], None]] = {
    "`schedule`, `start_date`, `catchup`": schedule,
    "a Dag that waits for an asset": assets,
    "`TriggerDagRunOperator`": triggers,
    "`ApprovalOperator`, `HITLOperator`": approvals,
    "`deferrable=True`": deferrals,
    "`dagrun_timeout`": late,
}


@pytest.mark.parametrize("line", LINES)
def test_each_line_of_the_page(line: str, write_dag: Write, run: Run, dag_folder: Path) -> None:
    LINES[line](write_dag, run, dag_folder)


def test_the_page_has_these_lines_and_those_of_the_other_tests_here() -> None:
    text = (DOCS / "howto" / "run-or-airflow.md").read_text()
    first = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    others = ["Ctrl-C", "`on_failure_callback` of the Dag", "`deadline`"]
    assert sorted(first[1:]) == sorted([*LINES, *others])


def test_a_deadline_is_left_out_and_the_screen_says_so(
    write_dag: Write, run: Run, dag_folder: Path, seen: Any
) -> None:
    write_dag(ONE + "one()")
    file = dag_folder / "dag.py"
    missed = "DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(0), SyncCallback('builtins.print'))"
    file.write_text(
        file.read_text()
        .replace("import Param,", "import DeadlineAlert, DeadlineReference, Param, SyncCallback,", 1)
        .replace("@dag(", f"@dag(deadline={missed}, ", 1)
    )
    for again in (False, True):
        assert states(run(start="one") if again else run()) == {"one": "success"}
        assert seen.warnings.pop().startswith(f"the deadline of Dag {dag_folder.name} is left out: ")


def test_callbacks_of_a_dag_are_called_and_one_that_fails_is_told(
    write_dag: Write, run: Run, dag_folder: Path, seen: Any, tmp_path: Path
) -> None:
    body = "@task(retries=0)\ndef one(good: bool = {good}) -> None:\n    assert good, 'on purpose'\none()"
    for good, word in ((True, "success"), (False, "failure")):
        write_dag(body.format(good=good))
        file, told = dag_folder / "dag.py", tmp_path / word
        callbacks = f"on_{word}_callback=[broken, tell]"
        file.write_text(file.read_text().replace("@dag(", f"{tell(told)}@dag({callbacks}, ", 1))
        result = run()
        assert result.succeeded is good
        assert told.read_text() == f"{'success' if good else 'task_failure'} one {result.run_id}"
        assert (
            seen.warnings.pop()
            == f"on_{word}_callback broken of Dag {dag_folder.name} failed: ValueError: no mail"
        )


def test_fail_fast_stops_what_runs_and_skips_the_rest(
    write_dag: Write, run: Run, dag_folder: Path, tmp_path: Path
) -> None:
    write_dag(
        f"""
        import time
        from pathlib import Path
        begun = Path({str(tmp_path)!r}) / "begun"
        @task
        def bad() -> None:
            while not begun.exists():
                time.sleep(0.02)
            raise ValueError("on purpose")
        @task
        def slow() -> None:
            begun.touch()
            time.sleep(300)
        @task
        def after() -> None: ...
        bad()
        slow() >> after()
        """
    )
    file = dag_folder / "dag.py"
    file.write_text(file.read_text().replace("@dag(", "@dag(fail_fast=True, ", 1))
    result = run()
    assert states(result) == {"bad": "failed", "slow": "failed", "after": "skipped"}
    by_name = {stage.task_id: stage for stage in result.stages}
    assert by_name["slow"].message == "stopped, since bad failed and the Dag has fail_fast"


def test_a_person_is_asked_while_other_tasks_run(write_dag: Write, run: Run, seen: Any) -> None:
    write_dag(
        ONE + "from airflow.providers.standard.operators.hitl import HITLOperator\n"
        'HITLOperator(task_id="which", subject="Which?", body="of two", options=["a", "b"], multiple=True)\none()'
    )
    asked: list[Approval] = []

    def answer(question: Approval) -> tuple[str, ...] | None:
        asked.append(question)
        return question.chosen("B, a") if len(asked) > 2 else None

    seen.can_answer, seen.answer = True, answer
    assert states(run()) == {"which": "success", "one": "success"}
    assert asked[0] == Approval(
        task="which", subject="Which?", body="of two", options=("a", "b"), multiple=True
    )


def test_nobody_answers_in_time(write_dag: Write, run: Run, seen: Any) -> None:
    asks = "HITLOperator(task_id={!r}, subject='Which?', options=['a', 'b'], response_timeout=timedelta(seconds=0.5){})\n"
    write_dag(
        "from airflow.providers.standard.operators.hitl import HITLOperator\n"
        + asks.format("open", "")
        + asks.format("told", ", defaults=['b']")
    )
    seen.can_answer, seen.answer = True, lambda question: None
    assert states(run()) == {"open": "failed", "told": "success"}


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_a_plain_function_that_is_stopped_is_killed(
    number: int, write_dag: Write, dag_folder: Path, home: EmbeddedHome, tmp_path: Path
) -> None:
    write_dag(
        f"""
        import time
        from pathlib import Path
        @task(retries=2)
        def deaf() -> None:
            Path({str(tmp_path / "begun")!r}).touch()
            time.sleep(300)
        deaf()
        """
    )
    with subprocess.Popen(
        [MUSTER, "run", dag_folder.name, "--dags", home.dags],
        env={**os.environ, **home.environment()},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        eventually((tmp_path / "begun").exists)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=GUARD_SECONDS)
    assert process.returncode == 130
    assert re.search(r"^deaf +failed", printed, re.MULTILINE), printed
