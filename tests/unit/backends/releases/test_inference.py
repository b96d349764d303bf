"""Requests and answers in the words of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import pytest

from muster.backends.releases.inference import infer_request, read_answer
from muster.core.deployment import Answer, SmokeRequest
from muster.core.errors import DeploymentError

METADATA = {
    "inputs": [
        {"name": "code", "datatype": "BYTES", "shape": [-1]},
        {"name": "place", "datatype": "FP32", "shape": [-1, 3]},
    ]
}


def test_a_request_has_the_types_that_the_model_says() -> None:
    asked = SmokeRequest(name="two", inputs={"place": ((1, 2, 3), (4, 5, 6)), "code": ("a", "b")})
    assert infer_request(asked, METADATA) == {
        "inputs": [
            {"name": "place", "datatype": "FP32", "shape": [2, 3], "data": [(1, 2, 3), (4, 5, 6)]},
            {"name": "code", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        ]
    }


def test_an_input_that_the_model_does_not_take_is_named() -> None:
    with pytest.raises(DeploymentError, match="input 'x' is unknown; this model takes code, place"):
        infer_request(SmokeRequest(name="one", inputs={"x": (1,)}), METADATA)


@pytest.mark.parametrize("odd", [{}, {"inputs": 7}, {"inputs": [{"name": "x"}]}, {"inputs": ["x"]}])
def test_a_server_that_does_not_speak_the_protocol_is_told(odd: Any) -> None:
    with pytest.raises(DeploymentError, match=r"it describes itself as .*, expected inputs"):
        infer_request(SmokeRequest(name="one", inputs={"x": (1,)}), odd)


@pytest.mark.parametrize(
    ("document", "outputs"),
    [
        ({"outputs": [{"name": "y", "data": [1.0, 2.0]}]}, {"y": (1.0, 2.0)}),
        ({"outputs": []}, {}),
        ({"error": "no"}, None),
        ({"outputs": [{"name": "y"}]}, None),
        ({"outputs": 7}, None),
    ],
)
def test_an_answer_is_read_or_says_that_it_is_none(document: Any, outputs: Any) -> None:
    answer = read_answer("a", document)
    assert answer.outputs == outputs
    assert bool(answer.error) == (outputs is None)
    assert answer.replica == "a" == Answer(replica="a", outputs=None).replica
