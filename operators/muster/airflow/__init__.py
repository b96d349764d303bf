"""Operators for Airflow, and the Airflow that runs behind ``muster run``: the only room that imports airflow.

Names are imported when they are first used: Airflow loads this package while it reads its own
configuration, and parses Dag files many times an hour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.airflow.authoring.smoke_rows import SmokeRows as SmokeRows
    from muster.airflow.authoring.triggering import triggering as triggering
    from muster.airflow.authoring.values import Output as Output
    from muster.airflow.operators.compact import CompactOperator as CompactOperator
    from muster.airflow.operators.decorators import gang as gang
    from muster.airflow.operators.decorators import job as job
    from muster.airflow.operators.decorators import search as search
    from muster.airflow.operators.deploy import DeployOperator as DeployOperator
    from muster.airflow.operators.drift import DriftOperator as DriftOperator
    from muster.airflow.operators.gate import GateOperator as GateOperator
    from muster.airflow.operators.ingest import IngestOperator as IngestOperator
    from muster.airflow.operators.job import GangOperator as GangOperator
    from muster.airflow.operators.job import JobOperator as JobOperator
    from muster.airflow.operators.mirror import MirrorOperator as MirrorOperator
    from muster.airflow.operators.retention import RetentionOperator as RetentionOperator
    from muster.airflow.operators.rollback import RollbackOperator as RollbackOperator
    from muster.airflow.operators.score import ScoreOperator as ScoreOperator
    from muster.airflow.operators.search import SearchOperator as SearchOperator
    from muster.airflow.operators.sweep import SweepOperator as SweepOperator
    from muster.airflow.operators.validate import ValidateOperator as ValidateOperator
    from muster.airflow.topic import TopicTrigger as TopicTrigger
    from muster.backends.releases.plan import Rules as Rules
    from muster.core.deployment import Batch as Batch
    from muster.core.deployment import RequestLimits as RequestLimits
    from muster.core.deployment import RequestLog as RequestLog
    from muster.core.drift import DriftLimits as DriftLimits
    from muster.core.job import Role as Role
    from muster.core.job import SecretRef as SecretRef
    from muster.core.resources import Resources as Resources
    from muster.core.search import Budget as Budget
    from muster.core.space import choice as choice
    from muster.core.space import integers as integers
    from muster.core.space import loguniform as loguniform
    from muster.core.space import uniform as uniform

MODULES = {
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
"""The module of each public name."""

__all__ = [*MODULES]  # typed above


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
