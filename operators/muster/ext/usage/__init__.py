"""Usage: the GPU- and CPU-hours that jobs held, used and wasted, by Dag, team, user, class of card, model and volume."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.usage.commands:add",
    calls="muster.ext.usage.service:routes",
    tallied=("muster.ext.usage.log:tallied",),
    collected=("muster.ext.usage.log:prune",),
)
