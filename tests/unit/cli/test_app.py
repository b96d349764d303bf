"""The whole command: every part has help with an example, errors are one message, nothing is made."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from muster import __version__
from muster.cli.app import app
from muster.core.errors import MusterError

Run = Callable[..., Any]
ROOT = typer.main.get_command(app)


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that lead to it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def examples(command: Any) -> list[str]:
    return [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("muster")]


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_that_ends_with_an_example(path: tuple[str, ...], muster: Run) -> None:
    answer = muster(*path, "--help")
    assert answer.code == 0
    assert ALL[path].help
    assert examples(ALL[path])
    for line in examples(ALL[path]):
        assert line in answer.out


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_example_can_be_typed(path: tuple[str, ...]) -> None:
    """Its words are parsed by the very command that it is an example of."""
    for line in examples(ALL[path]):
        words = shlex.split(re.split(" [|>] ", line)[0])[1:]
        assert tuple(words[: len(path)]) == path
        with ALL[path].make_context(" ".join(path), words[len(path) :]):
            pass


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_first_sentence_fits_a_list_of_commands(path: tuple[str, ...]) -> None:
    assert len(ALL[path].get_short_help_str(100)) <= 66
    assert not ALL[path].get_short_help_str(66).endswith("...")


def test_the_list_of_commands_is_not_cut_short(muster: Run) -> None:
    """Groups have longer names than commands, and less room beside them."""
    _, listed = muster("--help").out.split("Commands:")
    cut = [line for line in listed.splitlines() if line.endswith("...")]
    assert not cut


def test_the_issue_s_commands_are_there() -> None:
    wanted = {
        (): "demo init run plan up gpus queue usage budget notebook tensorboard spark mlflow metrics doctor support-bundle",
        ("runs",): "ls show diff",
        ("search",): "ls show best cancel",
        ("jobs",): "ls show logs cancel exec forward gc get",
        ("volumes",): "ls log show diff code put get pin unpin retire reinstate mirror restore fsck gc",
        ("deployments",): "ls show promote rollback repair keep install-service retire export import",
        ("deployments", "token"): "make ls end",
        ("predictions",): "show commit",
        ("tokens",): "ls end",
        ("cache",): "ls why drop",
        ("images",): "ls copy lock build",
    }
    assert set(ALL) == {(*path, name) for path, names in wanted.items() for name in names.split()}


READS = [path for path, command in ALL.items() if any("--json" in p.opts for p in command.params)]


def test_every_command_that_reads_speaks_json() -> None:
    writes = {
        "cancel",
        "exec",
        "forward",
        "end",
        "import",
        "pin",
        "unpin",
        "get",
        "retire",
        "reinstate",
        "promote",
        "repair",
        "rollback",
        "tensorboard",
        "spark",
        "notebook",
        "mlflow",
        "metrics",  # in Prometheus's format
        "export",  # a document
        "lock",
        "copy",
        "install-service",
        "keep",
        "support-bundle",
        "demo",
        "init",
        "up",
    }
    assert {path[-1] for path in ALL} - {path[-1] for path in READS} == writes


@pytest.mark.parametrize(
    "words",
    [
        ("volumes", "ls"),
        ("volumes", "log", "flights/model"),
        ("volumes", "fsck"),
        ("volumes", "gc"),
        ("jobs", "ls"),
        ("jobs", "cancel", "x"),
        ("jobs", "logs", "x"),
        ("deployments", "ls"),
        ("deployments", "retire", "x"),
    ],
    ids=" ".join,
)
def test_where_nothing_was_run_it_says_so_and_makes_nothing(words: Any, muster: Run, home: Path) -> None:
    answer = muster(*words)
    assert (answer.code, answer.out, answer.error) == (1, "", None)
    assert "nothing is kept in" in answer.err
    assert not home.exists()


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("volumes", "log", "flights/nothing"), "flights/nothing"),
        (("volumes", "log", "../../etc"), "'..'"),
        (("volumes", "log", "a\nb"), r"a\nb"),
        (("volumes", "log", "x" * 300), "300 characters"),
        (("volumes", "show", "flights/model@99"), "flights/model@99"),
        (("volumes", "show", "flights/model@b3:zz"), "hex digits"),
        (("volumes", "show", "flights/features@*"), "names several versions"),
        (("volumes", "get", "flights/model@1/../../x", "here"), "plain and relative"),
        (("volumes", "put", "nowhere", "raw/x"), "nowhere does not exist"),
        (("jobs", "show", "nothing"), "no job 'nothing'"),
        (("jobs", "logs", "\x1b[2J"), r"\x1b[2J"),
        (("deployments", "show", "nothing"), "no deployment 'nothing'"),
        (("deployments", "show", "../x"), "'../x'"),
    ],
)
def test_what_is_not_there_is_one_message(words: Any, named: str, muster: Run) -> None:
    answer = muster(*words)
    assert (answer.code, answer.out, answer.error) == (1, "", None)
    assert answer.err.startswith("muster: ")
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert answer.err.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "x", "--param", "count"), "NAME=VALUE"),
        (("run", "x", "--dags", "nowhere"), "no folder of Dags"),
    ],
)
def test_a_run_that_cannot_be_says_so_at_once(words: Any, named: str, muster: Run) -> None:
    answer = muster(*words)
    assert (answer.code, answer.out, answer.error) == (1, "", None)
    assert named in answer.err


@pytest.mark.parametrize("words", [("nothing",), ("jobs", "ls", "--state", "odd"), ("volumes", "log")])
def test_a_wrong_word_is_a_usage_error(words: Any, muster: Run) -> None:
    answer = muster(*words)
    assert answer.code == 2
    assert "Usage: muster" in answer.err


def test_a_fault_of_ours_keeps_its_traceback(muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("muster.core.settings.Settings.load", broken)
    assert isinstance(muster("doctor").error, ZeroDivisionError)
    assert not issubclass(ZeroDivisionError, MusterError)


def test_version(muster: Run) -> None:
    assert muster("--version").out == f"muster {__version__}\n"


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, muster.cli.app; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(python("-c", code).stdout.split())
    assert not loaded & {"airflow", "rich", "blake3", "asyncio", "pydantic", "sqlalchemy"}


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    "words", [("volumes", "log", "flights/model"), ("volumes", "ls", "--json"), ("--help",)]
)
def test_a_reader_that_left_is_no_error(words: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from muster.cli.app import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
