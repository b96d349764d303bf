"""Usage: the GPU- and CPU-hours that jobs held, used and wasted, by Dag, team, user, class of card, model and volume.

``log`` keeps a line for each job that has ended, ``table`` adds them up, ``service`` does so beside a store on a cluster, and
``commands`` shows it.
"""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.usage.commands:add",
    calls="muster.ext.usage.service:routes",
    tallied=("muster.ext.usage.log:tallied",),
    collected=("muster.ext.usage.log:prune",),
)
