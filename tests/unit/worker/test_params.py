from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest

from muster.core.errors import SpecError
from muster.worker.params import UNKNOWN, convert


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (5, int, 5),
        ("5", int, 5),
        ("-12", int, -12),
        ("0", int, 0),
        (5, float, 5.0),
        (0.5, float, 0.5),
        ("0.5", float, 0.5),
        ("1e-3", float, 0.001),
        (True, bool, True),
        ("True", bool, True),
        ("false", bool, False),
        ("5", str, "5"),
        ("a/b", Path, Path("a/b")),
        ("2013-03-01", date, date(2013, 3, 1)),
        ("2013-03-01T12:00:00", datetime, datetime(2013, 3, 1, 12)),  # noqa: DTZ001 - naive on purpose
        ([1, "2"], list[int], [1, 2]),
        ([1, "x"], list, [1, "x"]),
        ([1, 2], Sequence[float], [1.0, 2.0]),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1], tuple, (1,)),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        ({"a": 1}, dict, {"a": 1}),
        (None, Optional[int], None),  # noqa: UP045 - what older code writes
        ("3", int | None, 3),
        ("3", Union[int, str], "3"),  # noqa: UP007
        (3, float | str, 3.0),
        ("adam", Literal["adam", "sgd"], "adam"),
        ("2", Literal[1, 2], 2),
        ("red", Colour, Colour.RED),
        (7, Annotated[int, "layers"], 7),
        ([1], Any, [1]),
        ("5", UNKNOWN, "5"),
        (None, None, None),
    ],
)
def test_a_value_becomes_what_the_annotation_says(value: object, hint: object, expected: object) -> None:
    converted = convert("param 'x'", value, hint)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "shown"),
    [
        ("five", int, "int"),
        ("5.0", int, "int"),
        ("05", int, "int"),
        ("5 ", int, "int"),
        ("1_000", int, "int"),
        ("٣", int, "int"),
        (5.0, int, "int"),
        (True, int, "int"),
        (True, float, "float"),
        ("nan", float, "float"),
        ("inf", float, "float"),
        ("1_0.5", float, "float"),
        (" 1", float, "float"),
        ("much", float, "float"),
        (1, bool, "bool"),
        ("yes", bool, "bool"),
        (5, str, "str"),
        (None, str, "str"),
        (5, Path, "Path"),
        ("2013-3-1", date, "date"),
        ("1", list[int], "list[int]"),
        (["x"], list[int], "list[int]"),
        ([1, 2, 3], tuple[int, int], "tuple[int, int]"),
        ({"a": "x"}, dict[str, int], "dict[str, int]"),
        ([1], dict, "dict"),
        ("rmsprop", Literal["adam", "sgd"], "Literal['adam', 'sgd']"),
        ([], int | None, "int | None"),
        ("blue", Colour, "Colour"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(value: object, hint: object, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        convert("param 'x' of t:f", value, hint)
    message = str(caught.value)
    assert message.startswith(f"param 'x' of t:f is {value!r} ({type(value).__name__}), but is annotated ")
    assert shown.removeprefix("typing.") in message
    assert typing.get_origin(hint) is None or "<class" not in message


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(SpecError, match="param 'rate' is 1000"):
        convert("param 'rate'", 10**400, float)
