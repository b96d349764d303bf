"""What a job gives against what a function takes; driven through real functions in real files."""

from __future__ import annotations

import enum
import importlib.util
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest

from muster.core.errors import SpecError
from muster.worker.signature import UNKNOWN, arguments, convert

ONE = {"rows": (("/v/rows/1",), False)}
TWO = {"rows": (("/v/rows/1", "/v/rows/2"), True)}


@pytest.fixture
def bind(bench) -> Callable[..., dict[str, Any]]:
    def run(source: str, **given: Any) -> dict[str, Any]:
        bench.code(t=source)
        path = bench.root / "code" / "t.py"
        spec = importlib.util.spec_from_file_location("t", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return arguments(module.f, bench.replica(entrypoint="t:f", **given))

    return run


HEAD = "from __future__ import annotations\nfrom pathlib import Path\n"


def test_inputs_and_outputs_arrive_as_paths_params_as_annotated(bind, tmp_path: Path) -> None:
    given = bind(
        HEAD + "def f(rows: Path, model: Path, *, epochs: int, rate: float = 0.1, checkpoints: Path): ...",
        inputs=ONE,
        outputs=("model",),
        params={"epochs": "5"},
    )
    assert given == {
        "rows": Path("/v/rows/1"),
        "model": tmp_path / "staging" / "model",
        "epochs": 5,
        "checkpoints": tmp_path / "checkpoints",
    }


@pytest.mark.parametrize(
    "annotation", ["", ": list[Path]", ": list", ": Sequence[Path]", ": tuple[Path, ...]"]
)
def test_many_versions_arrive_as_a_list(bind, annotation: str) -> None:
    source = HEAD + f"from collections.abc import Sequence\ndef f(rows{annotation}): ..."
    assert bind(source, inputs=TWO) == {"rows": [Path("/v/rows/1"), Path("/v/rows/2")]}


def test_one_version_of_many_is_a_list_as_well(bind) -> None:
    assert bind("def f(rows): ...", inputs={"rows": (("/v/1",), True)}) == {"rows": [Path("/v/1")]}


def test_a_path_annotated_as_text_is_text(bind) -> None:
    assert bind("def f(rows: str): ...", inputs=ONE) == {"rows": "/v/rows/1"}


def test_keywords_of_any_name_take_everything(bind) -> None:
    assert bind("def f(**given): ...", params={"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_checkpoints_are_given_only_where_asked_for(bind) -> None:
    assert bind("def f(): ...") == {}


def test_an_annotation_for_type_checkers_only_converts_nothing(bind) -> None:
    source = HEAD + "def f(n: Unknown): ..."
    assert bind(source, params={"n": "5"}) == {"n": "5"}


def test_a_wrapped_function_is_read_through_its_wrapper(bind) -> None:
    source = """
    import functools
    def loud(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs)
        return call
    @loud
    def f(n: int): ...
    """
    assert bind(textwrap.dedent(source), params={"n": "5"}) == {"n": 5}


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        (
            "def f(row, epochs=1): ...",
            {"inputs": ONE},
            (
                "t:f (t.py:1): the job gives input 'rows', but the function takes row, epochs; "
                "add the parameter or take the input away"
            ),
        ),
        (
            "def f(): ...",
            {"params": {"epochs": 1}},
            (
                "t:f (t.py:1): the job gives param 'epochs', but the function takes nothing; "
                "add the parameter or take the param away"
            ),
        ),
        (
            "\n\ndef f(rows, epochs, rate): ...",
            {"inputs": ONE, "params": {"rate": 1}},
            (
                "t:f (t.py:3): parameter 'epochs' is given by nothing; the job has input rows, param rate; "
                "add it to inputs, outputs or params, or give it a default"
            ),
        ),
        (
            "def f(rows, /): ...",
            {"inputs": ONE},
            "t:f (t.py:1): parameter 'rows' is positional-only; values are passed by name",
        ),
        (
            "from pathlib import Path\ndef f(rows: Path): ...",
            {"inputs": TWO},
            (
                "t:f (t.py:2): input 'rows' is a list of versions (2 here), but is annotated Path; annotate it list[Path], "
                "or name one version"
            ),
        ),
        (
            "from pathlib import Path\ndef f(rows: list[Path]): ...",
            {"inputs": ONE},
            (
                "t:f (t.py:2): input 'rows' is one version, but is annotated list[pathlib.Path]; "
                "annotate it Path, or name several versions, such as @*"
            ),
        ),
        (
            "def f(*, epochs: int): ...",
            {"params": {"epochs": "many"}},
            (
                "param 'epochs' of t:f (t.py:1) is 'many' (str), but is annotated int: "
                "give a value of that type or mend the annotation"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(bind, source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        bind(source, **given)
    assert str(caught.value) == message


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
