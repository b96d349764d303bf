"""Where what travels with muster lies: in the wheel beside the package, in a checkout at its root."""

from __future__ import annotations

from pathlib import Path

from muster.core.errors import SpecError

_PACKAGE = Path(__file__).parent.parent


def shipped(name: str) -> Path:
    """Return the folder ``images``, ``serving``, ``dags`` or ``starter`` that came with this muster.

    :raises SpecError: this installation lacks it.
    """
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent.parent):
        if (root / name).is_dir() and (root.name == "_shipped" or (root / "pyproject.toml").is_file()):
            return root / name
    raise SpecError(f"this installation of muster lacks its {name!r} folder: install it again")
