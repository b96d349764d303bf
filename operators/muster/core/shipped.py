"""What an installation of muster has: its folders, beside the package in a wheel or at the root of a checkout, and its extras."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from muster.core.errors import SpecError

SERVE = "serve"
"""The image of the model server."""
EXTRAS = {
    "kafka": "confluent_kafka",
    "kubernetes": "kubernetes",
    "machine": "uv",
    "mirrors": "pyfastcdc",
    "page": "duckdb",
    "search": "optuna",
}
"""Of each extra one package that nothing else of muster brings."""
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
    import secrets  # with shutil slow to import, and needed for a copy alone
    import shutil

    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        shutil.copytree(source, part, ignore=shutil.ignore_patterns("__pycache__"))
        part.rename(target)
    except OSError as error:
        raise SpecError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'airflow-provider-muster[{extra}]'"


def need(extra: str, *, what: str, instead: str = "") -> None:
    """Refuse `what` where its extra is not installed.

    :param instead: what does without it, after *or*.
    :raises SpecError: the package is missing; the message has the command that installs it.
    """
    package = EXTRAS[extra]
    if importlib.util.find_spec(package) is None:
        raise SpecError(
            f"{what} needs {package}, which is not installed here: {install(extra)}{instead and f', or {instead}'}"
        )
