"""Finds a launcher of ranks in the words of a command: inside a gang, which starts its ranks itself, it is a mistake.

Each rank would start a training of its own, all of them would succeed, and none would be distributed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.errors import SpecError
from muster.core.job import Launcher

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
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
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
        elif _VARIABLE.match(program):
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
