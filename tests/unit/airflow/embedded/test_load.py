"""The params of a run, as a command line gives them."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, Param

from muster.airflow.embedded.load import read_params
from muster.core.errors import SpecError

DEFAULTS: dict[str, Any] = {
    "fail": False, "n": 1, "rate": 0.5, "l": [1], "o": {}, "word": "a", "none": None,
    "either": Param(1, anyOf=[{"type": "integer"}, {"type": "string"}]), "few": Param(1, enum=[1, 2]),
    "some": Param(None, enum=[None, 1, "2"]),
}  # fmt: skip


def read(**given: Any) -> dict[str, Any]:
    return read_params(DAG("own", schedule=None, params=DEFAULTS), given)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("fail", "false", False), ("n", "5", 5), ("rate", "1", 1), ("l", "[2, 3]", [2, 3]), ("o", '{"a": 1}', {"a": 1}),
        ("word", "5", "5"), ("either", "5", 5), ("either", "x", "x"), ("few", "2", 2),
        ("some", "1", 1), ("some", "2", "2"), ("some", "null", None),
    ],
)  # fmt: skip
def test_a_param_without_a_type_has_that_of_its_default(name: str, text: str, value: Any) -> None:
    found = read(**{name: text})
    assert found == {name: value}
    assert type(found[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("n", "x", "'x' is not of type 'integer'"),
        ("n", "0.5", "0.5 is not of type 'integer'"),
        ("fail", "no", "'no' is not of type 'boolean'"),
        ("l", "1", "1 is not of type 'array'"),
        ("few", "3", "3 is not one of"),
        ("none", "1", r"neither a type nor a default that tells one: write 'none': Param\(None, type="),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"param '{name}' of Dag own.*{said}"):
        read(**{name: text})
