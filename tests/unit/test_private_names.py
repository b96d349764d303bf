"""No test touches a private name of muster: what a test needs is public, or is seen from outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "operators", ROOT / "serving", ROOT / "dags", ROOT / "images", ROOT / "starter")
BY_NAME = frozenset({"setattr", "delattr", "getattr", "hasattr", "setitem", "patch"})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def trees(*folders: Path, having: Collection[str] = ()) -> Iterator[tuple[Path, ast.Module]]:
    """Modules; those alone in which one of the names stands, if any is given."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not having or not {*re.findall(r"\b_\w+", text)}.isdisjoint(having):
                yield path, ast.parse(text)


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module or its classes define for themselves."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def touched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every private name that is read, set or imported, with its line; those of the test's own object are its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno, name
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, each.name) for each in names if is_private(each.name))
            case ast.Call(func=ast.Name(id=call) | ast.Attribute(attr=call), args=args) if call in BY_NAME:
                for each in args:
                    match each:
                        case ast.Constant(value=str(text)) if is_private(text.rpartition(".")[2]):
                            yield node.lineno, text.rpartition(".")[2]


@pytest.fixture(scope="module")
def muster_s() -> set[str]:
    return {name for _, tree in trees(*SOURCES) for name in private_names(tree) if is_private(name)}


def test_no_test_touches_a_private_name(muster_s: set[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, tree in trees(ROOT / "tests", ROOT / "benchmarks", having=muster_s)
        for line, name in touched(tree)
        if name in muster_s
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from muster.core.text import _clean",
        "store._layout.root",
        "monkeypatch.setattr(module, '_clean', str)",
        "monkeypatch.setattr('muster.core.text._clean', str)",
        "getattr(store, '_layout')",
    ],
)
def test_each_way_to_touch_one_is_found(line: str) -> None:
    assert len(list(touched(ast.parse(line)))) == 1


def test_what_a_test_names_so_itself_is_its_own() -> None:
    assert (
        list(
            touched(
                ast.parse("class Fake:\n  def _run(self):\n    self._run(); super()._run(); Fake.__name__")
            )
        )
        == []
    )
