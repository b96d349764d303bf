"""Every Python that muster starts leaves out the folder that it is started in: a file there may be of any user."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.core.interpreters import python_command

ROOT = Path(__file__).parents[2]
MARK = re.compile(r'"-[cm]"|sys\.executable')
SAFE = {"-P", "-I"}
ELSEWHERE = (
    "operators/muster/worker/",  # a job's own code is to be imported
    "operators/muster/airflow/authoring/entrypoints.py",  # reads the words of a job's command
    "operators/muster/images/interpreter.py",  # asks an interpreter that may know no -P, in /
    "serving/muster_serving/process/start.py",  # the same
)


def starts(tree: ast.AST) -> Iterator[ast.List | ast.Tuple]:
    """Commands of a Python that are written out, without -P or -I."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            words = {each.value for each in node.elts[1:] if isinstance(each, ast.Constant)}
            python = ast.unparse(node.elts[0]) == "sys.executable"
            if (
                (python and ast.unparse(node.elts[1])[0] in "'*") or words & {"-c", "-m"}
            ) and not words & SAFE:
                yield node


def test_every_python_is_started_without_its_folder() -> None:
    found = []
    for folder in ("operators", "serving"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
            if MARK.search(text) and not name.startswith(ELSEWHERE):
                found += [f"{name}:{node.lineno}" for node in starts(ast.parse(text))]
    assert not found, "use muster.core.interpreters.python_command"


@pytest.mark.parametrize("text", ["run([sys.executable, 'x.py'])", "run((python, '-m', 'muster'))"])
def test_a_python_with_its_folder_is_found(text: str) -> None:
    assert list(starts(ast.parse(text)))


def test_the_command() -> None:
    assert python_command("-c", "pass") == [sys.executable, "-P", "-c", "pass"]
    assert python_command("x.py", of=Path("/p"), isolated=True) == ["/p", "-I", "x.py"]
