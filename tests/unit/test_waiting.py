from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import waiting
from tests.waiting import GUARD_SECONDS, eventually, until

TESTS = Path(__file__).parents[1]
# Nothing else runs on the machines of these; a cluster's limits are of what its controllers do by themselves.
_OF_MACHINES_ALONE = ("cluster", "gpu", "horovod")
_LIMITED = re.compile(r"\bseconds=[\d.]")


def _hasty(path: Path) -> Iterator[str]:
    """The questions of a file that are given up before GUARD_SECONDS; one that is to be answered no may be."""
    text = path.read_text()
    if not _LIMITED.search(text):  # to parse all of them takes seconds
        return
    tree = ast.parse(text)
    wanted_no = {id(node.operand) for node in ast.walk(tree) if isinstance(node, ast.UnaryOp)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("until", "eventually")
            and id(node) not in wanted_no
        ):
            for keyword in node.keywords:
                limit = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "seconds" and isinstance(limit, int | float) and limit < GUARD_SECONDS:
                    yield f"{path.relative_to(TESTS)}:{node.lineno}: {node.func.id}(…, seconds={limit})"


def test_no_test_gives_up_sooner_than_a_busy_machine_needs() -> None:
    files = [
        path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in _OF_MACHINES_ALONE
    ]
    hasty = [line for path in files for line in _hasty(path)]
    assert hasty == [], "leave `seconds` out, or say `promptly` where muster promises the limit"


def test_a_limit_counts_pauses_and_not_what_a_question_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: list[float] = []
    monkeypatch.setattr(
        waiting.time, "sleep", clock.append
    )  # a machine on which questions and pauses take no time
    assert not until(lambda: False, seconds=2)
    assert sum(clock) == pytest.approx(2)
    assert len(clock) > 10
    answers = iter([0, "", "there"])
    assert eventually(lambda: next(answers)) == "there"
