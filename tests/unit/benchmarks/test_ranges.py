"""A ratio that a benchmark promises stands in ``benchmarks/ranges.toml``, with the commit that moved it there and why."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
RANGES: dict[str, dict[str, list[dict[str, Any]]]] = tomllib.loads((BENCHMARKS / "ranges.toml").read_text())
MODULES = {path.stem: ast.parse(path.read_text()) for path in BENCHMARKS.glob("*.py")}
ENTRIES = [
    (name, promise, entry)
    for name, promises in RANGES.items()
    for promise, entries in promises.items()
    for entry in entries
]


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """A module's own constants, each with what it is."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from zip(map(ast.unparse, names), values, strict=True)
            case ast.Assign(targets=[name], value=value):
                yield ast.unparse(name), value


def number(node: ast.expr) -> float | None:
    """What an expression of numbers is; None for any other."""
    known = (ast.Constant, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop)
    if not all(isinstance(each, known) for each in ast.walk(node)):
        return None
    found = eval(ast.unparse(node), {"__builtins__": {}})
    return float(found) if isinstance(found, (int, float)) else None


def called(node: ast.expr, known: dict[str, ast.expr]) -> str:
    """The name of a ratio, with the numbers of constants in it: what is promised may be one of them, as in *to 0.3 s*."""
    if not isinstance(node, ast.JoinedStr):
        return str(node.value).strip() if isinstance(node, ast.Constant) else ast.unparse(node)
    texts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            what = ast.unparse(part.value)
            value = number(known[what]) if what in known else None
            texts.append(f"{{{what}}}" if value is None else f"{value:g}")
        else:
            texts.append(str(ast.literal_eval(part)))
    return "".join(texts).strip()


def promised(tree: ast.Module) -> Iterator[tuple[str, str, float]]:
    """What a benchmark promises by a number or a constant of its own: the ratio's name, and ``at_most`` or ``at_least``.

    Others have their limits in a table, a row for each way that they measure.
    """
    known = dict(constants(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ratio" and node.args:
            words = {word.arg: word.value for word in node.keywords}
            limit = number(known.get(ast.unparse(words["limit"]), words["limit"]))
            if limit is not None:
                how = "at_least" if "at_least" in words else "at_most"
                yield called(node.args[0], known), how, limit


def test_each_promise_is_the_newest_of_its_entries() -> None:
    seen = [
        ((module, name), (how, round(limit, 4)))
        for module, tree in MODULES.items()
        for name, how, limit in promised(tree)
    ]
    found = dict(seen)
    assert len(seen) == len(found), "two ratios of a benchmark have one name"
    written = {
        (module, promise): next(
            (how, round(float(entries[0][how]), 4)) for how in ("at_most", "at_least") if how in entries[0]
        )
        for module, promises in RANGES.items()
        for promise, entries in promises.items()
    }
    assert found == written, (
        "a ratio has moved: put the new one first in its list in benchmarks/ranges.toml, with why"
    )


@pytest.mark.parametrize("name", sorted(RANGES))
def test_each_benchmark_exists(name: str) -> None:
    assert name in MODULES


def test_each_entry_says_why_and_what_moved_it() -> None:
    """Without a commit it is the one that wrote the entry: its name is not known before."""
    for *_, entry in ENTRIES:
        assert set(entry) - {"at_most", "at_least", "commit"} == {"why"}
        assert entry["why"]
    asked = sorted({entry["commit"] for *_, entry in ENTRIES if "commit" in entry})
    command = ["git", "-C", str(ROOT), "cat-file", "--batch-check"]
    done = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True, check=False)
    missing = [line for line in done.stdout.splitlines() if " commit " not in line]
    if done.returncode or len(missing) == len(asked):
        pytest.skip("this folder has no history")
    assert missing == []
