"""What an error means for the job that it ended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from muster.backends.local.finish import verdict_of
from muster.core.room import Room
from muster.core.verdict import Cause
from muster.volumes.folder import FolderStore


@pytest.mark.parametrize("named", [3, "part-0", b"/proc/x", "/proc/self/fd/4/model", None])
def test_a_full_disk_that_the_error_does_not_name_is_the_stores(tmp_path: Path, named: object) -> None:
    store = FolderStore(tmp_path / "store")
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), named)
    verdict = verdict_of(error, committing=True, job_id="j", store=store, cache=tmp_path)
    assert verdict.cause is Cause.DISK_FULL
    assert f": {Room.of(tmp_path).disk} has " in verdict.message
