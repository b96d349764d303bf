"""What a replica knows of its gang's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.job import JobSpec, Role
from muster.core.replica import HANG_WORD, Replica, read_report, starts_again
from muster.core.verdict import Cause, Verdict


def test_a_report_that_is_not_there_is_none_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert read_report(str(tmp_path / "none")) is None
    (tmp_path / "torn").write_text('{"exit_')
    assert read_report(str(tmp_path / "torn")) is None
    with pytest.raises(IsADirectoryError):
        read_report(str(tmp_path))


@pytest.mark.parametrize(
    ("grace_seconds", "hangs", "seconds"), [(0.5, False, 0.5), (30, False, 3), (0.5, True, 10)]
)
def test_ranks_that_hang_have_longer_to_say_where_they_stand(
    grace_seconds: float, hangs: bool, seconds: float, tmp_path: Path
) -> None:
    role = Role(command=("python", "-c", "pass"))
    spec = JobSpec(
        name="a.b", image="python", image_digest="b3:" + "0" * 64, roles=(role,), grace_seconds=grace_seconds
    )
    replica = Replica(
        job_id="a-b-1",
        spec=spec,
        attempt=1,
        role=role.name,
        index=0,
        code=None,
        inputs={},
        staging={},
        checkpoints="",
        scratch="",
        sealed=str(tmp_path / "main-0.part-manifest"),
        report="",
    )
    if hangs:
        (tmp_path / HANG_WORD).touch()
    assert replica.ending_seconds() == seconds


@pytest.mark.parametrize(
    ("cause", "word"), [(Cause.CANCELLED, "evicted"), (Cause.RANK_LOST, "rank lost"), (Cause.HANG, "hang")]
)
def test_what_starts_again_was_cancelled_by_nobody(cause: Cause, word: str) -> None:
    said = starts_again(Verdict(cause=cause, message="replica main-1 was told to stop", advice="a"))
    assert (
        said
        == f"[muster] {word}: replica main-1 was told to stop; the whole gang starts again from its checkpoint"
    )
