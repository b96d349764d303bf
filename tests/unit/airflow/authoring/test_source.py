"""A decorated function's text: what travels, what is refused, and where a traceback points."""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from muster.airflow.authoring.source import FunctionSource, source_of
from muster.core.errors import SpecError


@pytest.fixture
def dag_file(tmp_path: Path) -> Callable[[str], ModuleType]:
    """Import a Dag file of that text."""

    def load(text: str) -> ModuleType:
        return _import(tmp_path / "my_dag.py", dedent(text))

    return load


def _import(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def travelled(source: FunctionSource, folder: Path) -> ModuleType:
    """Import what travels, in a folder where nothing else lies."""
    folder.mkdir()
    return _import(folder / source.file.name, source.text)


def test_only_the_function_travels_and_its_lines_keep_their_numbers(
    dag_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    module = dag_file(
        """\
        import json
        print = print
        SECRET = "hunter2"

        def keep(**_):
            return lambda function: function

        @keep(
            image="train",
        )
        def train(rows, *, epochs=3):
            \"\"\"Fail on line 14.\"\"\"
            text = json.dumps({"a": 1})
            raise ValueError(text)
        """
    )
    source = source_of(module.train)
    assert "hunter2" not in source.text
    assert "keep" not in source.text
    there = travelled(source, tmp_path / "there")
    with pytest.raises(ValueError, match=r'\{"a": 1\}') as caught:
        there.train(1)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(frame.filename).name, frame.lineno, frame.line) == (
        "my_dag.py",
        14,
        "raise ValueError(text)",
    )


def test_a_function_inside_another_travels_with_its_texts_untouched(
    dag_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    module = dag_file(
        '''\
        from __future__ import annotations
        def dag():
            if True:
                def sql() -> str:
                    return """
        select
          1
        """
                return sql
        '''
    )
    source = source_of(module.dag())
    assert travelled(source, tmp_path / "there").sql() == module.dag()()
    assert source.text.splitlines()[3] == "        def sql() -> str:"


def test_what_the_file_imports_from_the_standard_library_travels_along(
    dag_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    module = dag_file(
        """\
        from __future__ import annotations

        import os.path
        import xml.dom as documents
        from collections.abc import Mapping as M, Sequence
        from pathlib import Path
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from datetime import date

        def go(rows: list[Path], day: date, *, size: M[str, int] = M) -> int:
            return documents, os.path.join("a", "b"), [Path(row) for row in rows]
        """
    )
    source = source_of(module.go)
    assert source.text.splitlines()[0] == (
        "from __future__ import annotations; from collections.abc import Mapping as M; from datetime import date; "
        "from pathlib import Path; import os.path; import xml.dom as documents"
    )
    there = travelled(source, tmp_path / "there")
    assert there.go([], None)[1:] == ("a/b", [])
    assert eval(there.go.__annotations__["rows"], vars(there)) == list[Path]


def test_every_part_of_a_package_that_the_file_imports_travels_along(
    dag_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    module = dag_file(
        """\
        import xml.dom.minidom
        import xml.etree.ElementTree

        def go():
            return xml.dom.minidom.parseString, xml.etree.ElementTree.parse
        """
    )
    source = source_of(module.go)
    assert source.text.splitlines()[0] == "import xml.dom.minidom; import xml.etree.ElementTree"
    assert travelled(source, tmp_path / "there").go() == module.go()


@pytest.mark.parametrize("text", ["def go(): ...\n", "if True:\n    def go(): ...\n"])
def test_a_function_needs_room_above_it_for_its_imports(
    dag_file: Callable[[str], ModuleType], text: str
) -> None:
    with pytest.raises(SpecError, match=r"nothing stands above go\(\)"):
        source_of(dag_file(text).go)
    assert source_of(dag_file(f'"""A Dag."""\n{text}').go).name == "go"


def test_an_annotation_in_quotes_is_one(dag_file: Callable[[str], ModuleType]) -> None:
    source = source_of(dag_file('\ndef go(rows: "list[Path]", day: "a b", n: int): ...\n').go)
    assert [ast.unparse(source.annotation(name) or ast.Pass()) for name in ("rows", "day", "n", "x")] == [
        "list[Path]",
        "'a b'",
        "int",
        "pass",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def go():\n    return LIMIT", "my_dag.py:9: go() uses 'LIMIT' of the Dag file"),
        ("def go():\n    def inner():\n        return [LIMIT for _ in 'a']", "my_dag.py:10: go() uses 'LIMIT'"),
        ("def go(limit=LIMIT):\n    pass", "my_dag.py:8: go() uses 'LIMIT'"),
        ("def go(limit: Limit):\n    pass", "my_dag.py:8: go() uses 'Limit'"),
        ("def go() -> Limit:\n    pass", "uses 'Limit'"),
        ("def go():\n    return pytest.raises", "uses 'pytest' of the Dag file"),
        ("def go():\n    return math.pi", "uses 'math'"),
        ("def go():\n    class A:\n        b = c = LIMIT\n        d = b", "my_dag.py:10: go() uses 'LIMIT'"),
        ("def go():\n    return helper()", "uses 'helper'"),
        ("def go():\n    return nowhere", "uses 'nowhere'"),
        ("def around():\n    inner = 1\n    def go():\n        return inner\n    return go\ngo = around()",
         "my_dag.py:11: go() uses 'inner' of the function around it"),
        ("def around(json):\n    def go():\n        return json.dumps(1)\n    return go\ngo = around(1)",
         "uses 'json' of the function around it"),
        ("def around(id):\n    def go():\n        return id\n    return go\ngo = around(1)",
         "my_dag.py:10: go() uses 'id' of the function around it"),
        ("def around(id):\n    def go():\n        nonlocal id\n        id = 2\n    return go\ngo = around(1)",
         "my_dag.py:10: go() cannot stand alone: no binding for nonlocal 'id' found"),
        ("def go():\n    return filter", "my_dag.py:9: go() uses 'filter' of the Dag file"),
        ("async def go():\n    pass", "is async"),
        ("def go():\n    yield 1", "is a generator"),
        ("go = lambda: 1", "decorate a function that a def statement makes"),
        ("class go: pass", "decorate a function"),
        ("go = len", "decorate a function"),
        ("@functools.wraps(helper)\ndef go():\n    pass", "another decorator stands below this one"),
        ("exec('def go(): pass')", "its text cannot be read"),
    ],
)  # fmt: skip
def test_what_an_image_does_not_have_is_refused(
    dag_file: Callable[[str], ModuleType], text: str, says: str
) -> None:
    head = dedent(
        """\
        from __future__ import annotations
        import functools, json
        import pytest
        import math
        math = 3
        LIMIT, Limit, filter = 3, int, {}
        def helper(): ...
        """
    )
    module = dag_file(head + text + "\n")
    with pytest.raises(SpecError) as caught:
        source_of(module.go)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "return go and __name__ and __file__",
        "global total; total = 1; return total",
        "import json as LIMIT; return LIMIT",
        "return [LIMIT for LIMIT in range(3)], (lambda LIMIT: LIMIT)(1), {**dict(a=1)}",
        "try:\n        pass\n    except ValueError as LIMIT:\n        print(LIMIT)",
        "with open('x') as LIMIT: return LIMIT",
        "class A:\n        LIMIT = 1\n        twice = LIMIT * 2\n    return A",
        "x: LIMIT = 1; return x",
        "match 1:\n        case LIMIT: return LIMIT",
    ],
)
def test_names_of_its_own_are_no_names_from_outside(dag_file: Callable[[str], ModuleType], body: str) -> None:
    module = dag_file(f"LIMIT = 3\n# a comment\ndef go():\n    {body}\n")
    assert source_of(module.go).name == "go"


def test_the_text_says_what_changed_and_not_where_it_stands(
    dag_file: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    def parts(text: str) -> Any:
        (tmp_path / "again").mkdir(exist_ok=True)
        module = _import(tmp_path / "again" / f"d{len(sys.modules)}{len(text)}.py", text)
        head, _, rest = source_of(module.go).text.partition("\n")
        return head, rest.lstrip("\n")

    first = parts("import os\n\ndef go():\n    return os.sep\n")
    assert parts("import os\n\n\n\nX = 1\n\ndef go():\n    return os.sep\n") == first
    assert parts("import os\n\ndef go():\n    return os.sep  \n\n") == (
        "import os",
        "def go():\n    return os.sep  \n",
    )
