"""Text made harmless, tables, and figures for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.screen import Table, complain, fields, program, safe, seconds, size


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("[rank 3] loss 0.5", "[rank 3] loss 0.5"),
        ("[red]not markup[/red]", "[red]not markup[/red]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb", r"a\rb"),
        ("a\nb", r"a\nb"),
        ("a\tb", "a    b"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("line\u2028separator", r"line\u2028separator"),
        ("\udcff", r"\udcff"),
        ("Zürich ✓ 東京", "Zürich ✓ 東京"),
    ],
)
def test_safe_shows_what_is_there_and_nothing_acts(raw: str, shown: str) -> None:
    assert safe(raw) == shown


def test_what_taking_a_colour_out_joins_is_still_escaped() -> None:
    assert "\x1b" not in safe("\x1b\x1b[0m[2J")


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (34 << 20, "34.0 MiB"), (5 << 50, "5120.0 TiB")],
)
def test_size(figure: int, shown: str) -> None:
    assert size(figure) == shown


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(None, "-"), (0.042, "0.04 s"), (12.34, "12.3 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")],
)
def test_seconds(figure: float | None, shown: str) -> None:
    assert seconds(figure) == shown


def test_a_table_aligns_and_in_a_pipe_cuts_nothing() -> None:
    table = Table(["name", ">n", "why"])
    table.add("a", 5, "x" * 300)
    table.add("longer", 1000, None)
    assert list(table.lines()) == [
        "name       n  why",
        "a          5  " + "x" * 300,
        "longer  1000  -",
    ]


def test_on_a_terminal_the_last_column_is_cut() -> None:
    table = Table(["name", "why"])
    table.add("a", "x" * 300)
    _head, row = table.lines(width=40)
    assert len(row) == 40
    assert row.endswith("x…")


def test_on_a_terminal_a_long_name_leaves_room_for_what_stands_beside_it() -> None:
    table = Table(["dag", "job", ">n", "why"])
    table.add("d" * 240, "j" * 40, 5, "no room")
    table.add("short", "j", 1000, "x" * 300)
    head, *rows = table.lines(width=100)
    assert rows[0].split() == ["d" * 39 + "…", "j" * 40, "5", "no", "room"]
    assert [head.index("why"), rows[1].index("xxx")] == [rows[0].index("no room")] * 2
    assert "d" * 240 in "".join(table.lines())


def test_an_empty_table_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Table(["name"]).show(empty="no jobs yet")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no jobs yet\n")


def test_an_error_keeps_its_lines_and_loses_its_controls(capsys: pytest.CaptureFixture[str]) -> None:
    complain("uv failed\n  \x1b[31mno \x07such package\x1b[0m\nrun again")
    assert capsys.readouterr().err == "muster: uv failed\n    no \\x07such package\n  run again\n"


def test_a_program_of_another_environment_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = Path(sys.executable).with_name("muster"), tmp_path / "muster"
    other.symlink_to(own)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("muster") == "muster"
    other.unlink()
    other.write_text("#!/bin/sh")
    other.chmod(0o755)
    assert Path(program("muster")).absolute() == own


def test_fields_leave_out_what_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    fields([("state", "ok"), ("reason", ""), ("output model", "volume://m@1"), ("owner", None)])
    assert capsys.readouterr().out == "state         ok\noutput model  volume://m@1\n"


def test_stdout_is_the_document_s_alone_whoever_prints() -> None:
    program = """
import os, subprocess
from muster.cli.screen import emit, kept_for_the_document
with kept_for_the_document():
    print("a library")
    os.write(1, b"a C library\\n")
    subprocess.run(["echo", "a program"])
    emit({"state": "success"})
    print("at its end")
print("after it")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == '{"state": "success"}\nafter it\n'
    assert set(done.stderr.splitlines()) == {"a library", "a C library", "a program", "at its end"}
