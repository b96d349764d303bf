"""What runs in a replica, whatever its image, needs nothing but Python 3.10; what serves models needs no muster."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHED = {"horovod"}  # imported in replicas that have it, and named by their launcher


@pytest.mark.parametrize("room", ["core", "worker"])
def test_a_replica_needs_the_standard_library_alone(room: str) -> None:
    found = imports(ROOT / "operators" / "muster" / room)
    assert found - set(sys.stdlib_module_names) - LAUNCHED == {"muster"}


def test_a_model_server_needs_no_muster() -> None:
    assert "muster" not in imports(ROOT / "serving")


def imports(folder: Path) -> set[str]:
    """Return the packages that the modules of a folder import, as Python 3.10 reads them."""
    return {name.partition(".")[0] for path in folder.rglob("*.py") for name in imported(path)}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
