"""What the kernel counts of its own kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.worker.memory import oom_kills

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(("text", "count"), [(V2, 2), (V1, 5), ("oom_kill_disable 0\n", 0)])
def test_both_versions_of_control_groups(text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "counts").write_text(text)
    assert oom_kills([str(tmp_path / "absent"), str(tmp_path / "counts")]) == count


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert oom_kills([str(tmp_path / "absent")]) == 0
