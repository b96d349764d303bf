"""muster: the whole road of a model in one Airflow Dag.

For programs and notebooks: ``muster.version("flights/features@2013-03").path``, ``muster.versions("flights/model")``,
``muster.put("rows/", "lab/rows")``, ``muster.deployment("flights").predict(…)``; see :mod:`muster.client`. Operators are
in :mod:`muster.airflow`. For a job's own code there is ``muster.signature(inputs=frame, outputs=frame)``.

Nothing is imported before one of these is used: Airflow parses this package's operators many times an hour, and a
replica imports :mod:`muster.worker` in an environment that has neither Airflow nor us installed.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
_WHERE = {
    "Deployment": "client.deployments",
    "MusterError": "core.errors",
    "Version": "client.versions",
    "Versions": "client.versions",
    "deployment": "client.deployments",
    "put": "client.versions",
    "signature": "core.signature",
    "version": "client.versions",
    "versions": "client.versions",
}
__all__ = [*_WHERE]  # typed in __init__.pyi


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"muster.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
