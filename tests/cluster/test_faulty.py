"""Every verdict that gangs end with on the cluster, and what it puts at the end of their logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.cluster import kubectl, left
from tests.cluster.backend import backend
from tests.cluster.faulty import FAULTS, Ended, Faulty
from tests.cluster.inside import layout

# Of each verdict test_verdicts.py has the cause, and test_airflow.py has one at the end of a task's log.
pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SOAKED = "no_image"  # a registry that is away is given minutes
SAID = {
    "cancelled": r"it was cancelled; who asked for that is not recorded",
    "waits": r"it waited longer than its queue_timeout of 1 s",
    "user_error": r"ValueError: row -1 is negative",
    "spec_error": r"the job gives param 'epoch', but the function takes",
    "killed": r"killed by SIGKILL",
    "grows": r"replica main-1 outgrew its memory limit of 0\.25 GiB",
    "hangs": r"no line and no progress for 8 s: rank 0 at faults/bad\.py:59, rank 1 at faults/bad\.py:63",
    "too_slow": r"it ran longer than its run_timeout of 5 s",
    "too_big": r"CannotSchedule: .*GiB",
    "no_image": r"cannot get image localhost/elsewhere",
}


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Ended]]:
    """All of them, side by side."""
    asked = {item.callspec.params["name"] for item in request.session.items if item.path == request.path}
    chosen = {name: fault for name, fault in FAULTS.items() if name != SOAKED or name in asked}
    folder = tmp_path_factory.mktemp("faulty")
    with backend(layout(), folder) as there:
        found = Faulty(there, folder / "work").run(chosen)
        there.sweep()
        yield found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name == SOAKED else []) for name in FAULTS]
)
def test_a_verdict_ends_the_log(name: str, ended: dict[str, Ended]) -> None:
    fault, found = FAULTS[name], ended[name]
    if fault.refused:
        assert found.status is None
        assert re.search(SAID[name], found.lines[0]), found.lines
    else:
        assert found.status is not None
        assert found.status.verdict is not None, found.status
        assert found.status.verdict.cause is fault.cause, found.status.verdict
        verdict = found.status.verdict.render(job_id=found.job_id).splitlines()
        assert found.lines[-len(verdict) :] == verdict
        assert re.search(SAID[name], "\n".join(verdict)), verdict
    kubectl.until("nothing is left of it", lambda: not left.objects(layout(), [found.job_id]), seconds=120)
