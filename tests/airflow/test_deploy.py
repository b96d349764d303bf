"""A deploy waits for its own release, and never takes a deployment back in time, also not one that is under way."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import Notes
from tests.unit.backends.releases.world import NAME, World, spec

from muster.airflow.attempts.waiting import InlinePatience
from muster.airflow.authoring.code import DagFolder
from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.operators.releasing import read_smoke, smoke_digest
from muster.backends.base import Backend
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.manual import promote, roll_back
from muster.backends.releases.plan import Rules
from muster.core.deployment import (
    Batch,
    DeploymentSpec,
    DeploymentStatus,
    RequestLog,
    Revision,
    RevisionState,
)
from muster.core.errors import Behind, DeploymentError, SpecError
from muster.core.origin import Origin
from muster.core.wire import dumps, loads
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

SERVING, REFUSED, RETIRED = RevisionState.SERVING, RevisionState.REFUSED, RevisionState.RETIRED
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


def status(*revisions: tuple[int, RevisionState]) -> DeploymentStatus:
    """A deployment with these revisions, newest first."""
    listed = tuple(
        Revision(
            name=f"r{number}",
            model=version(number).pinned,
            state=state,
            percent=100 if state is SERVING else 0,
            reason="" if state is SERVING else f"because {number}",
        )
        for number, state in revisions
    )
    return DeploymentStatus(name="f", url="u", ready=True, token="1", revisions=listed)


def task(*revisions: tuple[int, RevisionState], run_type: str = "manual", refuses: str = "") -> Any:
    """One whose backend's only deployment is so, and which refuses to deploy anything."""
    asked: list[bool] = []

    def prepare(_: Any, *, by: str, origin: Origin, allow_older: bool) -> Revision:
        asked.append(allow_older)
        if refuses and not allow_older:
            raise Behind(refuses)
        return Revision(name="r2", model=version(2).pinned, state=RevisionState.STARTING)

    found = SimpleNamespace(
        deployment=lambda _: status(*revisions), prepare=prepare, limits=SimpleNamespace(only_whole="")
    )
    patience, record = InlinePatience(deadline=None), SimpleNamespace(origin=Origin())
    context = {"dag_run": SimpleNamespace(run_type=run_type), "task_state_store": Notes()}
    return SimpleNamespace(
        backend=SimpleNamespace(deployments=found, store=SimpleNamespace(record=lambda _: record)),
        context=context,
        asked=asked,
        origin=Origin(dag_id="d", task_id="deploy", run_id="r"),
        patience=lambda: patience,
        max_tries=2,
        retries=2,
        owner="first",
        deadline=None,
        defer=None,
    )


SPEC = DeploymentSpec(name="f", model=version(2).pinned, image="serve", image_digest=DIGEST)


@pytest.fixture
def deploy(home: EmbeddedHome) -> Any:
    from muster.airflow import DeployOperator

    return DeployOperator(task_id="deploy", name="f", model="f/model@2")


def test_what_is_older_is_refused_unless_it_is_allowed(deploy: Any) -> None:
    older = task(refuses="@2 would take f back in time: @3 serves")
    with pytest.raises(
        SpecError, match=r"back in time: @3 serves\. A backfill must not do that; say allow_older"
    ):
        deploy.begin_release(older, lambda: SPEC)
    deploy.allow_older = True
    assert deploy.begin_release(older, lambda: SPEC).revision == "r2"
    assert older.asked == [False, True]


def test_in_a_backfill_what_is_older_is_skipped(deploy: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    with pytest.raises(AirflowSkipException, match="not deployed: @2 would take f back in time"):
        deploy.begin_release(
            task(run_type="backfill", refuses="@2 would take f back in time: @3 serves"), lambda: SPEC
        )


REFUSAL = [(2, REFUSED), (1, SERVING)]
PASSED_BY = [(3, SERVING), (2, RETIRED)]


@pytest.mark.parametrize(
    ("revisions", "run_type", "end", "says"),
    [
        (
            REFUSAL,
            "manual",
            "AirflowFailException",
            "release rolled back: f/model@2 as f\nbecause 2\nf/model@1 serves 100 % of the users\n",
        ),
        (
            REFUSAL,
            "backfill",
            "AirflowFailException",
            "release rolled back: f/model@2 as f\nbecause 2\nf/model@1 serves 100 % of the users\n",
        ),
        (
            PASSED_BY,
            "manual",
            "AirflowFailException",
            "release superseded: f/model@2 as f\nbecause 2\nf/model@3 serves 100 % of the users\n",
        ),
        (
            PASSED_BY,
            "backfill",
            "AirflowSkipException",
            "release superseded: f/model@2 as f\nbecause 2\nf/model@3 serves 100 % of the users\n",
        ),
    ],
)
def test_a_release_that_will_not_serve_is_not_waited_for(
    deploy: Any, revisions: Any, run_type: str, end: str, says: str
) -> None:
    from airflow.sdk import exceptions

    asking = task(*revisions, run_type=run_type)
    with pytest.raises(getattr(exceptions, end), match=says):
        deploy.await_release(asking, deploy.begin_release(asking, lambda: SPEC))


def test_what_a_trigger_saw_serve_has_served(deploy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome(ending=Ending.DONE, revision="r2")
    first = task(*PASSED_BY)
    deploy.begin_release(first, lambda: SPEC)
    monkeypatch.setattr(type(deploy), "news", {"outcome": dumps(outcome)})
    later = task(*PASSED_BY)
    later.context = first.context
    assert deploy.await_release(later, deploy.begin_release(later, lambda: SPEC)).champion.name == "r3"
    assert later.asked == []  # it was asked for before the trigger


def test_what_takes_too_long_is_taken_back(deploy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(revision="r2", order=SimpleNamespace(spec=SPEC), step=lambda: None, given_up=[])
    driver.give_up = driver.given_up.append
    patience = InlinePatience(deadline=time.time() - 1)
    deploy.hand_over_release(task(), driver, patience, waited=0.0)
    assert "it does not serve in the time that it has" in driver.given_up[0]
    deploy.rules = Rules(fewest_requests=30)
    deploy.hand_over_release(task(), driver, patience, waited=0.0)
    assert "its share widens after 30 requests at a step (fewest_requests)" in driver.given_up[1]
    late = InlinePatience(deadline=time.time() - 3600)
    with pytest.raises(DeploymentError, match="see muster deployments show f"):
        deploy.hand_over_release(task(), driver, late, waited=0.0)


def test_smoke_requests_that_changed_since_it_was_kept_are_named(deploy: Any, tmp_path: Path) -> None:
    smoke = tmp_path / "smoke.json"
    smoke.write_text('[{"name": "one", "inputs": {"x": [1]}}]')
    folder, store = DagFolder(file=tmp_path / "dag.py", bundle=tmp_path), FolderStore(tmp_path / "store")
    kept = {"version": "volume://f/model@2", "smoke": smoke_digest(read_smoke(folder, "smoke.json"))}
    assert deploy.changed_since(kept, folder, store) == ""
    smoke.write_text('[{"name": "one",\n  "inputs": {"x": [1]}}]')
    assert deploy.changed_since(kept, folder, store) == "", "they ask the same"
    smoke.write_text('[{"name": "one", "inputs": {"x": [1]}, "expect": {"y": {"min": 0, "max": 1}}}]')
    asked = read_smoke(folder, "smoke.json")
    recalled = loads(DeploymentSpec, dumps(replace(SPEC, smoke=asked))).smoke
    assert smoke_digest(recalled) == smoke_digest(asked), "also as a retry reads them back"
    smoke.write_text('[{"name": "one", "inputs": {"x": [2]}}]')
    assert deploy.changed_since(kept, folder, store) == "smoke.json changed"
    assert deploy.changed_since({"version": "volume://f/model@2"}, folder, store) == "", "none was kept"


def test_another_version_that_answers_by_now_is_named(deploy: Any) -> None:
    world = World()
    for number in (1, 2):
        made = world.prepare(spec(number), by="task")
        world.come_up(made.name)
        promote(world, NAME, made.name, by="task")
    result = {"name": NAME, "version": "volume://lines/model@2", "url": "u"}
    assert deploy.overtaken(result, world) == ""
    roll_back(world, NAME, by="ann")
    assert deploy.overtaken(result, world) == "line answers with lines/model@1 now"
    assert deploy.overtaken({**result, "version": "volume://lines/model@1"}, world) == ""
    canary = {name: value for name, value in result.items() if name != "url"}
    assert deploy.overtaken(canary, world) == "", "it promised no more than its share"
    assert deploy.overtaken({**result, "name": "other"}, world) == "other is not deployed any more"


def test_rows_for_smoke_requests_are_waited_for(home: EmbeddedHome, backend: Backend) -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from muster.airflow import DeployOperator, JobOperator, SmokeRows

    with DAG("d", schedule=None) as dag:
        rows = JobOperator(task_id="rows", image="python", entrypoint="d:go", outputs={"rows": "f/rows"})
        made = DeployOperator(
            task_id="deploy", name="f", model="f/model@2", smoke=SmokeRows(rows.versions["rows"])
        )
    assert made.upstream_task_ids == {"rows"}
    cluster: Any = World()
    assert made.images(backend) == ("serve",)
    assert made.images(cluster) == ("kserve", "serve"), "what the place runs, and what makes the rows"
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert again.get_task("deploy").upstream_task_ids == {"rows"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rows": 7}, "smoke: 7"),
        ({"rows": "f/rows", "most": 0}, "smoke: 0: expected a whole number, 1 or more"),
        ({"rows": "f/rows", "most": 5000}, "smoke: most is 5000: a smoke test has at most 1000 rows"),
        ({"rows": "f/rows", "expect": {"y": 1}}, "smoke: 'y' expects 1, need such as"),
        ({"rows": "f/rows", "expect": {"y": {"least": 1}}}, "y expects 'least'; known are min and max"),
    ],
)
def test_smoke_rows_that_make_no_sense_are_refused_where_they_are_written(
    home: EmbeddedHome, given: dict[str, Any], says: str
) -> None:
    from muster.airflow import DeployOperator, SmokeRows

    with pytest.raises(SpecError, match=says):
        DeployOperator(task_id="deploy", name="f", model="f/model@2", smoke=SmokeRows(**given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": Batch()}, "stream: a predictor that yields parts has one request at a time"),
        ({"log": RequestLog()}, "stream: an answer in parts has not the rows of its request"),
        ({"server": "seldon"}, "stream: Seldon Core's wrapper runs no predict.py"),
    ],
)
def test_what_cannot_be_streamed_is_refused_where_it_is_written(
    home: EmbeddedHome, given: dict[str, Any], says: str
) -> None:
    from muster.airflow import DeployOperator

    with pytest.raises(SpecError, match=says):
        DeployOperator(task_id="deploy", name="f", model="f/model@2", stream=True, **given)
