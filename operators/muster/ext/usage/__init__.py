"""Usage: the GPU- and CPU-hours that jobs held, used and wasted, by Dag, team, user, class of card, model and volume."""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Gauge, Tab

EXTENSION = Extension(
    commands="muster.ext.usage.commands:add",
    routes=("muster.ext.usage.routes:api",),
    static=Path(__file__).parent / "static",
    tabs=(Tab(room="usage", title="Usage", script="usage.js"),),
    calls="muster.ext.usage.service:routes",
    tallied=("muster.ext.usage.log:tallied",),
    held=("muster.ext.usage.service:held",),
    planned=("muster.ext.usage.service:planned",),
    gauges=(
        Gauge(
            name="muster_usage_hours",
            labels=("team", "class", "kind"),
            means="hours of this month (UTC) that jobs held, and of these used, wasted or not measured (unmeasured): of one card of a class, or of one core where the class is cpu",
            look="muster.ext.usage.service:this_month",
        ),
    ),
    collected=("muster.ext.usage.log:prune",),
)
