"""Packages that only a part of muster needs, by the extra that installs them."""

from __future__ import annotations

import importlib.util

from muster.core.errors import SpecError

EXTRAS = {
    "kafka": "confluent_kafka",
    "kubernetes": "kubernetes",
    "machine": "uv",
    "mirrors": "pyfastcdc",
    "page": "duckdb",
    "search": "optuna",
}
"""Of each extra one package that nothing else of muster brings."""


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
