"""Every example in the README: commands can be typed, and the Dag of one's own runs as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from muster.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def typed() -> Iterator[str]:
    for block in blocks("sh"):
        for line in block.splitlines():
            yield line.partition("#")[0].strip()


def find(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that `words` name, and the words that are left for it."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("line", [line for line in typed() if line.startswith("muster ")])
def test_every_command_can_be_typed(line: str) -> None:
    _, *words = shlex.split(line)
    command, rest = find(words)
    with command.make_context(line, rest):
        assert not hasattr(command, "commands")


def test_the_edit_changes_the_script(tmp_path: Path) -> None:
    (line,) = [line for line in typed() if line.startswith("sed ")]
    before = (ROOT / "dags/flights/train.py").read_text()
    (tmp_path / "dags/flights").mkdir(parents=True)
    (tmp_path / "dags/flights/train.py").write_text(before)
    subprocess.run(shlex.split(line), cwd=tmp_path, check=True)
    assert (tmp_path / "dags/flights/train.py").read_text() != before


def test_every_other_command_is_known() -> None:
    assert {line.split()[0] for line in typed()} == {"muster", "mkdir", "sed"}


def test_every_make_target_is_there() -> None:
    targets = set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= targets <= there


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.slow
def test_the_dag_of_one_s_own_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    dag, work = blocks("python")
    (tmp_path / "dags" / "hello").mkdir(parents=True)  # as the README's mkdir, which makes it again
    (tmp_path / "dags" / "hello" / "dag.py").write_text(dag)
    (tmp_path / "dags" / "hello" / "work.py").write_text(work)
    for line in [line for line in typed() if "hello" in line]:
        done = subprocess.run(
            shlex.split(line),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if line.startswith("muster run"):
            assert "lines 5" in done.stdout
        if line.startswith("muster volumes"):
            assert "1.txt" in done.stdout
        if line.startswith("muster jobs"):
            assert "[rank 1] 5 numbers, the first is 1" in done.stdout
