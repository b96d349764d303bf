"""A deploy waits for its own release, and never takes a deployment back in time, also not one that is under way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.attempts.waiting import Patience
from muster.airflow.authoring.code import DagFolder
from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.operators.releasing import smoke_digest
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.errors import Conflict, SpecError
from muster.core.job import Pinned
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

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


def task(*revisions: tuple[int, RevisionState], run_type: str = "manual", refuses: str = "") -> Any:
    """One whose backend's only deployment has these revisions, newest first, or refuses to deploy."""
    listed = tuple(
        Revision(
            model=version(number).pinned, state=state, reason="superseded by @3" if state is RETIRED else ""
        )
        for number, state in revisions
    )
    status = DeploymentStatus(name="f", url="u", ready=True, revisions=listed)
    asked: list[bool] = []

    def deploy(_: Any, *, allow_older: bool) -> None:
        asked.append(allow_older)
        if refuses and not allow_older:
            raise Conflict(refuses)

    backend = SimpleNamespace(deployment=lambda _: status, deploy=deploy)
    patience = Patience(deadline=None)
    context = {"dag_run": SimpleNamespace(run_type=run_type)}
    return SimpleNamespace(
        backend=backend, context=context, asked=asked, patience=lambda: patience, deadline=None, defer=None
    )


@pytest.fixture
def deploy(home: EmbeddedHome) -> Any:
    from muster.airflow import DeployOperator

    return DeployOperator(task_id="deploy", name="f", model="f/model@2")


def test_what_is_older_is_refused_unless_it_is_allowed(deploy: Any) -> None:
    older = task(refuses="@2 would take f back in time: @3 serves")
    with pytest.raises(
        SpecError, match=r"back in time: @3 serves\. A backfill must not do that; say allow_older"
    ):
        deploy._ask(older, None)
    deploy.allow_older = True
    deploy._ask(older, None)
    assert older.asked == [False, True]


def test_in_a_backfill_what_is_older_is_skipped(deploy: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    with pytest.raises(AirflowSkipException, match="not deployed: @2 would take f back in time"):
        deploy._ask(task(run_type="backfill", refuses="@2 would take f back in time: @3 serves"), None)


REFUSAL = [(2, REFUSED), (1, SERVING)]
PASSED_BY = [(3, LOADING), (2, RETIRED), (1, SERVING)]


@pytest.mark.parametrize(
    ("revisions", "run_type", "end", "says"),
    [
        (REFUSAL, "manual", "AirflowFailException", "deployment f refused volume://f/model@2"),
        (REFUSAL, "backfill", "AirflowFailException", "deployment f refused volume://f/model@2"),
        (PASSED_BY, "manual", "AirflowFailException", "f retired volume://f/model@2\nsuperseded by @3"),
        (PASSED_BY, "backfill", "AirflowSkipException", "f retired volume://f/model@2\nsuperseded by @3"),
    ],
)
def test_a_release_that_will_not_serve_is_not_waited_for(
    deploy: Any, revisions: Any, run_type: str, end: str, says: str
) -> None:
    from airflow.sdk import exceptions

    with pytest.raises(getattr(exceptions, end), match=says):
        deploy._await(task(*revisions, run_type=run_type), version(2).pinned)


def test_an_old_refusal_of_what_serves_now_is_no_refusal(deploy: Any) -> None:
    model: Pinned = version(2).pinned
    assert deploy._await(task((2, SERVING), (2, REFUSED)), model).ready


def test_smoke_requests_that_changed_since_it_was_kept_are_named(deploy: Any, tmp_path: Path) -> None:
    (tmp_path / "smoke.json").write_text("[1]")
    folder, store = DagFolder(file=tmp_path / "dag.py", bundle=tmp_path), FolderStore(tmp_path / "store")
    kept = {"version": "volume://f/model@2", "smoke": smoke_digest(folder, "smoke.json")}
    assert deploy.changed_since(kept, folder, store) == ""
    (tmp_path / "smoke.json").write_text("[2]")
    assert deploy.changed_since(kept, folder, store) == "smoke.json"
    assert deploy.changed_since({"version": "volume://f/model@2"}, folder, store) == "", "none was kept"
