"""What a release decides and says, without a model or a server."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.releasing import asker, curl_line, read_smoke, refusal_text
from muster.backends.releases.decision import Ending, Outcome
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.errors import SpecError
from muster.core.job import Origin, Pinned

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
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8081/v1/models/flights:predict"]
    assert json.loads(words[-1]) == {"inputs": {"hour": [12], "carrier": ["it's"]}}
    assert curl_line(status, ()) == "curl -s http://127.0.0.1:8081/v2/models/flights"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "are not JSON: .*line 1"),
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


MODEL = "volume://f/model@2"


@pytest.mark.parametrize(
    ("champion", "last"),
    [(100, "volume://f/model@1 serves on"), (0, "nothing serves under this name"), (None, "nothing serves")],
)
def test_what_was_not_released_says_why_and_what_serves_on(champion: int | None, last: str) -> None:
    model = Pinned(address="volume://f/model@1", digest=DIGEST)
    serving = Revision(name="r1", model=model, state=RevisionState.SERVING, percent=champion or 0)
    status = DeploymentStatus(name="f", url="u", ready=True, token="1", revisions=(serving,))
    outcome = Outcome(ending=Ending.ROLLED_BACK, revision="r2", reason="p is 7")
    text = refusal_text(None if champion is None else status, outcome, name="f", model=MODEL)
    first, second, third = text.splitlines()
    assert (first, second) == (f"deployment f rolled back: {MODEL}", "p is 7")
    assert third.startswith(last)
    assert third.endswith("; see muster deployments show f")


def test_who_asks_is_the_same_for_every_try() -> None:
    origin = Origin(dag_id="flights", task_id="deploy", run_id="manual")
    assert asker(origin) == "flights.deploy, manual"
    assert asker(replace(origin, map_index=3)) == "flights.deploy[3], manual"
