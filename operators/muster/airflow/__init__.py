"""Operators for Airflow, and the Airflow that runs behind ``muster run``: the only room that imports airflow.

Names are imported when they are first used: Airflow loads this package while it reads its own
configuration, and parses Dag files many times an hour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.airflow.deploy import DeployOperator
    from muster.airflow.gate import GateOperator
    from muster.airflow.job import GangOperator, JobOperator
    from muster.airflow.output import Output
    from muster.airflow.retention import RetentionOperator
    from muster.airflow.sweep import SweepOperator
    from muster.airflow.validate import ValidateOperator
    from muster.core.job import Role, SecretRef
    from muster.core.resources import Resources

__all__ = [
    "DeployOperator",
    "GangOperator",
    "GateOperator",
    "JobOperator",
    "Output",
    "Resources",
    "RetentionOperator",
    "Role",
    "SecretRef",
    "SweepOperator",
    "ValidateOperator",
]

_MODULES = {
    "DeployOperator": "muster.airflow.deploy",
    "GangOperator": "muster.airflow.job",
    "GateOperator": "muster.airflow.gate",
    "JobOperator": "muster.airflow.job",
    "Output": "muster.airflow.output",
    "Resources": "muster.core.resources",
    "RetentionOperator": "muster.airflow.retention",
    "Role": "muster.core.job",
    "SecretRef": "muster.core.job",
    "SweepOperator": "muster.airflow.sweep",
    "ValidateOperator": "muster.airflow.validate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
