"""Looks at an entrypoint or a command without running it, so that a wrong one costs no environment and no start.

Only errors that the text itself proves are refused. A function that is imported, assigned or decorated may have
any signature; the worker, which imports it, checks again. A launcher of ranks in the words of a command is a mistake inside a
gang, which starts its ranks itself: each rank would start a training of its own, all of them would succeed, and none would be
distributed.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from muster.airflow.authoring.code import Code
from muster.core.data import CHECKPOINTS, RESERVED
from muster.core.errors import SpecError
from muster.core.job import Launcher, Role
from muster.core.text import shortened

Function = ast.FunctionDef | ast.AsyncFunctionDef

_VARIABLE = b"MUSTER_CHECKPOINTS"  # where each rank finds the folder
_SOURCES = (".py", ".sh")


def check_entrypoint(
    entrypoint: str,
    code: Code,
    *,
    inputs: Collection[str],
    outputs: Collection[str],
    params: Collection[str],
    complete: bool = True,
) -> None:
    """Refuse an entrypoint that cannot be called with these names.

    :param complete: whether these are all names; if not, only the function is looked for.
    :raises SpecError: its module or function is missing, or its parameters do not match.
    """
    module, _, name = entrypoint.partition(":")
    file = _file_of(module, code)
    if file is None:
        return
    tree = _parse(code, file)
    function = _defined(tree, name)
    if function is None:
        if not _bound(tree, name):
            raise SpecError(f"entrypoint {entrypoint!r}: {file} defines no function {name!r}{_near(tree)}")
        return
    if complete and not function.decorator_list:
        check_parameters(function, f"{file}:{function.lineno} {name}()", {*inputs}, {*outputs}, {*params})


def check_script(command: Sequence[str], code: Code) -> None:
    """Refuse a command whose script, or program with a ``/``, is not in the code that travels.

    Only what the command starts with is looked at, ``python train.py`` or ``./train.sh``. It starts in the Dag's folder.

    :raises SpecError: it names the scripts that are there.
    """
    words, (program, *rest) = [], command
    if re.fullmatch(r"python[\d.]*|(ba|da)?sh", program):
        words = [word for word in rest if word != "-u"][:1]
    elif "/" in program:
        words = [program]
    tops = {file.partition("/")[0] for file in code.files}
    start = f"{tops.pop()}/" if len(tops) == 1 and all("/" in file for file in code.files) else ""
    for word in words:
        if word.startswith(("/", "-", "$", "~")) or "{" in word or not word.endswith((*_SOURCES, program)):
            continue
        if posixpath.normpath(start + word) not in code.files:
            there = [file.removeprefix(start) for file in code.files if file.endswith(_SOURCES)]
            near = get_close_matches(word, there, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SpecError(
                f"{word!r:.80} is not there: {hint}{code.root / start} holds {shortened(', '.join(there), 200) or 'no script'}"
            )


def _file_of(module: str, code: Code) -> str | None:
    """The module's file in the snapshot; None where its top-level package is not in there: the image's."""
    stem = module.replace(".", "/")
    files = set(code.files)
    for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
        if candidate in files:
            return candidate
    top = module.split(".")[0]
    if any(file == f"{top}.py" or file.startswith(f"{top}/") for file in files):
        raise SpecError(
            f"entrypoint module {module!r}: the code that travels has no {stem}.py below {code.root}; "
            "check the name, or what .musterignore leaves behind"
        )
    return None


def _parse(code: Code, file: str) -> ast.Module:
    try:
        return ast.parse(code.read(file), filename=file)
    except SyntaxError as error:
        raise SpecError(f"{file}:{error.lineno}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from error


def _defined(tree: ast.Module, name: str) -> Function | None:
    found = [node for node in tree.body if isinstance(node, Function) and node.name == name]
    return found[-1] if found else None


def _bound(tree: ast.Module, name: str) -> bool:
    """Whether some statement other than a plain def may give the module this name."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            if name in names or "*" in names:
                return True
        elif isinstance(node, ast.Name):
            if node.id == name and isinstance(node.ctx, ast.Store):
                return True
        elif isinstance(node, (Function, ast.ClassDef)) and node.name in (name, "__getattr__"):
            return True
    return False


def _near(tree: ast.Module) -> str:
    names = [node.name for node in tree.body if isinstance(node, Function) and not node.name.startswith("_")]
    return f"; it defines {', '.join(names)}" if names else ""


def check_parameters(
    function: Function, where: str, inputs: set[str], outputs: set[str], params: set[str]
) -> None:
    """Compare the names that a task gives with the parameters of a function.

    :param where: the function, for the message.
    :raises SpecError: a parameter without a value, or a value without a parameter.
    """
    given = inputs | outputs | params | RESERVED
    arguments = function.args
    named = [*arguments.args, *arguments.kwonlyargs]
    if arguments.posonlyargs:
        raise SpecError(
            f"{where}: parameter {arguments.posonlyargs[0].arg!r} is positional-only: remove the /"
        )
    optional = {a.arg for a in arguments.args[len(arguments.args) - len(arguments.defaults) :]}
    optional |= {
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    }
    missing = [a.arg for a in named if a.arg not in optional | given]
    if missing:
        raise SpecError(
            f"{where}: nothing is given for parameter {missing[0]!r}; the task has {_listed(inputs, outputs, params)}"
        )
    accepted = {a.arg for a in named}
    surplus = sorted((inputs | outputs | params) - accepted)
    if surplus and arguments.kwarg is None:
        raise SpecError(
            f"{where}: has no parameter for {_kind(surplus[0], inputs, outputs)} {surplus[0]!r}; "
            f"it takes {', '.join(a.arg for a in named) or 'nothing'}"
        )


def _listed(inputs: set[str], outputs: set[str], params: set[str]) -> str:
    kinds = (("inputs", inputs), ("outputs", outputs), ("params", params))
    return ", ".join(f"{what} {' '.join(sorted(names)) or 'none'}" for what, names in kinds)


def _kind(name: str, inputs: set[str], outputs: set[str]) -> str:
    return "input" if name in inputs else "output" if name in outputs else "param"


def uses_checkpoints(roles: Iterable[Role], code: Code) -> bool | None:
    """Whether a job's code can use its folder of checkpoints; None where the text does not show it.

    A function can if it has such a parameter, a command if it is given the place. Any code can that reads the variable.
    """
    if any(_VARIABLE in (code.content(file) or b"") for file in code.files if file.endswith(_SOURCES)):
        return True
    found = [_uses(role, code) for role in roles]
    return True if True in found else None if None in found else False


def _uses(role: Role, code: Code) -> bool | None:
    if role.command is not None:
        return any(f"{{{CHECKPOINTS}}}" in word or _VARIABLE.decode() in word for word in role.command)
    module, _, name = (role.entrypoint or "").partition(":")
    file = _file_of(module, code)
    function = None if file is None else _defined(_parse(code, file), name)
    if function is None or function.decorator_list:
        return None
    return CHECKPOINTS in {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}


_PROGRAMS = frozenset({"torchrun", "horovodrun", "mpirun", "mpiexec", "deepspeed"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "horovod.runner.launch": "horovodrun",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate launch",
}
_WRAPPERS = frozenset({"env", "exec", "time", "nice", "nohup", "uv"})
_VALUED = frozenset(
    {"-u", "--unset", "-C", "--chdir", "-n", "-p", "--python", "--with", "--extra", "--group", "--project"}
    | {"--directory", "--env-file", "--with-requirements", "--with-editable", "--package"}
)  # options of env, nice and uv run whose value is the next word
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_SEPARATORS = frozenset(";&|()\n")
_PYTHON = re.compile(r"(python|pypy)[\d.]*\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_COUNTS = re.compile(r"--?(nproc[-_]per[-_]node|np|n|num[-_]proc(esses)?|num[-_]gpus)(=(?P<count>.*))?\Z")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launcher that a command starts: its name and the words after it."""

    program: str
    words: tuple[str, ...]

    def instead(self) -> str:
        """The keywords of a gang that mean the same, as far as the words tell them."""
        ranks = _count(self.words)
        script = list(_script(self.words))
        return f"command={script or ['python', 'train.py']!r}" + (f", ranks={ranks}" if ranks else "")


def check_launch(command: Sequence[str], launcher: Launcher) -> None:
    """Refuse a launcher's command where muster's launcher starts the ranks.

    :raises SpecError: it says which words to write instead.
    """
    launch = None if launcher is Launcher.PLAIN else find_launch(command)
    if launch is not None:
        raise SpecError(
            f"{launch.program} starts ranks of its own, and launcher {launcher.value!r} starts the ranks of this gang: "
            f"each rank would train alone. Write {launch.instead()}; "
            f"where one {launch.program} in each replica is meant, add launcher='plain'"
        )


def find_launch(command: Sequence[str]) -> Launch | None:
    """Return the launcher that a command starts, also behind ``env``, ``uv run``, ``python -m`` or ``sh -c``."""
    words = _unwrapped(tuple(command))
    if not words:
        return None
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program in _SHELLS:
        return _in_script(rest)
    if _PYTHON.match(program):
        program, rest = _module(rest)
    elif program == "accelerate" and rest[:1] == ("launch",):
        program, rest = "accelerate launch", rest[1:]
    many = program in _PROGRAMS or (program == "accelerate launch" and _names_count(rest))
    return Launch(program=program, words=rest) if many else None


def _unwrapped(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without variables, wrappers such as ``env`` and ``uv run``, and the wrappers' options."""
    wrapped = False
    while words:
        program = words[0].rpartition("/")[2]
        if program in _WRAPPERS:
            wrapped = True
            words = words[2:] if program == "uv" and words[1:2] == ("run",) else words[1:]
        elif _ASSIGNMENT.match(program):
            words = words[1:]
        elif wrapped and words[0].startswith("-"):
            words = words[2:] if words[0] in _VALUED else words[1:]
        else:
            break
    return words


def _in_script(words: tuple[str, ...]) -> Launch | None:
    """Look into what ``sh -c`` is given; a script in a file is not read."""
    at = next((at for at, word in enumerate(words) if re.match(r"-[a-z]*c[a-z]*\Z", word)), None)
    if at is None or at + 1 >= len(words):
        return None
    try:
        lexer = shlex.shlex(words[at + 1], posix=True, punctuation_chars="".join(_SEPARATORS))
        lexer.whitespace, lexer.whitespace_split = " \t\r", True
        parts = list(lexer)
    except ValueError:  # an open quote: the shell itself says so
        return None
    commands: list[list[str]] = [[]]
    for part in parts:
        if set(part) <= _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(part)
    return next(filter(None, map(find_launch, commands)), None)


def _module(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the launcher that ``python -m`` names, and what follows."""
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words):
            return _MODULES.get(words[at + 1], ""), words[at + 2 :]
        if not word.startswith("-"):
            break
    return "", ()


def _names_count(words: tuple[str, ...]) -> bool:
    return any(re.match(r"--num[-_]processes(=|\Z)", word) for word in words)


def _count(words: tuple[str, ...]) -> str | None:
    for word, after in zip(words, (*words[1:], ""), strict=True):
        match = _COUNTS.match(word)
        if match:
            count = match["count"] or after
            return count if count.isdigit() else None
    return None


def _script(words: tuple[str, ...]) -> tuple[str, ...]:
    """The author's own command behind a launcher's options."""
    for at, word in enumerate(words):
        if word in ("-m", "--module") and at + 1 < len(words):
            return ("python", "-m", *words[at + 1 :])
        if word == "python" or _PYTHON.match(word):
            return words[at:]
        if word.endswith(".py"):
            return ("python", *words[at:])
    return ()
