"""A deploy waits for its own release, and never takes a deployment back in time, also not one that is under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.errors import SpecError
from muster.core.job import Pinned
from muster.volumes.base import Version

LOADING, SERVING = RevisionState.LOADING, RevisionState.SERVING
REFUSED, RETIRED = RevisionState.REFUSED, RevisionState.RETIRED
DIGEST = "b3:" + "0" * 64


def version(number: int) -> Version:
    return Version(
        volume="f/model",
        number=number,
        digest=DIGEST,
        size_bytes=1,
        files=1,
        created=0.0,
        partition=f"2013-{number:02}",
    )


def backend(*revisions: tuple[int, RevisionState]) -> Any:
    """One whose only deployment has these revisions, newest first."""
    listed = tuple(
        Revision(
            model=version(number).pinned, state=state, reason="superseded by @3" if state is RETIRED else ""
        )
        for number, state in revisions
    )
    status = DeploymentStatus(name="f", url="u", ready=True, revisions=listed)
    resolve = {version(number).address: (version(number),) for number in range(1, 9)}.__getitem__
    return SimpleNamespace(deployment=lambda _: status, store=SimpleNamespace(resolve=resolve))


@pytest.fixture
def deploy(home: EmbeddedHome) -> Any:
    from muster.airflow import DeployOperator

    return DeployOperator(task_id="deploy", name="f", model="f/model@2")


@pytest.mark.parametrize(
    ("revisions", "says"),
    [
        ([(1, SERVING)], ""),
        ([(2, LOADING), (1, SERVING)], ""),
        ([(3, SERVING)], "back in time: partition 2013-02 is before 2013-03, which serves. A backfill"),
        ([(3, LOADING), (1, SERVING)], "before 2013-03, which serves soon. A backfill"),
        ([(3, REFUSED), (4, RETIRED), (1, SERVING)], ""),
    ],
)
def test_what_is_newer_serves_or_will(deploy: Any, revisions: Any, says: str) -> None:
    if not says:
        deploy._check_order(backend(*revisions), version(2))
        return
    with pytest.raises(SpecError, match=says):
        deploy._check_order(backend(*revisions), version(2))
    deploy.allow_older = True
    deploy._check_order(backend(*revisions), version(2))


@pytest.mark.parametrize(
    ("revisions", "says"),
    [
        ([(2, REFUSED), (1, SERVING)], "deployment f refused volume://f/model@2"),
        ([(3, LOADING), (2, RETIRED), (1, SERVING)], "f retired volume://f/model@2\nsuperseded by @3"),
    ],
)
def test_a_release_that_will_not_serve_is_not_waited_for(deploy: Any, revisions: Any, says: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=says):
        deploy._await(backend(*revisions), version(2).pinned)


def test_an_old_refusal_of_what_serves_now_is_no_refusal(deploy: Any) -> None:
    model: Pinned = version(2).pinned
    assert deploy._await(backend((2, SERVING), (2, REFUSED)), model).ready
