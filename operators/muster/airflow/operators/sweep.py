"""SweepOperator: now and then, ends the jobs that nobody waits for any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.airflow.operators.base import MusterOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SweepOperator(MusterOperator):
    """End the jobs of this Airflow that none of its tasks owns any more.

    It returns the ids of those that it ended. Jobs of another Airflow, and what people started
    themselves, it does not touch.
    """

    ui_color = "#f1f3f4"

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - it is about all tasks
        """Sweep once."""
        from muster.airflow.attempts.orphans import sweep
        from muster.airflow.attempts.standing import ask
        from muster.airflow.site import connect, instance
        from muster.core.settings import Settings

        settings = Settings.load()
        swept = sweep(connect(settings), instance(settings), ask)
        for each in swept:
            self.log.info("job %s is ended: %s (%s)", each.job_id, each.reason, each.task)
        self.log.info("%d jobs were ended that nobody owned", len(swept))
        return {"swept": [each.job_id for each in swept]}
