"""Finds the folders shipped with muster: beside the package in a wheel, at the root of a checkout."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from muster.core.errors import SpecError

SERVE = "serve"
"""The image of the model server."""
_PACKAGE = Path(__file__).resolve().parent.parent  # a notebook's kernel reaches it by a link


def shipped(name: str) -> Path:
    """Return the folder ``images``, ``serving``, ``dags``, ``starter`` or ``helm`` of this muster.

    :raises SpecError: this installation lacks it.
    """
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent.parent):
        if (root / name).is_dir() and (root.name == "_shipped" or (root / "pyproject.toml").is_file()):
            return root / name
    raise SpecError(f"this installation of muster lacks its {name!r} folder: install it again")


def copy_whole(source: Path, target: Path) -> None:
    """Copy a folder for its user to change, all or nothing. :raises SpecError: it cannot be read or written."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        shutil.copytree(source, part, ignore=shutil.ignore_patterns("__pycache__"))
        part.rename(target)
    except OSError as error:
        raise SpecError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
