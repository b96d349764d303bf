"""The task of Airflow that a job is of."""

from __future__ import annotations

from dataclasses import dataclass

MUSTER_RUN = "muster__"
"""Prefix of the run ids that ``muster run`` makes, in a database of its own."""


def stage_title(task_id: str, map_index: int) -> str:
    """Write a task for people, with its map index where it is mapped: ``train[3]``."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The task that submitted the job, for records and the sweep. Empty without Airflow.

    :param trial: the number of the trial that the job trains, where the task searches.
    """

    instance: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    trial: int = -1

    @property
    def stage(self) -> str:
        """The task, as :func:`stage_title` writes it."""
        return stage_title(self.task_id, self.map_index)

    @property
    def is_trial(self) -> bool:
        """Whether the job trains a trial of a search."""
        return self.trial >= 0

    @property
    def by_muster_run(self) -> bool:
        """Whether ``muster run`` submitted the job: no other Airflow knows the run."""
        return self.run_id.startswith(MUSTER_RUN)

    @property
    def again(self) -> str:
        """How to run the task again, as a verdict says it; empty without Airflow."""
        if not self.run_id:
            return ""
        return f"`muster run {self.dag_id} --resume`" if self.by_muster_run else "clear the task"
