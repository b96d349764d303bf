"""What a release decides and says, without a model or a server."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.deploy import default_server
from muster.airflow.operators.releasing import (
    asker,
    curl_line,
    example_of,
    plan_of,
    read_comparison,
    read_smoke,
    refusal_text,
)
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.plan import Comparison, Plan, Rules
from muster.core.data import Pinned
from muster.core.deployment import DeploymentStatus, Revision, RevisionState, SmokeRequest
from muster.core.errors import SpecError
from muster.core.origin import Origin
from muster.volumes.folder import FolderStore

DIGEST = "b3:" + "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> DagFolder:
    return DagFolder(file=tmp_path / "dag.py", bundle=tmp_path)


SMOKE = [
    {"name": "noon", "inputs": {"hour": [12], "carrier": ["it's"]}, "expect": {"late": {"min": 0, "max": 1}}}
]


def test_the_curl_line_sends_the_first_smoke_request(folder: DagFolder) -> None:
    (folder.path / "smoke.json").write_text(json.dumps(SMOKE))
    smoke = read_smoke(folder, "smoke.json")
    status = DeploymentStatus(name="flights", url="http://127.0.0.1:8081", ready=True, token="1")
    words = shlex.split(curl_line(status, smoke))
    assert words[:3] == ["curl", "-si", "http://127.0.0.1:8081/v1/models/flights:predict"]
    assert json.loads(words[-1]) == {"inputs": {"hour": [12], "carrier": ["it's"]}}
    assert curl_line(status, ()) == "curl -si http://127.0.0.1:8081/v2/models/flights"


def test_the_curl_line_sends_the_models_own_example_where_there_is_no_smoke_request(tmp_path: Path) -> None:
    status = DeploymentStatus(name="flights", url="http://127.0.0.1:8081", ready=True, token="1")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "example.json").write_text('{"inputs": {"hour": [12]}}')
    store = FolderStore(tmp_path / "store")
    model = store.add("flights/model", tmp_path / "model").address
    words = shlex.split(curl_line(status, (), example=example_of(store, model)))
    assert words[2].endswith("/v1/models/flights:predict")
    assert json.loads(words[-1]) == {"inputs": {"hour": [12]}}
    assert example_of(store, "volume://flights/model@9") == ""


def test_the_curl_line_of_this_machine_asks_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    here = DeploymentStatus(name="flights", url="http://127.0.0.1:8081", ready=True, token="1")
    words = shlex.split(curl_line(here, ()))
    assert words == ["curl", "-si", "--noproxy", "*", "http://127.0.0.1:8081/v2/models/flights"]
    assert curl_line(replace(here, url="http://flights.models"), ()).startswith("curl -si http://flights")


def test_the_curl_line_takes_a_token_from_a_variable() -> None:
    status = DeploymentStatus(name="flights", url="http://127.0.0.1:8081", ready=True, token="1")
    assert curl_line(status, (), token=True).endswith('/v2/models/flights -H "Authorization: Bearer $TOKEN"')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "smoke requests smoke.json: not JSON: .*line 1"),
        ("{}", "expected a list"),
        ("[]", "one or more"),
        ('[{"name": "x"}]', "number 1 has no inputs"),
        ('[{"inputs": {"a": 3}}]', "number 1: 'a' needs a list"),
        ('[{"inputs": {"a": [1], "b": [1, 2]}}]', "the same number of values"),
        ('[{"inputs": {"a": [1]}, "expects": {}}]', "unknown field 'expects'"),
        ('[{"inputs": {"a": [1]}, "expect": {"p": {"least": 0}}}]', "p expects 'least'"),
        ('[{"inputs": {"a": [1]}, "expect": [1]}]', r"number 1: expect is \[1\], need bounds by output"),
        ('[{"inputs": {"a": [1]}, "expect": {"p": 5}}]', "number 1: 'p' expects 5, need such as"),
        ('[{"inputs": {"a": [1]}, "expect": {"p": {"min": "x"}}}]', "'p' expects {'min': 'x'}, need such as"),
    ],
)
def test_smoke_requests_that_are_wrong_are_named(folder: DagFolder, text: str, says: str) -> None:
    (folder.path / "smoke.json").write_text(text)
    with pytest.raises(SpecError, match=says):
        read_smoke(folder, "smoke.json")


def test_smoke_requests_that_are_not_there_are_told_with_how_to_do_without(folder: DagFolder) -> None:
    with pytest.raises(SpecError, match="Write one, or say smoke=None"):
        read_smoke(folder, "smoke.json")


def test_a_refusal_for_a_smoke_request_names_its_file() -> None:
    reason = "smoke request 'one carat': input 'table' is missing; this model takes carat, table"
    outcome = Outcome(ending=Ending.ROLLED_BACK, revision="r2", reason=reason)
    text = refusal_text(None, outcome, name="f", model=MODEL, smoke="smoke.json")
    assert text.splitlines()[1] == f"{reason}; that request stands in smoke.json"


@pytest.mark.parametrize(
    ("run_id", "told"),
    [
        ("muster__1", "; a mended model: `muster run f --from train`, a mended Dag: clear the task"),
        ("manual__1", "; a mended model: clear train, a mended Dag: clear the task"),
        ("", ""),
    ],
)
def test_a_refusal_says_how_the_model_is_made_again(run_id: str, told: str) -> None:
    outcome = Outcome(ending=Ending.ROLLED_BACK, revision="r2", reason="the graph's outputs are variable")
    maker = Origin(dag_id="f", run_id=run_id, task_id="train")
    text = refusal_text(None, outcome, name="f", model=MODEL, maker=maker, again=RELEASING.again)
    assert text.splitlines()[3] == f"all of it: muster deployments show f{told}"


MODEL = "volume://f/model@2"
RELEASING = Origin(dag_id="release", run_id="manual__2", task_id="deploy")  # another Dag than the model's


@pytest.mark.parametrize(
    ("champion", "last"),
    [
        (100, "f/model@1 serves 100 % of the users"),
        (95, "f/model@1 serves 95 % of the users, which does not answer now: its keeper is gone"),
        (0, "nothing serves under this name"),
        (None, "nothing serves under this name"),
    ],
)
def test_what_was_not_released_says_why_and_what_serves_on(champion: int | None, last: str) -> None:
    model = Pinned(address="volume://f/model@1", digest=DIGEST)
    serving = Revision(name="r1", model=model, state=RevisionState.SERVING, percent=champion or 0)
    status = DeploymentStatus(name="f", url="u", ready=champion != 95, token="1", revisions=(serving,))
    status = replace(status, reason="" if status.ready else "its keeper is gone")
    outcome = Outcome(ending=Ending.ROLLED_BACK, revision="r2", reason="p is 7")
    text = refusal_text(None if champion is None else status, outcome, name="f", model=MODEL)
    assert text.splitlines() == [
        "release rolled back: f/model@2 as f",
        "p is 7",
        last,
        "all of it: muster deployments show f",
    ]


COMPARISON = {"requests": [{"inputs": {"x": [1, 2]}, "labels": [0, 1]}], "output": "p", "metric": "auc"}


def test_a_comparison_is_read_with_its_labels(folder: DagFolder) -> None:
    (folder.path / "c.json").write_text(json.dumps(COMPARISON | {"worse_by": 0.01, "agreement": 0.9}))
    found = read_comparison(folder, "c.json")
    assert found == Comparison(
        requests=(SmokeRequest(name="request 1", inputs={"x": (1, 2)}),),
        output="p",
        metric="auc",
        labels=((0.0, 1.0),),
        worse_by=0.01,
        agreement=0.9,
    )
    assert read_comparison(folder, None) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"requests": 3}, 'comparison c.json: expected {"requests"'),
        ({"requests": [{}]}, "comparison c.json: number 1 has no inputs"),
        ({"requests": []}, "comparison c.json: a comparison needs requests"),
        ({"metrics": "auc"}, "comparison c.json has an unknown field 'metrics'"),
        ({"metric": "f1"}, "comparison c.json: metric 'f1' is unknown"),
        ({"output": 1}, "output is 1, need the name of one"),
        ({"worse_by": "x"}, "worse_by is 'x', need a number"),
        ({"requests": [{"inputs": {"x": [1]}, "labels": ["a"]}]}, r"request 1: labels is \['a'\]"),
        ({"requests": [{"inputs": {"x": [1]}}]}, "labels: auc needs as many as there are rows"),
        ({"requests": [{"inputs": {"x": ["y" * (1 << 20)]}}]}, "a sample of the rows will do"),
    ],
)
def test_a_comparison_that_is_wrong_is_named(folder: DagFolder, changes: dict[str, Any], says: str) -> None:
    (folder.path / "c.json").write_text(json.dumps(COMPARISON | changes))
    with pytest.raises(SpecError, match=says):
        read_comparison(folder, "c.json")


def test_an_authors_steps_and_holds_are_a_plan() -> None:
    minute = timedelta(minutes=1)
    assert plan_of((100,), None, None) == Plan()
    assert plan_of([5, 100], None, None) == Plan(steps=(5, 100), hold_seconds=(300.0,))
    assert plan_of([5, 100], [minute, 2 * minute], None).hold_seconds == (60.0, 120.0)
    assert plan_of([5], minute, Rules(max_p95_ratio=None)).rules.max_p95_ratio is None
    with pytest.raises(SpecError, match="need one, or 2"):
        plan_of([5, 100], [minute] * 3, None)


def test_who_asks_is_the_same_for_every_try() -> None:
    origin = Origin(dag_id="flights", task_id="deploy", run_id="manual")
    assert asker(origin) == "flights.deploy, manual"
    assert asker(replace(origin, map_index=3)) == "flights.deploy[3], manual"


@pytest.mark.parametrize(
    ("image", "servers", "chosen"),
    [
        (None, ("serve", "kserve"), "serve"),
        (None, ("kserve", "serve", "seldon"), "kserve"),
        ("serve", ("kserve", "serve", "seldon"), "serve"),
        ("mine", ("kserve", "serve", "seldon"), "kserve"),
    ],
)
def test_a_deployment_that_names_no_server_has_its_images_or_the_places(
    image: str | None, servers: tuple[str, ...], chosen: str
) -> None:
    assert default_server(image, servers) == chosen
