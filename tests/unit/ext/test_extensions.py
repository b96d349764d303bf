"""Each extension has a folder of tests, and each of its modules a test, or a place that is named here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
SOURCES = TESTS.parent / "operators" / "muster" / "ext"
EXTENSIONS = sorted(each.parent.name for each in SOURCES.glob("*/__init__.py"))
MODULES = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    for path in SOURCES.rglob("*.py")
    if path.name != "__init__.py"
)
ELSEWHERE = {
    "mirrors.drafts": "tests/contract/test_mirrors.py",
    "mirrors.elsewhere": "tests/contract/test_reading_mirrors.py",
    "mirrors.messages": "tests/contract/test_mirrors.py",
    "notebook.execute": "tests/cli/test_notebook.py",
    "page.routes_jobs": "tests/airflow/test_page.py",
    "page.snapshots": "tests/airflow/test_page.py",
    "plan.planner": "tests/airflow/test_plan.py",
    "plan.process": "tests/airflow/test_page.py",
    "plan.routes": "tests/airflow/test_page.py",
    "search.decorator": "docs/howto/search.md",
    "search.trigger": "tests/airflow/test_deferral.py",
    "tokens.routes": "tests/airflow/test_teams.py",
    "usage.routes": "tests/airflow/test_page.py",
    "up.waking": "tests/airflow/test_up.py",
}
"""Modules that no test imports, and no test in their extension's folder is called after: what shows them instead."""


@cache
def texts() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))


def has_a_test(module: str) -> bool:
    """Whether a test bears the module's name, or imports it."""
    extension, *_, name = module.split(".")
    if (HERE / extension / f"test_{name}.py").exists():
        return True
    package = module.rpartition(".")[0]
    imports = re.compile(
        rf"muster\.ext\.{re.escape(module)}\b|from muster\.ext\.{re.escape(package)} import .*\b{name}\b"
    )
    return any(imports.search(text) for text in texts())


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_each_extension_has_tests_of_its_own(extension: str) -> None:
    """``make check EXT=NAME`` runs them."""
    assert list((HERE / extension).rglob("test_*.py")), f"tests/unit/ext/{extension} has no test"


def test_each_folder_is_of_an_extension() -> None:
    assert (
        sorted(each.name for each in HERE.iterdir() if each.is_dir() and each.name != "__pycache__")
        == EXTENSIONS
    )


def test_each_module_has_a_test_or_is_shown_elsewhere() -> None:
    assert [module for module in MODULES if module not in ELSEWHERE and not has_a_test(module)] == []


@pytest.mark.parametrize("module", sorted(ELSEWHERE))
def test_where_it_is_shown_exists(module: str) -> None:
    assert (TESTS.parent / ELSEWHERE[module]).exists()
    assert module in MODULES, "it is gone: take it from ELSEWHERE"
