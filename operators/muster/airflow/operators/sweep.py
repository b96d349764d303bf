"""SweepOperator: now and then, ends the jobs that nobody waits for any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.airflow.operators.base import MusterOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SweepOperator(MusterOperator):
    """End the jobs of this Airflow that none of its tasks owns any more, and take away what ended jobs left.

    It returns the ids of those that it ended. Jobs of another Airflow, and what people started
    themselves, it does not end.
    """

    ui_color = "#f1f3f4"

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - it is about all tasks
        """Sweep once."""
        from muster.airflow.attempts.orphans import sweep
        from muster.airflow.attempts.standing import ask
        from muster.airflow.site import connect, instance
        from muster.core.settings import Settings

        settings = Settings.load()
        backend = connect(settings)
        swept = sweep(backend, instance(settings), ask)
        for each in swept:
            self.log.info("job %s is ended: %s (%s)", each.job_id, each.reason, each.task)
        self.log.info("%d jobs were ended that nobody owned", len(swept))
        for job_id in backend.sweep():
            self.log.info("job %s has ended: what it left is taken away", job_id)
        return {"swept": [each.job_id for each in swept]}
