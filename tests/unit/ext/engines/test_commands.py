"""``muster spark``: what it says where there is no event log to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ports import free_port

from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def test_a_job_without_an_event_log_is_told_which_output_it_needs(muster: Run, history: FolderStore) -> None:
    said = muster("spark", "train-1", "--port", free_port())
    assert (said.code, said.out) == (1, "")
    assert "job train-1 keeps no event log: give its task outputs={'spark_events': 'some/volume'}" in said.err


def test_a_job_that_there_is_not(muster: Run, history: FolderStore) -> None:
    said = muster("spark", "nothing", "--port", free_port())
    assert (said.code, said.out) == (1, "")
    assert "no job 'nothing'" in said.err
