"""Values of requests: which are null, which are outside what the training rows had, and which are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np  # noqa: TID253 - what the server has
import pytest

from muster_serving.column import Column
from muster_serving.errors import ModelError, RequestError
from muster_serving.process.layout import RecordLayout
from muster_serving.signature import ModelSignature


def column(datatype: str, **entry: Any) -> Column:
    return Column.parse("inputs[0]", {"name": "x", "datatype": datatype, **entry}, of=2)


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ({"datatype": "INT64", "min": 1, "max": 4}, [1, 4], 7),
        ({"datatype": "FP64", "max": 4.5}, [-1e300, 4.5], 4.75),
        ({"datatype": "FP32", "min": 0.10000000149011612}, [0.1, 0.2], 0.09),
        ({"datatype": "BYTES", "categories": ["a", "b"]}, ["a", "b"], "moon"),
        ({"datatype": "INT8", "categories": [3, 5]}, [5, 3], 4),
        ({"datatype": "FP32", "categories": [0.1, 0.5]}, [0.1, 0.5], 0.2),
        ({"datatype": "BOOL", "categories": [True]}, [True], False),
    ],
)
def test_what_is_outside_is_answered_unless_the_input_is_closed(
    entry: dict[str, Any], inside: list[Any], outside: Any
) -> None:
    found = column(**entry, nullable=True)
    assert not found.is_outside([*inside, None])
    assert found.is_outside([*inside, outside])
    assert len(found.array([*inside, outside, None])) == len(inside) + 2
    closed = column(**entry, closed=True)
    assert (closed.kind_outside, len(closed.array(inside))) == ("", len(inside))
    with pytest.raises(RequestError, match="input 'x': found"):
        closed.array([*inside, outside])
    with pytest.raises(RequestError, match="input 'x': found None at position 0"):
        closed.value(None)


def test_a_file_of_the_first_format_refuses_as_it_did() -> None:
    first = Column.parse("inputs[0]", {"name": "x", "datatype": "INT64", "min": 0, "max": 23})
    with pytest.raises(RequestError, match="input 'x': found 24 at position 0, expected 0 to 23"):
        first.value(24)
    with pytest.raises(ModelError, match="only BYTES and integers have categories in format 1"):
        Column.parse("inputs[0]", {"name": "x", "datatype": "BOOL", "categories": [True]})


@pytest.mark.parametrize(
    ("entry", "null"),
    [
        ({"datatype": "FP32"}, "nan"),
        ({"datatype": "FP64", "min": 0, "closed": True}, "nan"),
        ({"datatype": "INT64"}, "None"),
        ({"datatype": "UINT64", "categories": [2**64 - 1], "closed": True}, "None"),
        ({"datatype": "BOOL"}, "None"),
        ({"datatype": "BYTES"}, "None"),
        ({"datatype": "BYTES", "categories": ["a"], "closed": True}, "-1"),
        ({"datatype": "BYTES", "categories": ["a", "b"], "fallback": "b"}, "1"),
    ],
)
def test_null_and_nan_are_the_same_null(entry: dict[str, Any], null: str) -> None:
    found = column(**entry, nullable=True)
    assert [str(found.value(value)) for value in (None, math.nan)] == [null, null]
    assert str(found.array([None, found.example, math.nan])[2]) == null
    with pytest.raises(RequestError, match=r"position 2, expected .* or null"):
        found.array([None, None, {}])


def test_nan_among_bytes_is_null_where_null_is_allowed() -> None:
    values = np.array([1.0, math.nan])
    assert np.isnan(column("FP64", nullable=True).array(values)).tolist() == [False, True]
    with pytest.raises(RequestError, match="found nan at position 1, expected finite numbers"):
        column("FP64").array(values)
    with pytest.raises(RequestError, match="found inf at position 1, expected finite numbers or null"):
        column("FP64", nullable=True).array(np.array([math.nan, math.inf]))


@pytest.mark.parametrize("value", [-9223372036854776000.0, 9223372036854776000.0, 2.0**53, 7.5])
def test_a_float_that_stands_for_several_whole_numbers_is_none_of_them(value: float) -> None:
    with pytest.raises(RequestError, match="at position 0, expected INT64"):
        column("INT64").value(value)
    assert column("INT64").value(7.0) == 7
    assert column("INT64").value(-(2**63)) == -(2**63)


def test_a_graph_takes_the_place_of_a_text_and_has_no_null() -> None:
    zone = {"name": "zone", "datatype": "BYTES", "categories": ["a", "b"]}
    made = ModelSignature.parse(
        {"format": 2, "inputs": [zone], "outputs": [{"name": "y", "datatype": "FP32"}]}
    )
    assert made.outside({"zone": ["a", "moon"]}) == ("zone",)
    placed = made.with_places()
    assert placed.inputs["zone"].array(["b", "a"]).tolist() == [1, 0]
    assert placed.outside({"zone": ["a", "moon"]}) == ()
    with pytest.raises(RequestError, match="found text 'moon', expected one of a, b"):
        placed.inputs["zone"].value("moon")
    for more, holds in (({"nullable": True}, False), ({"nullable": True, "fallback": "a"}, True)):
        made = ModelSignature.parse({**made.document, "inputs": [{**zone, **more}]})
        if holds:
            made.check_nulls("a graph")
        else:
            with pytest.raises(ModelError, match="'zone' is nullable, and a graph has no null of BYTES"):
                made.check_nulls("a graph")


def test_two_hundred_columns_go_to_a_worker_and_come_back_as_they_are() -> None:
    random = np.random.default_rng(42)
    for _ in range(40):
        columns = [_any(random, f"x{i}") for i in range(5)]
        rows = int(random.integers(1, 5))
        asked = {c.name: [_value(random, c) for _ in range(rows * math.prod(c.tail))] for c in columns}
        layout = RecordLayout(columns)
        found = layout.unpack(layout.pack_values(asked, rows), rows)
        for one in columns:
            expected = one.array(asked[one.name]).reshape(rows, *one.tail)
            if one.is_coded:
                texts = np.array([*(one.codes or ()), None], dtype=object)
                expected = texts[expected]
            assert found[one.name].shape == expected.shape
            np.testing.assert_array_equal(found[one.name], expected)


def _any(random: np.random.Generator, name: str) -> Column:
    datatype = str(random.choice(["BOOL", "INT8", "INT64", "UINT64", "FP32", "FP64", "BYTES"]))
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "nullable": bool(random.random() < 0.6)}
    if random.random() < 0.4:
        own: dict[str, list[Any]] = {"BOOL": [True, False], "BYTES": ["a", "", "ü"]}
        entry |= {"categories": own.get(datatype, [1, 2, 3]), "closed": bool(random.random() < 0.5)}
    if random.random() < 0.3:
        entry["shape"] = [-1, 2]
    return Column.parse(name, entry, of=2)


def _value(random: np.random.Generator, one: Column) -> Any:
    if one.nullable and random.random() < 0.4:
        return None
    values = one.categories or {"BOOL": [True, False], "BYTES": ["", "münchen", "x" * 300]}.get(one.datatype)
    if values is None:
        values = [0, 1, 127, *[2**62 + 1] * one.datatype.endswith("INT64")]
    return values[random.integers(0, len(values))]


def test_half_a_pair_of_surrogates_is_shown_alone_with_its_place() -> None:
    with pytest.raises(RequestError, match=r"^input 'x': found '\\ud800' at position 1, half of a pair"):
        column("BYTES").array(["good", "ab\ud800\udc00", "\udfff"])
    with pytest.raises(RequestError, match=r"^input 'x': found '\\udfff', half of a pair"):
        column("BYTES").array(["\udfff"])
