"""A run on the screen: while it goes on, and what is left when it has ended."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console

from muster.airflow.embedded.result import Deployed, Instance, Listener, RunResult, Stage
from muster.cli import run_summary
from muster.cli.progress import Seldom
from muster.cli.run import finish, read_param
from muster.cli.stages import LiveView, PlainView, state_of, versions
from muster.core.errors import SpecError
from muster.core.status import JobState, JobStatus

FEATURES = Stage(
    task_id="features",
    state="success",
    seconds=8.4,
    overhead_seconds=0.21,
    kept=True,
    versions={"features": tuple(f"volume://flights/features@{n}" for n in range(1, 13))},
)
TRAIN = Stage(
    task_id="train",
    state="success",
    seconds=41.5,
    overhead_seconds=0.3,
    versions={"model": ("volume://flights/model@1",)},
    metrics={"auc": 0.7242, "auc_baseline": 0.7161, "rows": 82609.0, "difference": 1.8e-7},
)
DEPLOYED = Deployed(
    name="flights",
    url="http://127.0.0.1:8081",
    version="volume://flights/model@1",
    curl="curl -s http://127.0.0.1:8081/v2/health/ready",
)
SUCCESS = RunResult(
    dag_id="flights",
    run_id="muster__1",
    state="success",
    seconds=61.2,
    log="/home/airflow/logs/flights.log",
    stages=(FEATURES, TRAIN),
    deployments=(DEPLOYED,),
)
VERDICT = "user error, rank 1\nValueError: [bold]no[/bold] \x1b[2J\nmend train.py\nfull log: muster jobs logs train-1"


def status(state: JobState, reason: str) -> JobStatus:
    return JobStatus(job_id="train-1", state=state, submitted=1.0, reason=reason)


FAILURE = replace(
    SUCCESS,
    state="failed",
    stages=(
        FEATURES,
        Stage(task_id="train", state="failed", seconds=3.0, message=VERDICT),
        Stage(task_id="deploy", state="upstream_failed"),
    ),
    deployments=(),
)


def play(listener: Listener) -> None:
    listener.note("image train: installing 80 packages, 12 s")
    listener.run_started("muster__1", ["features", "train", "deploy"])
    listener.task_ended(FEATURES)
    listener.task_started("train", 2, runs_a_job=True)
    listener.job("train", status(JobState.QUEUED, "waiting for 2 GPUs: 1 of 2 free"))
    listener.job("train", status(JobState.PREPARING, ""))
    listener.job("train", status(JobState.RUNNING, ""))
    listener.lines("train", ["[rank 3] epoch 1", "[bold]x[/bold] \x1b[31mred\x1b[0m \x1b[2J"])
    listener.warning("fewer GPUs than asked for")
    listener.task_ended(TRAIN)


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def drawn(terminal: Console) -> str:
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView() as listener:
        play(listener)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "image train: installing 80 packages, 12 s",
        "run muster__1: features, train, deploy",
        "features: kept, 8.4 s, flights/features@1…@12",
        "train: queued: waiting for 2 GPUs: 1 of 2 free",
        "train: started again, try 2",
        "train | [rank 3] epoch 1",
        r"train | [bold]x[/bold] red \x1b[2J",
        "warning: fewer GPUs than asked for",
        "train: success, 41.5 s, flights/model@1",
    ]


def test_on_a_terminal_lines_scroll_above_a_table_of_stages(terminal: Console) -> None:
    view = LiveView(terminal)
    with view as listener:
        play(listener)
        terminal.print(view.render())
        table = [line.split() for line in drawn(terminal).splitlines()]  # the view draws by itself, too
    assert ["stage", "state", "seconds", "versions"] in table
    assert ["features", "kept", "8.4", "s", "flights/features@1…@12"] in table
    assert ["train", "success", "41.5", "s", "flights/model@1"] in table
    assert ["deploy", "waiting"] in table
    assert "train │ [rank 3] epoch 1" in drawn(terminal)
    assert r"[bold]x[/bold] red \x1b[2J" in drawn(terminal)


def test_a_running_stage_shows_its_clock(terminal: Console) -> None:
    view = LiveView(terminal)
    with view as listener:
        listener.run_started("muster__1", ["train"])
        listener.task_started("train", 1, runs_a_job=True)
        terminal.print(view.render())
    assert any(line.split()[:2] == ["train", "running"] for line in drawn(terminal).splitlines())


def test_a_stage_whose_job_waits_says_what_for(terminal: Console) -> None:
    view = LiveView(terminal)
    with view as listener:
        listener.run_started("muster__1", ["train"])
        listener.task_started("train", 1, runs_a_job=True)
        listener.job("train", status(JobState.QUEUED, "queue gpus: 2 before it"))
        terminal.print(view.render())
        assert any(
            "train  queued" in line and "queue gpus: 2 before it" in line
            for line in drawn(terminal).splitlines()
        )
        before = len(drawn(terminal))
        listener.job("train", status(JobState.RUNNING, ""))
        terminal.print(view.render())
        after = drawn(terminal)[before:].splitlines()
    assert any(line.split()[:2] == ["train", "running"] for line in after)


def test_a_rank_s_first_line_may_come_before_the_state_that_tells_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainView() as listener:
        listener.task_started("train", 1, runs_a_job=True)
        listener.lines("train", ["[muster] fewer GPUs", "[rank 0] here"])
        listener.job("train", status(JobState.RUNNING, ""))
        listener.task_started("say", 1, runs_a_job=False)
    assert capsys.readouterr().err.splitlines() == [
        "train | [muster] fewer GPUs",
        "train: started",
        "train | [rank 0] here",
        "say: started",
    ]


def test_the_first_of_many_is_told_on_a_machine_that_has_just_started() -> None:
    said = list[str]()
    seldom = Seldom(said.append, clock=lambda: 5.0)
    for number in (1, 2, 3):
        seldom(f"{number}/3 flights/model@{number}")
    assert said == ["1/3 flights/model@1", "3/3 flights/model@3"]


def test_a_build_in_a_log_is_told_now_and_then() -> None:
    clock, said = [0.0], list[str]()
    seldom = Seldom(said.append, clock=lambda: clock[0])
    for second in range(336):
        clock[0] = second
        seldom(f"image hvd: building horovod, {second} s")
    seldom("image etl: installing 80 packages")
    seldom("image etl: installing 81 packages")
    assert said == [
        *(f"image hvd: building horovod, {second} s" for second in (0, 60, 120, 180, 240, 300)),
        "image etl: installing 80 packages",
        "image etl: installing 81 packages",
    ]


FITS = replace(
    TRAIN,
    task_id="fit",
    metrics={},
    versions={"model": ("volume://try/m@1", "volume://try/m@2")},
    instances=tuple(
        Instance(
            map_index=number,
            label=f"fit[{number}] rate={rate}",
            state="success",
            arguments={"rate": rate},
            seconds=4.0 + number,
            overhead_seconds=0.5,
            versions={"model": (f"volume://try/m@{number + 1}",)},
            metrics={"loss": rate / 4},
        )
        for number, rate in enumerate((0.1, 0.3))
    ),
)


def test_the_instances_of_a_mapped_task_are_told_apart(
    terminal: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    for listener in (PlainView(), LiveView(terminal)):
        listener.run_started("muster__1", ["fit"])
        for instance in FITS.instances:
            listener.task_started(instance.label, 1, runs_a_job=True)
            listener.lines(instance.label, ["[rank 0] epoch=1/8"])
            listener.instance_ended(instance)
        listener.task_ended(FITS)
    plain = capsys.readouterr().err.splitlines()
    assert plain[1:5] == [
        "fit[0] rate=0.1: started",
        "fit[0] rate=0.1 | [rank 0] epoch=1/8",
        "fit[0] rate=0.1: success, 4.0 s, try/m@1",
        "fit[1] rate=0.3: started",
    ]
    assert "fit[1] rate=0.3 │ [rank 0] epoch=1/8" in drawn(terminal)
    assert "fit[1] rate=0.3 success, 5.0 s, try/m@2" in drawn(terminal)

    finish(replace(SUCCESS, stages=(FITS,), deployments=()))
    out = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["[1]", "rate=0.3", "success", "5.0", "s", "0.50", "s", "try/m@2"] in out
    assert ["fit[1]", "rate=0.3", "loss", "0.0750"] in out


def test_why_a_task_skipped_itself_or_is_tried_again_is_told_in_a_line(
    terminal: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mapped task's instances tell their own; a failure's verdict comes at the end of the run."""
    skipped = Stage(task_id="drift", state="skipped", seconds=0.2, message="100 rows: nothing is known")
    again = Stage(task_id="a", state="up_for_retry", seconds=0.4, message=VERDICT)
    one = Instance(map_index=0, label="fit[0] rate=1", state="skipped", seconds=0.1, message="no rows")
    fit = Stage(task_id="fit", state="skipped", seconds=0.1, message="no rows", instances=(one,))
    for listener in (PlainView(), LiveView(terminal)):
        for stage in (skipped, again, FAILURE.stages[1]):
            listener.task_ended(stage)
        listener.instance_ended(one)
        listener.task_ended(fit)
    assert capsys.readouterr().err.splitlines() == [
        "drift: skipped, 0.20 s: 100 rows: nothing is known",
        r"a: up_for_retry, 0.40 s: user error, rank 1: ValueError: [bold]no[/bold] \x1b[2J",
        "train: failed, 3.0 s",
        "fit[0] rate=1: skipped, 0.10 s: no rows",
        "fit: skipped, 0.10 s",
    ]
    lines = drawn(terminal).splitlines()
    assert "drift skipped: 100 rows: nothing is known" in lines
    assert r"a up_for_retry: user error, rank 1: ValueError: [bold]no[/bold] \x1b[2J" in lines
    assert "fit[0] rate=1 skipped, 0.10 s: no rows" in lines


def test_of_a_mapped_stage_the_instance_that_failed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = Instance(map_index=0, label="fit[0] rate=1", state="skipped", message="no rows")
    failed = Instance(map_index=1, label="fit[1] rate=2", state="failed", message=VERDICT)
    fit = Stage(task_id="fit", state="failed", message=VERDICT, instances=(skipped, failed))
    with pytest.raises(typer.Exit):
        finish(replace(FAILURE, stages=(fit,)))
    assert "fit[1] rate=2: user error, rank 1" in capsys.readouterr().err


def test_versions_are_written_shortly() -> None:
    assert versions({}) == ""
    assert versions({"a": ("volume://a@1", "volume://a@2"), "b": ("volume://b@7",)}) == "a@1, a@2, b@7"
    assert versions({"a": tuple(f"volume://x/a@{n}" for n in (4, 5, 6))}) == "x/a@4…@6"
    assert versions({"a": tuple(f"volume://x/a@{n}" for n in (10, 11, 9))}) == "x/a@9…@11", (
        "as mapped jobs commit"
    )
    unsorted = {
        "a": tuple(f"volume://x/a@{n}" for n in (3, 1, 2)),
        "b": ("volume://x/b@9", "volume://x/b@2", "volume://x/b@3"),
    }
    assert versions(unsorted) == "x/a@1…@3, x/b@2…@3, @9", "a range holds all that are between its ends"
    scattered = versions({"a": tuple(f"volume://a@{n}" for n in range(1, 20, 2))})
    assert scattered == "a@1, @3, @5, @7, @9, @11 and 4 more"


def test_a_mapped_stage_of_which_some_has_run_says_how_much_has_not() -> None:
    made, left = (
        Instance(map_index=number, label=f"fit[{number}]", state=state)
        for number, state in enumerate(("success", "upstream_failed"))
    )
    assert (
        state_of(Stage(task_id="fit", state="upstream_failed", instances=(left, made, made)))
        == "1 of 3 not run"
    )
    assert state_of(Stage(task_id="fit", state="upstream_failed", instances=(left, left))) == "not run"


def test_the_closing_table_has_figures_and_a_line_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    finish(SUCCESS)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["stage", "state", "seconds", "overhead", "versions"]
    assert out[1].split() == ["features", "kept", "8.4", "s", "0.21", "s", "flights/features@1…@12"]
    assert "train     auc 0.7242, baseline 0.7161" in out
    assert "          rows 82,609, difference 1.8e-07" in out
    assert "flights answers at http://127.0.0.1:8081 with flights/model@1; try it:" in out
    assert out[-1] == "  curl -s http://127.0.0.1:8081/v2/health/ready"


def test_a_warning_that_was_shown_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    warned = replace(SUCCESS, warnings=("train is kept, although its code changed",))
    finish(warned)
    captured = capsys.readouterr()
    assert "although" not in captured.out + captured.err
    finish(warned, as_json=True)
    assert json.loads(capsys.readouterr().out)["warnings"] == ["train is kept, although its code changed"]


def test_a_long_request_goes_into_a_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"inputs": {f"column_{n}": ["it's"] for n in range(40)}})
    url = "http://127.0.0.1:8081/v1/models/flights:predict"
    curl = f"curl -s {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    finish(replace(SUCCESS, deployments=(replace(DEPLOYED, curl=curl),)))
    line = capsys.readouterr().out.splitlines()[-1].strip()
    assert line == f"curl -s {url} -H 'Content-Type: application/json' -d @.muster/examples/flights.json"
    assert (home / "examples" / "flights.json").read_text() == f"{body}\n"


def test_a_failed_run_ends_with_its_verdict_and_nothing_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop:
        finish(FAILURE)
    assert stop.value.exit_code == 1
    captured = capsys.readouterr()
    assert "not run" in captured.out
    assert captured.err.splitlines()[-4:] == [
        "muster: train: user error, rank 1",
        r"  ValueError: [bold]no[/bold] \x1b[2J",
        "  mend train.py",
        "  full log: muster jobs logs train-1",
    ]


def test_an_interrupted_run_says_how_it_goes_on_and_what_had_failed_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cancelled = Stage(task_id="slow", state="cancelled", message="cancelled, job slow-1")
    with pytest.raises(typer.Exit) as stop:
        finish(replace(FAILURE, state="interrupted", stages=(*FAILURE.stages, cancelled)))
    assert stop.value.exit_code == 130
    table, said = capsys.readouterr()
    assert "muster: flights was interrupted; `muster run flights --resume` goes on from there" in said
    assert "muster: train: user error, rank 1" in said
    assert "cancelled" in table
    assert "slow-1" not in said, "that its job was ended is what was asked for"


def test_the_verdict_of_a_mapped_task_names_the_instance(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = FITS.instances
    bad = replace(bad, state="failed", message=VERDICT)
    stage = replace(FITS, state="failed", message=VERDICT, instances=(good, bad))
    run_summary.complain_of(replace(FAILURE, stages=(stage,)))
    assert "muster: fit[1] rate=0.3: user error, rank 1" in capsys.readouterr().err.splitlines()


def test_a_failed_run_without_a_job_names_airflow_s_log(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(task_id="gate", state="failed", message="auc is 0.61, need >= 0.7")
    run_summary.complain_of(replace(FAILURE, stages=(stage,)))
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "muster: gate: auc is 0.61, need >= 0.7",
        "  full log: /home/airflow/logs/flights.log",
    ]


def test_an_interrupted_run_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop:
        finish(replace(FAILURE, state="interrupted", stages=(FEATURES,)))
    assert stop.value.exit_code == 130
    assert "`muster run flights --resume`" in capsys.readouterr().err


@pytest.mark.parametrize("result", [SUCCESS, FAILURE])
def test_json_is_one_document_and_nothing_else(result: RunResult, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        finish(result, as_json=True)
    except typer.Exit:
        assert not result.succeeded
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == result.state
    assert document["stages"][0]["overhead_seconds"] == 0.21
    assert document["stages"][0]["versions"]["features"][0] == "volume://flights/features@1"


def test_params() -> None:
    assert read_param("month=2013-11") == ("month", "2013-11")
    assert read_param("where=a=b") == ("where", "a=b")


@pytest.mark.parametrize("text", ["month", "=5", ""])
def test_a_param_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="NAME=VALUE"):
        read_param(text)
