"""The summary of an ended run: its stages, its figures, and its deployments.

A failed run's summary ends with its verdict.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.screen import Table, complain, note, safe, say, seconds
from muster.cli.stages import state_of, versions
from muster.core.names import check_label
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.airflow.embedded.result import Deployed, RunResult, Stage

BASELINE = "_baseline"
LONG = 120


def show(result: RunResult) -> None:
    """Print the summary on stdout: stages, figures, and after a success the deployments.

    Warnings are not repeated: they were shown during the run.
    """
    table = Table(["stage", "state", ">seconds", ">overhead", "versions"])
    for stage in result.stages:
        table.add(
            stage.task_id,
            state_of(stage),
            seconds(stage.seconds),
            seconds(stage.overhead_seconds),
            versions(stage.versions),
        )
        for each in stage.instances:
            table.add(
                f"  {each.label.removeprefix(stage.task_id)}",
                "kept" if each.kept else each.state,
                seconds(each.seconds),
                seconds(each.overhead_seconds),
                versions(each.versions),
            )
    note()
    table.show(empty="no stages")
    _show_figures(result)
    if result.succeeded:
        _succeeded(result)


def _succeeded(result: RunResult) -> None:
    if result.nothing_ran:
        params = ", ".join(f"{name}={value}" for name, value in result.params.items())
        say(
            f"\nnothing to resume: the last run of {safe(result.dag_id)}, {safe(result.run_id)}"
            f"{f' with {safe(params)}' if params else ''}, has succeeded; a new one: `muster run {safe(result.dag_id)}`"
        )
    else:
        say(f"\n{safe(result.only or result.dag_id)} succeeded in {seconds(result.seconds)}")
    if result.only and any(stage.state == "none" for stage in result.stages):
        say(f"the stages after it have not run: muster run {safe(result.dag_id)} --resume")
    for deployed in result.deployments:
        for line in answer(deployed):
            say(line)


def answer(deployed: Deployed) -> Iterator[str]:
    """Yield a deployment's address, and a command to try it."""
    served = safe(deployed.version.removeprefix("volume://"))
    yield f"\n{safe(deployed.name)} answers at {safe(deployed.url)} with {served}; try it:"
    yield f"  {safe(_shorter(deployed))}"
    if shutil.which("curl") is None:
        yield f"  this machine has no curl: install it, or in Python: muster.deployment({deployed.name!r}).predict(rows)"


def _shorter(deployed: Deployed) -> str:
    """Return the command, with a long body moved to a file, so that the line fits a screen."""
    words = shlex.split(deployed.curl)
    if len(deployed.curl) <= LONG or "-d" not in words[:-1]:
        return deployed.curl
    at = words.index("-d") + 1
    folder = Settings.load().home / "examples"
    folder.mkdir(parents=True, exist_ok=True)
    body = folder / f"{check_label('deployment', deployed.name)}.json"
    body.write_text(f"{words[at]}\n", encoding="utf-8")
    here = body.relative_to(Path.cwd()) if body.is_relative_to(Path.cwd()) else body
    return shlex.join([*words[:at], f"@{here}", *words[at + 1 :]])


def complain_of(result: RunResult) -> None:
    """Print on stderr why a run failed: its verdicts, and the path of the full log."""
    failed = [stage for stage in result.stages if stage.state == "failed"]
    messages = [f"{_first_failed(stage)}: {stage.message}" for stage in failed if stage.message]
    if not messages or result.state == "interrupted":
        messages = [
            *messages,
            f"{result.dag_id} was {result.state}; `muster run {result.dag_id} --resume` goes on from there",
        ]
    note()
    for message in messages:
        complain(message)
    if "full log:" not in messages[-1]:
        note(f"  full log: {safe(result.log)}")


def _first_failed(stage: Stage) -> str:
    """Name a message's stage: of a mapped stage, the first failed instance."""
    failed = (each.label for each in stage.instances if each.message and each.state == stage.state)
    return next(failed, stage.task_id)


def _show_figures(result: RunResult) -> None:
    """Print the metrics of each stage and instance: first those with a baseline, then the others on one line."""
    told = [
        (name, metrics)
        for stage in result.stages
        for name, metrics in (
            (stage.task_id, stage.metrics),
            *((each.label, each.metrics) for each in stage.instances),
        )
    ]
    wide = max((len(safe(name)) for name, _ in told), default=0)
    if any(metrics for _, metrics in told):
        say()
    for label, metrics in told:
        for index, text in enumerate(_figures(metrics)):
            name = "" if index else safe(label)
            say(f"{name.ljust(wide)}  {safe(text)}")


def _figures(metrics: Mapping[str, float]) -> Iterator[str]:
    paired = {name for name in metrics if f"{name}{BASELINE}" in metrics}
    for name in (name for name in metrics if name in paired):
        yield f"{name} {figure(metrics[name])}, baseline {figure(metrics[f'{name}{BASELINE}'])}"
    rest = (name for name in metrics if name not in paired and name.removesuffix(BASELINE) not in paired)
    text = ", ".join(f"{name} {figure(metrics[name])}" for name in rest)
    if text:
        yield text


def figure(value: float) -> str:
    """Format a metric for people: counts whole, fractions with four places, small numbers as powers of ten."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4f}" if 0.001 <= abs(value) < 100_000 else f"{value:.3g}"
