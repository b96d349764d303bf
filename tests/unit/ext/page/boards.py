"""A board over a real ledger, which has the jobs and ends of tasks of a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from muster.backends.base import Backend
from muster.core.status import JobStatus
from muster.ext.page.board import Board, Job
from muster.volumes.base import TaskEnd
from muster.volumes.folder import FolderStore


class Ledgered:
    """A board, its store, and the ids of the jobs that the backend was asked about."""

    def __init__(self, folder: Path, *jobs: Job, ends: Sequence[TaskEnd] = ()) -> None:
        self.store = FolderStore(folder / "store")
        self.asked: list[str] = []
        self.board = Board(cast("Backend", SimpleNamespace(store=self.store, statuses=self._statuses)))
        self.enter(*jobs, ends=ends)

    def enter(self, *jobs: Job, ends: Sequence[TaskEnd] = ()) -> None:
        """Enter jobs into the ledger, the newest first, as a list has them; one without documents cannot be read."""
        for job in reversed(jobs):
            folder = self.store.layout.job(job.job_id)
            if job.spec is None or job.status is None:
                folder.mkdir()
                (folder / "spec.json").write_text("torn")
                (folder / "status.json").write_text("torn")
                continue
            self.store.ledger.create(job.job_id, job.spec, owner=job.status.owner)
            self.store.ledger.update(replace(job.status, owner=None))
        for end in reversed(ends):
            self.store.ledger.end_task(end)

    def _statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        self.asked += (asked := [*job_ids])
        return {status.job_id: status for status in self.store.ledger.statuses(asked)}
