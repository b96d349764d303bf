"""A job of the board as JSON values: one line of a list, or everything that the page shows of it."""

from __future__ import annotations

from typing import Any

from muster.airflow.page.task import task
from muster.core.job import JobSpec
from muster.core.status import JobStatus
from muster.core.wire import plain
from muster.ext.page.board import Job

MADE = 3


def row(job: Job) -> dict[str, Any]:
    """Return one line of the list, as JSON values. Times are seconds since the epoch."""
    return {
        "job_id": job.job_id,
        "state": job.state,
        "error": job.error,
        **_asked(job.spec),
        **_became(job.status),
        "failed_expectations": job.failed_expectations,
    }


def drift_report(job: Job) -> dict[str, Any]:
    """Return the report that a job made of a deployment's drift."""
    assert job.status is not None
    result = job.status.result
    assert result is not None
    numbers = {metric: result.metrics.get(metric, 0) for metric in ("drifted", "columns", "rows")}
    return {"address": result.outputs["report"][0], "at": job.status.ended, **numbers}


def _asked(spec: JobSpec | None) -> dict[str, Any]:
    if spec is None:
        return {}
    return {
        "name": spec.name,
        "origin": plain(spec.origin),
        **task(spec.origin),
        "queue": spec.queue,
        "priority": spec.priority,
        "ranks": spec.world_size,
        "gpus": sum(role.replicas * role.resources.gpus for role in spec.roles),
    }


def _became(status: JobStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "submitted": status.submitted,
        "started": status.started,
        "ended": status.ended,
        "reason": status.reason,
        "restarts": status.restarts,
        "alive": status.alive,
        "verdict": plain(status.verdict),
        "progress": {
            name: {"text": str(number), **plain(number)} for name, number in status.progress.items()
        },
        "links": dict(status.links),
        **_made(status),
    }


def _made(status: JobStatus) -> dict[str, Any]:
    """Return the first few versions of a job, and the number of all."""
    outputs = status.result.outputs.values() if status.result else ()
    made = [address for addresses in outputs for address in addresses]
    return {"made": made[:MADE], "made_in_all": len(made)}


def detail(job: Job) -> dict[str, Any]:
    """Return everything that the page shows of one job; without env variables and secrets."""
    assert job.spec is not None
    assert job.status is not None
    result = job.status.result
    return {
        **row(job),
        "search": job.status.owner if job.is_trial else None,
        "image": job.spec.image,
        "launcher": job.spec.launcher.value,
        "roles": plain(job.spec.roles),
        "inputs": {name: [v.address for v in given.versions] for name, given in job.spec.inputs.items()},
        "outputs": {name: list(result.outputs.get(name, ())) if result else [] for name in job.spec.outputs},
        "writes": {name: output.volume for name, output in job.spec.outputs.items()},
        "params": plain(job.spec.params),
        "metrics": dict(result.metrics) if result else {},
        "run_timeout_seconds": job.spec.run_timeout_seconds,
    }
