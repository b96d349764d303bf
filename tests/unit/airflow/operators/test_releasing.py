"""What a release decides and says, without a model or a server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.releasing import curl_line, read_smoke, refusal_text
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.errors import SpecError
from muster.core.job import Pinned

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
    status = DeploymentStatus(name="flights", url="http://127.0.0.1:8081", ready=True)
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


def test_a_refusal_says_why_and_what_serves_on() -> None:
    refused = Revision(
        model=Pinned(address="volume://f/model@2", digest=DIGEST),
        state=RevisionState.REFUSED,
        reason="p is 7",
    )
    serving = Revision(
        model=Pinned(address="volume://f/model@1", digest=DIGEST), state=RevisionState.SERVING, share=1.0
    )
    status = DeploymentStatus(name="f", url="u", ready=True, revisions=(refused, serving))
    assert refusal_text(status, refused).splitlines() == [
        "deployment f refused volume://f/model@2",
        "p is 7",
        "volume://f/model@1 serves on; see muster deployments show f",
    ]
