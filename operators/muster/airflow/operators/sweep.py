"""SweepOperator: ends the jobs that no task waits for any more, and takes back releases that no task watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.airflow.operators.base import MusterOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SweepOperator(MusterOperator):
    """End the jobs of this Airflow that none of its tasks owns any more, and delete what ended jobs left.

    A release whose task has ended without success is taken back, since no task watches it. A held release stays:
    a person decides on it.

    It returns ``swept``, the ids of the jobs that it ended, and ``taken_back``, the deployments whose release
    it took back. Jobs and releases of another Airflow, or started by hand, are left alone.
    """

    ui_color = "#f1f3f4"

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - it is about all tasks
        """Sweep once."""
        from muster.airflow.attempts.orphans import sweep, take_back
        from muster.airflow.attempts.task_state import ask
        from muster.airflow.site import connect, instance
        from muster.core.settings import Settings

        settings = Settings.load()
        backend, ours = connect(settings), instance(settings)
        swept = sweep(backend, ours, ask)
        for each in swept:
            self.log.info("job %s is ended: %s (%s)", each.job_id, each.why.message, each.task)
        self.log.info("%d jobs that no task waits for were ended", len(swept))
        backend.store.note_sweep()
        for job_id in backend.sweep():
            self.log.info("job %s has ended: what it left is taken away", job_id)
        taken = take_back(backend.deployments, ours, ask)
        for one in taken:
            self.log.info("%s of %s is taken back: %s (%s)", one.revision, one.deployment, one.reason, one.by)
        return {"swept": [each.job_id for each in swept], "taken_back": [one.deployment for one in taken]}
