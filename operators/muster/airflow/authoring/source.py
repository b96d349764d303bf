"""The text of a decorated function as a module of its own, and what would keep that from running in an image.

The module is the Dag file with everything blank but the function: its lines keep their numbers, and
the file keeps its name, so that a traceback in the job points into the Dag file. All this is told
from the text; nothing is imported, and no file is read that Python's own ``linecache`` does not read.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import dis
import inspect
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from muster.core.errors import SpecError

_MODULES_OWN = frozenset({"__name__", "__file__", "__doc__"})
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_WRITES = frozenset({"STORE_GLOBAL", "STORE_NAME"})
_FUTURE = __future__.annotations.compiler_flag


@dataclass(frozen=True, kw_only=True)
class FunctionSource:
    """One function's text.

    :param file: where it stands.
    :param name: the function's.
    :param text: a module that defines it, on the lines that it has in `file`.
    :param node: its definition, without decorators.
    """

    file: Path
    name: str
    text: str
    node: ast.FunctionDef

    def annotation(self, name: str) -> ast.expr | None:
        """What a parameter is annotated with, in quotes or not."""
        found = next((each.annotation for each in _arguments(self.node) if each.arg == name), None)
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            with suppress(SyntaxError):
                return ast.parse(found.value, mode="eval").body
        return found

    @property
    def place(self) -> str:
        """``dag.py:31``, for messages."""
        return f"{self.file.name}:{self.node.lineno}"


@lru_cache(maxsize=256)
def source_of(function: Callable[..., Any]) -> FunctionSource:
    """Return the text of a function.

    :raises SpecError: it is no plain function, or it uses what an image does not have: names of its
        Dag file, or of a function around it. Builtins it has, and what the Dag file imports from
        Python's standard library: these imports travel along.
    """
    _check_plain(function)
    file, lines = _read(function)
    tree = _parse("".join(lines))
    node = _definition(tree, function, file)
    if node.lineno < (3 if node.col_offset else 2):
        raise SpecError(
            f"{Path(file).name}:{node.lineno}: nothing stands above {node.name}(): begin with a docstring"
        )
    imports = _standard_imports(tree, function)
    future = bool(function.__code__.co_flags & _FUTURE)
    try:
        used = _names(node, future=future)
    except SyntaxError as error:  # such as nonlocal
        raise SpecError(
            f"{Path(file).name}:{error.lineno}: {node.name}() cannot stand alone: {error.msg}"
        ) from error
    _refuse_outside(used, {*imports, node.name}, function, file)
    header = ["from __future__ import annotations"] if future else []
    header += sorted({statement for name in used for statement in imports.get(name, ())})
    return FunctionSource(file=Path(file), name=node.name, text=_module(node, lines, header), node=node)


def _check_plain(function: Any) -> None:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise SpecError(f"{function!r:.80}: decorate a function that a def statement makes")
    where = (
        f"{Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno} {function.__name__}()"
    )
    if hasattr(function, "__wrapped__"):
        raise SpecError(f"{where}: another decorator stands below this one: apply it inside the function")
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise SpecError(f"{where} is async, and nothing awaits it: call asyncio.run inside a plain function")
    if inspect.isgeneratorfunction(function):
        raise SpecError(f"{where} is a generator, and nothing asks it for values: return the metrics instead")


def _read(function: Any) -> tuple[str, list[str]]:
    file = function.__code__.co_filename
    linecache.checkcache(file)
    # inspect's own way asks every module there is first
    lines = linecache.getlines(file, function.__globals__)
    if not lines:
        raise SpecError(f"{function.__name__}(): its text cannot be read from {file}: define it in a file")
    return file, lines


@lru_cache(maxsize=4)  # the functions of one file come one after the other
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def _definition(tree: ast.Module, function: Any, file: str) -> ast.FunctionDef:
    first = function.__code__.co_firstlineno
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
        if node.name == function.__name__ and min(lines) == first:
            return node
    raise SpecError(
        f"{function.__name__}(): {Path(file).name} has another text at line {first}: it was changed meanwhile"
    )


def _names(node: ast.FunctionDef, *, future: bool) -> dict[str, int]:
    """What a module with nothing but this function would look up in itself, with the line of its first use."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = [], None
    for argument in _arguments(bare):
        argument.annotation = None
    module = ast.Module(body=[bare], type_ignores=[])
    code = compile(module, "", "exec", flags=_FUTURE if future else 0, dont_inherit=True)
    found = [*_reads(code), *_annotated(node)]
    return {name: line for line, name in sorted(found, reverse=True)}


def _reads(code: CodeType) -> Iterator[tuple[int, str]]:
    """Each look-up of a name that is not the function's own, compiled functions inside it included."""
    instructions = list(dis.get_instructions(code))
    own = {each.argval for each in instructions if each.opname in _WRITES}
    for each in instructions:
        if each.opname in _READS and each.argval not in own:
            line = each.positions.lineno if each.positions else None
            yield line or code.co_firstlineno, each.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


def _annotated(node: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """The names in the annotations of the parameters, by which the worker knows their types, and of the result."""
    for annotation in [*(argument.annotation for argument in _arguments(node)), node.returns]:
        if annotation is None:
            continue
        for each in ast.walk(annotation):
            if isinstance(each, ast.Name):
                yield each.lineno, each.id


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    every = node.args
    more = [each for each in (every.vararg, every.kwarg) if each is not None]
    return [*every.posonlyargs, *every.args, *every.kwonlyargs, *more]


def _standard_imports(tree: ast.Module, function: Any) -> dict[str, list[str]]:
    """The statements by which the file imports from the standard library, by the name that they bind.

    ``import xml.dom`` and ``import xml.sax`` bind one name, and each of them brings a part of it.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for node in _top_level(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else name
                if _is_standard(alias.name) and _still(function, name, module, None):
                    found[name].append("import " + _as(alias))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_standard(node.module):
            for alias in node.names:
                name = alias.asname or alias.name
                if not node.level and _still(function, name, node.module, alias.name):
                    found[name].append(f"from {node.module} import {_as(alias)}")
    return found


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, those below an ``if`` such as ``if TYPE_CHECKING`` included."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names and top != "__future__"


def _still(function: Any, name: str, module: str, attribute: str | None) -> bool:
    """Whether the name is what the import made it; it is nothing where only type checkers import it."""
    if name not in function.__globals__:
        return True
    made = sys.modules.get(module)
    return function.__globals__[name] is (made if attribute is None else getattr(made, attribute, None))


def _as(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _refuse_outside(used: Mapping[str, int], known: Container[str], function: Any, file: str) -> None:
    around = {*function.__code__.co_freevars} - {function.__name__}
    for name, line in sorted(used.items(), key=lambda item: item[1]):
        if name not in around and (name in known or _is_builtin(name, function)):
            continue
        whose = "of the function around it" if name in around else "of the Dag file"
        raise SpecError(
            f"{Path(file).name}:{line}: {function.__name__}() uses {name!r} {whose}, which its image does not have: "
            "import or define it inside the function, give it as an argument, or move the code to a module of "
            "the Dag's folder and name that with entrypoint='package.module:function'"
        )


def _is_builtin(name: str, function: Any) -> bool:
    """Whether a name means Python's own there: a Dag file may call something else ``id`` or ``filter``."""
    if name in _MODULES_OWN:
        return True
    own = getattr(builtins, name, function)
    return own is not function and function.__globals__.get(name, own) is own


def _module(node: ast.FunctionDef, lines: list[str], header: list[str]) -> str:
    """Blank lines, and the function where it stands; above it the imports, and what its indentation needs."""
    assert node.end_lineno is not None
    kept = [""] * (node.lineno - 1)
    kept += [line.rstrip("\n") for line in lines[node.lineno - 1 : node.end_lineno]]
    if node.col_offset:
        kept[node.lineno - 2] = "if True:"  # so that no line moves, those of a text in quotes least of all
    kept[0] = "; ".join(header)
    return "\n".join(kept) + "\n"
