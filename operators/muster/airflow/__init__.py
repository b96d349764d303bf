"""Operators for Airflow, and the Airflow that runs behind ``muster run``: the only room that imports airflow.

Names are imported when they are first used: Airflow loads this package while it reads its own
configuration, and parses Dag files many times an hour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.airflow.authoring.smoke_rows import SmokeRows
    from muster.airflow.authoring.triggering import triggering
    from muster.airflow.authoring.values import Output
    from muster.airflow.operators.compact import CompactOperator
    from muster.airflow.operators.decorators import gang, job, search
    from muster.airflow.operators.deploy import DeployOperator
    from muster.airflow.operators.drift import DriftOperator
    from muster.airflow.operators.gate import GateOperator
    from muster.airflow.operators.ingest import IngestOperator
    from muster.airflow.operators.job import GangOperator, JobOperator
    from muster.airflow.operators.mirror import MirrorOperator
    from muster.airflow.operators.retention import RetentionOperator
    from muster.airflow.operators.rollback import RollbackOperator
    from muster.airflow.operators.score import ScoreOperator
    from muster.airflow.operators.search import SearchOperator
    from muster.airflow.operators.sweep import SweepOperator
    from muster.airflow.operators.validate import ValidateOperator
    from muster.airflow.topic import TopicTrigger
    from muster.backends.releases.plan import Rules
    from muster.core.deployment import Batch, RequestLimits, RequestLog
    from muster.core.drift import DriftLimits
    from muster.core.job import Role, SecretRef
    from muster.core.resources import Resources
    from muster.core.search import Budget
    from muster.core.space import choice, integers, loguniform, uniform

__all__ = [
    "Batch",
    "Budget",
    "CompactOperator",
    "DeployOperator",
    "DriftLimits",
    "DriftOperator",
    "GangOperator",
    "GateOperator",
    "IngestOperator",
    "JobOperator",
    "MirrorOperator",
    "Output",
    "RequestLimits",
    "RequestLog",
    "Resources",
    "RetentionOperator",
    "Role",
    "RollbackOperator",
    "Rules",
    "ScoreOperator",
    "SearchOperator",
    "SecretRef",
    "SmokeRows",
    "SweepOperator",
    "TopicTrigger",
    "ValidateOperator",
    "choice",
    "gang",
    "integers",
    "job",
    "loguniform",
    "search",
    "triggering",
    "uniform",
]

_MODULES = {
    "Batch": "muster.core.deployment",
    "Budget": "muster.core.search",
    "CompactOperator": "muster.airflow.operators.compact",
    "DeployOperator": "muster.airflow.operators.deploy",
    "DriftLimits": "muster.core.drift",
    "DriftOperator": "muster.airflow.operators.drift",
    "GangOperator": "muster.airflow.operators.job",
    "GateOperator": "muster.airflow.operators.gate",
    "IngestOperator": "muster.airflow.operators.ingest",
    "JobOperator": "muster.airflow.operators.job",
    "MirrorOperator": "muster.airflow.operators.mirror",
    "Output": "muster.airflow.authoring.values",
    "RequestLimits": "muster.core.deployment",
    "RequestLog": "muster.core.deployment",
    "Resources": "muster.core.resources",
    "RetentionOperator": "muster.airflow.operators.retention",
    "Role": "muster.core.job",
    "RollbackOperator": "muster.airflow.operators.rollback",
    "Rules": "muster.backends.releases.plan",
    "ScoreOperator": "muster.airflow.operators.score",
    "SearchOperator": "muster.airflow.operators.search",
    "SecretRef": "muster.core.job",
    "SmokeRows": "muster.airflow.authoring.smoke_rows",
    "SweepOperator": "muster.airflow.operators.sweep",
    "TopicTrigger": "muster.airflow.topic",
    "ValidateOperator": "muster.airflow.operators.validate",
    "choice": "muster.core.space",
    "gang": "muster.airflow.operators.decorators",
    "integers": "muster.core.space",
    "job": "muster.airflow.operators.decorators",
    "loguniform": "muster.core.space",
    "search": "muster.airflow.operators.decorators",
    "triggering": "muster.airflow.authoring.triggering",
    "uniform": "muster.core.space",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
