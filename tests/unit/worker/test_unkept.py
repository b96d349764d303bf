"""What no version keeps is told while a job runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from muster.worker.unkept import EVERY_SECONDS, Unkept


def test_it_is_told_once_while_the_ranks_run(bench: Any) -> None:
    said: list[str] = []
    replica = bench.replica(entrypoint="t:f", outputs=("model",))
    model = Path(replica.staging["model"])
    watch = Unkept(replica, say=said.append)
    assert 0 < watch.left() <= EVERY_SECONDS
    (model / "last").symlink_to("epoch-3")  # which is written next
    watch.look(now=True)
    assert said == []
    os.mkfifo(model / "door")
    for _ in range(2):
        watch.look(now=True)
    assert said == [
        (
            "[muster] warning: output 'model' holds a named pipe, 'door': a version keeps files, folders, and links within it as "
            "the files that they name; delete it, or write a file in its place: as it is, nothing of this job is committed"
        )
    ]


def test_a_job_without_outputs_is_not_looked_at(bench: Any) -> None:
    assert Unkept(bench.replica(entrypoint="t:f"), say=print).left() == float("inf")
