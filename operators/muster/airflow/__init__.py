"""Operators for Airflow, and the Airflow that runs behind ``muster run``: the only room that imports airflow.

Names are imported when they are first used: Airflow loads this package while it reads its own
configuration, and parses Dag files many times an hour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.airflow.authoring.triggering import triggering as triggering
    from muster.airflow.authoring.values import Output as Output, SmokeRows as SmokeRows
    from muster.airflow.operators.decorators import gang as gang, job as job
    from muster.airflow.operators.deploy import DeployOperator as DeployOperator
    from muster.airflow.operators.gate import GateOperator as GateOperator
    from muster.airflow.operators.job import GangOperator as GangOperator, JobOperator as JobOperator
    from muster.airflow.operators.retention import RetentionOperator as RetentionOperator
    from muster.airflow.operators.rollback import RollbackOperator as RollbackOperator
    from muster.airflow.operators.sweep import SweepOperator as SweepOperator
    from muster.airflow.operators.validate import ValidateOperator as ValidateOperator
    from muster.backends.releases.plan import Rules as Rules
    from muster.core.deployment import (
        Batch as Batch,
        RequestLimits as RequestLimits,
        RequestLog as RequestLog,
    )
    from muster.core.job import Role as Role, SecretRef as SecretRef
    from muster.core.resources import Resources as Resources
    from muster.ext.ingest.compact import CompactOperator as CompactOperator
    from muster.ext.ingest.operator import IngestOperator as IngestOperator
    from muster.ext.ingest.topic import TopicTrigger as TopicTrigger
    from muster.ext.mirrors.operator import MirrorOperator as MirrorOperator
    from muster.ext.predictions.drift import DriftLimits as DriftLimits, DriftOperator as DriftOperator
    from muster.ext.predictions.score import ScoreOperator as ScoreOperator
    from muster.ext.search.decorator import search as search
    from muster.ext.search.operator import SearchOperator as SearchOperator
    from muster.ext.search.space import (
        choice as choice,
        integers as integers,
        loguniform as loguniform,
        uniform as uniform,
    )
    from muster.ext.search.spec import Budget as Budget

_MODULES = {
    "Batch": "muster.core.deployment",
    "DeployOperator": "muster.airflow.operators.deploy",
    "GangOperator": "muster.airflow.operators.job",
    "GateOperator": "muster.airflow.operators.gate",
    "JobOperator": "muster.airflow.operators.job",
    "Output": "muster.airflow.authoring.values",
    "RequestLimits": "muster.core.deployment",
    "RequestLog": "muster.core.deployment",
    "Resources": "muster.core.resources",
    "RetentionOperator": "muster.airflow.operators.retention",
    "Role": "muster.core.job",
    "RollbackOperator": "muster.airflow.operators.rollback",
    "Rules": "muster.backends.releases.plan",
    "SecretRef": "muster.core.job",
    "SmokeRows": "muster.airflow.authoring.values",
    "SweepOperator": "muster.airflow.operators.sweep",
    "ValidateOperator": "muster.airflow.operators.validate",
    "gang": "muster.airflow.operators.decorators",
    "job": "muster.airflow.operators.decorators",
    "triggering": "muster.airflow.authoring.triggering",
}
"""The module of each public name; those of extensions are in :func:`modules`."""


def modules() -> dict[str, str]:
    """Return the module of each public name, those of extensions among them, sorted by name."""
    from muster.core.extensions import added  # here: most processes ask for no name

    return dict(sorted({**added(lambda each: each.operators), **_MODULES}.items()))


def _of_extension(name: str) -> str | None:
    from muster.core.extensions import extensions
    from muster.core.shipped import need

    for extension in extensions().values():
        if name in extension.operators:
            if extension.extra is not None:
                need(extension.extra, what=name)
            return extension.operators[name]
    return None


def __getattr__(name: str) -> Any:
    if name == "__all__":  # for `import *` and tests alone: it is the names of every extension, too
        return [*modules()]
    module = _MODULES.get(name) or (None if name.startswith("_") else _of_extension(name))
    if module is None:
        from muster.core.extensions import problems

        raise AttributeError("\n".join((f"module {__name__!r} has no attribute {name!r}", *problems())))
    return getattr(import_module(module), name)
