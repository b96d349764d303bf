"""Writes docs/reference.md from the docstrings of what a Dag file writes, read as source: nothing is imported."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import muster
import muster.airflow
from muster.airflow.provider import get_provider_info

PACKAGE = Path(muster.airflow.__file__).parents[1]
FURTHER = {
    "Task": "muster.airflow.operators.decorators",
    "Triggering": "muster.airflow.authoring.triggering",
}
"""What some of those make; no author makes them by hand."""
CLIENT = "muster.client."
CLIENT_METHODS = {
    *("path", "files", "record", "params", "metrics", "lineage"),
    *("to_pandas", "predict"),
}
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
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, node: ast.ClassDef | ast.FunctionDef) -> Docstring:
        """Read that of a class or function."""
        text = inspect.cleandoc(ast.get_docstring(node) or "")
        prose, *fields = _FIELD.split(text)
        found: dict[str, dict[str, str]] = {"param": {}, "raises": {}, "cvar": {}, "ivar": {}}
        for kind, name, said in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            found[kind][name.strip()] = _inline(" ".join(said.split()))
        return cls(
            prose=_prose(prose), params=found["param"], raises=found["raises"], attributes=found["ivar"]
        )


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
    yield "# What a program or notebook uses\n"
    yield "`import muster`; [Python and notebooks](howto/python.md) has examples.\n"
    for name in sorted(muster.__all__, key=str.swapcase):
        yield from _section(f"muster.{name}", getattr(muster, name).__module__, name, source="")
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
    declared = list(_declared(module, node).values()) if isinstance(node, ast.ClassDef) else []
    keywords = [] if source in FURTHER.values() else [*map(str, declared or _fields(node))]
    if isinstance(node, ast.FunctionDef) and module.startswith(CLIENT):
        keywords = [f"{name}({ast.unparse(node.args)})"]
    if keywords:
        yield "```python\n" + "\n".join(keywords) + "\n```\n"
    for each in declared:
        if each.text:
            yield f"- `{each.word}`: {each.text}{' (templated)' * each.templated}"
    for param, text in said.params.items():
        yield f"- `{param}`: {text}"
    for attribute, text in said.attributes.items():
        yield f"- `.{attribute}`: {text}"
    for error, text in said.raises.items():
        yield f"- raises `{error}`: {text}"
    for method in _methods(node):
        yield f"- `{_call(method)}`: {' '.join(Docstring.of(method).prose.split())}"
    yield ""


@dataclass(frozen=True)
class Declared:
    """A keyword as its declaration says it: ``hang_timeout: timedelta | None = keyword(default=None, …)``."""

    word: str
    type: str
    default: str
    text: str
    templated: bool

    @classmethod
    def of(cls, target: ast.AnnAssign, call: ast.Call, after: ast.stmt | None) -> Declared:
        """Read a declaration and the text that stands below it."""
        said = {option.arg: option.value for option in call.keywords}
        parts = ast.unparse(target.annotation).split(" | ")
        unset = "default" in said and ast.unparse(said["default"]) == "None"
        optional = " | None" if unset and not {"None", "Any"} & {*parts} else ""
        text = ast.unparse(after) if isinstance(after, ast.Expr) else "''"
        return cls(
            word=str(ast.literal_eval(said["alias"])) if "alias" in said else ast.unparse(target.target),
            type=ast.unparse(target.annotation) + optional,
            default=ast.unparse(said["default"]) if "default" in said else "",
            text=_inline(" ".join(str(ast.literal_eval(text)).split())),
            templated="templated" in said,
        )

    def __str__(self) -> str:
        default = f" = {self.default}" if self.default else ""
        return f"{self.word}: {self.type}{default}"


def _declared(module: str, node: ast.ClassDef) -> dict[str, Declared]:
    """The keywords of an operator by attribute: its own, then those of bases that have no section of their own."""
    bases = list(_bases(module, node))
    inherited = {name: one for base in reversed(bases) for name, one in _declared(*base).items()}
    own = {}
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Call):
            if ast.unparse(each.value.func) == "keyword":
                own[ast.unparse(each.target)] = Declared.of(each, each.value, after)
        elif isinstance(each, ast.Assign) and (name := ast.unparse(each.targets[0])) in inherited:
            own[name] = replace(inherited[name], default=ast.unparse(each.value))
    has_section = not bases or bases[0][1].name in {*muster.airflow.__all__, BASE[1]}
    return own if has_section else own | {name: one for name, one in inherited.items() if name not in own}


def _bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """The bases of a class that are muster's, each with its module."""
    for each in node.bases:
        if (found := _base(module, ast.unparse(each))) is not None:
            yield found


def _base(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    tree = _tree(module)
    imported = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
    places = [each.module for each in imported if name in {alias.name for alias in each.names}]
    place = places[0] if places else module
    if place is None or not place.startswith("muster.") or not _defines(_tree(place), name):
        return None
    found = _find(place, name)
    return (place, found) if isinstance(found, ast.ClassDef) else None


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(each, ast.ClassDef) and each.name == name for each in tree.body)


def _options() -> Iterator[str]:
    section: Any = get_provider_info()["config"]["muster"]
    yield f"## Airflow's configuration\nSection `[muster]`. {section['description']}\n"
    for name, option in section["options"].items():
        default = option["default"] or "nothing"
        variable = "" if "." in name else f", or `AIRFLOW__MUSTER__{name.upper()}`"  # a shell cannot set that
        yield f"- `{name}`{variable}, unless set {default}: {option['description']}"


@cache
def _tree(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _find(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    found = [
        n for n in _tree(module).body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == name
    ]
    return found[-1]  # what follows its overloads


def _fields(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The fields of a dataclass: ``name: type = default``."""
    for each in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each):
            text = ast.unparse(each)
            made = each.value.keywords if isinstance(each.value, ast.Call) else []
            said = {word.arg: ast.unparse(word.value) for word in made}
            if "metadata" in said:  # how it is stored is no concern of an author's
                text = f"{text.partition(' = ')[0]} = {said['default']}"
            yield text


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
        if isinstance(each, ast.FunctionDef) and (each.name in wanted or each.name in CLIENT_METHODS):
            yield each


def _call(method: ast.FunctionDef) -> str:
    if any(ast.unparse(decorator) in ("property", "cached_property") for decorator in method.decorator_list):
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
