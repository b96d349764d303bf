"""Writes docs/reference.md from the docstrings of what a Dag file writes, read as source: nothing is imported."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster.airflow
from muster.airflow.provider import get_provider_info

PACKAGE = Path(muster.airflow.__file__).parents[1]
FURTHER = {
    "Task": "muster.airflow.operators.decorators",
    "Triggering": "muster.airflow.authoring.triggering",
}
"""What some of those make; no author makes them by hand."""
BASE = ("muster.airflow.operators.base", "MusterOperator")
HEAD = """# What a Dag file writes

From the docstrings; a test keeps it so. "(templated)" means that Jinja is filled in when the task runs.
Beside their own keywords all operators take Airflow's. The [how-tos](index.md) have examples.
"""

_FIELD = re.compile(r"^:(param|raises|cvar|ivar) ?([^:]*): ?", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?([\w]+)`")


@dataclass(frozen=True)
class Docstring:
    """A docstring in its parts: prose, and what it says of each name."""

    prose: str
    params: Mapping[str, str]
    raises: Mapping[str, str]

    @classmethod
    def of(cls, node: ast.ClassDef | ast.FunctionDef) -> Docstring:
        """Read that of a class or function."""
        text = inspect.cleandoc(ast.get_docstring(node) or "")
        prose, *fields = _FIELD.split(text)
        found: dict[str, dict[str, str]] = {"param": {}, "raises": {}, "cvar": {}, "ivar": {}}
        for kind, name, said in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            found[kind][name.strip()] = _inline(" ".join(said.split()))
        return cls(prose=_prose(prose), params=found["param"], raises=found["raises"])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_parts()]).rstrip() + "\n"


def _parts() -> Iterator[str]:
    yield from _section("All operators", *BASE, source="")
    for name in sorted(muster.airflow.__all__, key=_kind):
        title = f"@{name}" if name in ("job", "gang") else name
        yield from _section(title, getattr(muster.airflow, name).__module__, name, source="muster.airflow")
    for name, module in FURTHER.items():
        yield from _section(name, module, name, source=module)
    yield from _options()


def _kind(name: str) -> tuple[bool, bool]:
    return not name.endswith("Operator"), name in ("SweepOperator", "RetentionOperator")


def _section(title: str, module: str, name: str, *, source: str) -> Iterator[str]:
    node = _find(module, name)
    said = Docstring.of(node)
    yield f"## {title}"
    if source:
        yield f"`from {source} import {name}`\n"
    yield said.prose + "\n"
    keywords = [] if source in FURTHER.values() else list(_keywords(node))
    if keywords:
        yield "```python\n" + "\n".join(keywords) + "\n```\n"
    for param, text in said.params.items():
        yield f"- `{param}`: {text}"
    for error, text in said.raises.items():
        yield f"- raises `{error}`: {text}"
    for method in _methods(node):
        yield f"- `{_call(method)}`: {' '.join(Docstring.of(method).prose.split())}"
    yield ""


def _options() -> Iterator[str]:
    section: Any = get_provider_info()["config"]["muster"]
    yield f"## Airflow's configuration\nSection `[muster]`. {section['description']}\n"
    for name, option in section["options"].items():
        default = option["default"] or "nothing"
        yield f"- `{name}`, or `AIRFLOW__MUSTER__{name.upper()}`, unless set {default}: {option['description']}"


def _find(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == name]
    return found[-1]  # what follows its overloads


def _keywords(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The keywords of a constructor, or the fields of a dataclass: ``name: type = default``."""
    if isinstance(node, ast.FunctionDef):
        return
    made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if made is None:
        yield from (
            ast.unparse(n)
            for n in node.body
            if isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n)
        )
        return
    for argument, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
        value = f" = {ast.unparse(default)}" if default is not None else ""
        yield f"{argument.arg.removeprefix('job_')}: {ast.unparse(argument.annotation or ast.Constant(None))}{value}"


def _methods(node: ast.ClassDef | ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    """What an author uses of an instance: references, and the calls of a decorated function."""
    wanted = {
        "versions",
        "passed",
        "__call__",
        "override",
        "partial",
        "expand",
        "expand_kwargs",
        "input",
        "lineage",
    }
    for each in node.body if isinstance(node, ast.ClassDef) and node.name != BASE[1] else ():
        if isinstance(each, ast.FunctionDef) and each.name in wanted:
            yield each


def _call(method: ast.FunctionDef) -> str:
    if any(ast.unparse(decorator) == "property" for decorator in method.decorator_list):
        return f".{method.name}"
    return "task(…)" if method.name == "__call__" else f".{method.name}(…)"


def _prose(text: str) -> str:
    """Turn reStructuredText's ``::`` blocks into fences, and its roles and literals into Markdown's."""
    out, code = [], False
    for line in text.strip().splitlines():
        if code and line and not line.startswith("    "):
            out[-1:] = ["```", ""]
            code = False
        if line.rstrip().endswith("::"):
            out += [*([line.rstrip()[:-1]] if line.strip() != "::" else []), "```python"]
            code = True
        elif code and out[-1] == "```python" and not line:
            continue
        else:
            out.append(line.removeprefix("    ") if code else _inline(line))
    return "\n".join([*out, "```"] if code else out)


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")
