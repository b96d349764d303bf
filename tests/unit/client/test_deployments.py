"""``muster.deployment``, against a server that says what it was asked; ``docs/howto/ask.md`` asks a real model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import muster
from muster.core.deployment import DeploymentStatus
from muster.core.errors import DeploymentError, NotFound, SpecError


class Model(BaseHTTPRequestHandler):
    """Doubles column or field `x`; a negative one is refused, and a text breaks it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "inputs" in asked:
            values, form = [1 if x is None else x for x in asked["inputs"]["x"]], "outputs"
        else:
            values, form = [row["x"] for row in asked["instances"]], "predictions"
        status, said = (
            200,
            {form: {"y": [2 * x for x in values]} if form == "outputs" else [2 * x for x in values]},
        )
        if any(isinstance(x, str) for x in values):
            status, said = 500, {"error": "the model failed"}
        elif any(x < 0 for x in values):
            status, said = 400, {"error": "input 'x': found -1.0 at position 0"}
        assert self.path == "/v1/models/doubles:predict"
        self.send_response(status)
        self.send_header("Muster-Model", "volume://lab/doubles@3")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def doubles() -> Iterator[muster.Deployment]:
    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield asked_at(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def asked_at(url: str) -> muster.Deployment:
    return muster.Deployment(DeploymentStatus(name="doubles", url=url, ready=True, token=""))


class Array(list[Any]):
    """Has the one method of NumPy's and pandas' that is asked for."""

    def tolist(self) -> list[Any]:
        return list(self)


def test_the_answer_has_the_form_of_the_question(doubles: muster.Deployment) -> None:
    assert doubles.model is None
    assert doubles.predict({"x": [1, 2.5]}) == {"y": [2, 5.0]}
    assert doubles.predict([{"x": 1}, {"x": 2.5}]) == [2, 5.0]
    assert doubles.predict({"x": Array([1, 2])}) == {"y": [2, 4]}
    assert doubles.predict({"x": [None, float("nan"), 2]}) == {"y": [2, 2, 4]}  # two nulls
    assert doubles.model == "volume://lab/doubles@3"


def test_rows_for_this_machine_go_through_no_proxy(
    doubles: muster.Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert doubles.predict({"x": [1]}) == {"y": [2]}


@pytest.mark.parametrize(
    ("x", "says"),
    [(-1.0, "answered 400: \"input 'x': found -1.0"), ("a", "answered 500: 'the model failed'")],
)
def test_what_the_model_says_is_the_error(doubles: muster.Deployment, x: object, says: str) -> None:
    with pytest.raises(DeploymentError, match=says):
        doubles.predict([{"x": x}])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"x": [1.0, float("inf")]}, r"input 'x'\[1\] is inf: a model takes finite numbers"),
        ([{"x": 1}, {"x": object()}], "input 'x' of row 1 is object"),
        ("x", "given str: give columns"),
        ([1, 2], "given list: give columns"),
    ],
)
def test_what_cannot_be_sent_is_named(doubles: muster.Deployment, rows: object, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        doubles.predict(rows)


def test_a_deployment_that_does_not_answer_says_where_to_look() -> None:
    with pytest.raises(
        DeploymentError, match=r"does not answer at http://127\.0\.0\.1:9.*muster deployments show doubles"
    ):
        asked_at("http://127.0.0.1:9").predict({"x": [1]})


@pytest.mark.usefixtures("history")
def test_an_unknown_deployment_is_refused_with_those_that_are() -> None:
    with pytest.raises(NotFound, match="no deployment 'flihgts'; known are: none"):
        muster.deployment("flihgts")
