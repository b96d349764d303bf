"""What a deployment was asked and answered: kept as versions, compared with the training data, scored in batches."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    operators={
        "DriftLimits": "muster.ext.predictions.drift",
        "DriftOperator": "muster.ext.predictions.drift",
        "ScoreOperator": "muster.ext.predictions.score",
    },
    commands="muster.ext.predictions.commands:add",
)
