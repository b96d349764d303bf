"""What is left on the screen when a run has ended: its stages, its figures, and what answers now.

A failed run ends with its verdict, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from muster.cli.screen import Table, complain, note, safe, say, seconds
from muster.cli.stages import state_of, versions

if TYPE_CHECKING:
    from muster.airflow.embedded.result import Deployed, RunResult, Stage

BASELINE = "baseline_"


def show(result: RunResult) -> None:
    """Print the closing table on stdout: stages, figures, and what answers where it succeeded."""
    table = Table(["stage", "state", ">seconds", ">overhead", "versions"])
    for stage in result.stages:
        table.add(
            stage.task_id,
            state_of(stage),
            seconds(stage.seconds),
            seconds(stage.overhead_seconds),
            versions(stage.versions),
        )
    note()
    table.show(empty="no stages")
    for stage in result.stages:
        for line in _figures(stage):
            say(line)
    for warning in result.warnings:
        note(f"warning: {safe(warning)}", style="yellow")
    if result.succeeded:
        _succeeded(result)


def _succeeded(result: RunResult) -> None:
    say(f"\n{safe(result.dag_id)} succeeded in {seconds(result.seconds)}")
    for deployed in result.deployments:
        for line in answer(deployed):
            say(line)


def answer(deployed: Deployed) -> Iterator[str]:
    """Yield where a deployment answers, and a line to try it with, ready to be pasted."""
    served = safe(deployed.version.removeprefix("volume://"))
    yield f"\n{safe(deployed.name)} answers at {safe(deployed.url)} with {served}; try it:"
    yield f"  {safe(deployed.curl)}"


def complain_of(result: RunResult) -> None:
    """Print on stderr why a run failed: the verdicts, and where the full log is."""
    failed = [stage for stage in result.stages if stage.state == "failed"]
    messages = [f"{stage.task_id}: {stage.message}" for stage in failed if stage.message]
    if not messages:
        messages = [
            f"{result.dag_id} was {result.state}; `muster run {result.dag_id} --resume` goes on from there"
        ]
    note()
    for message in messages:
        complain(message)
    if "full log:" not in messages[-1]:
        note(f"  full log: {safe(result.log)}")


def _figures(stage: Stage) -> Iterator[str]:
    """Yield a stage's metrics, each beside its baseline where it has one."""
    if not stage.metrics:
        return
    against = [
        _against(stage.metrics, name) for name in stage.metrics if f"{BASELINE}{name}" in stage.metrics
    ]
    rest = [
        f"{name} {value:.4g}" for name, value in stage.metrics.items() if not _paired(stage.metrics, name)
    ]
    yield f"\n{safe(stage.task_id)}: {safe(', '.join([*against, *rest]))}"


def _against(metrics: Mapping[str, float], name: str) -> str:
    ours, theirs = metrics[name], metrics[f"{BASELINE}{name}"]
    return f"{name} {ours:.4f} against the baseline's {theirs:.4f}"


def _paired(metrics: Mapping[str, float], name: str) -> bool:
    return f"{BASELINE}{name}" in metrics or (
        name.startswith(BASELINE) and name.removeprefix(BASELINE) in metrics
    )
