"""Usage: the GPU- and CPU-hours that jobs held, used and wasted, by Dag, team, user, class of card, model and volume."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.usage.commands:add",
    calls="muster.ext.usage.service:routes",
    tallied=("muster.ext.usage.log:tallied",),
    held=("muster.ext.usage.budgets:held",),
    planned=("muster.ext.usage.budgets:planned",),
    collected=("muster.ext.usage.log:prune",),
)
