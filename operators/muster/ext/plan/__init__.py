"""What a run of a Dag would do: which stages it keeps, how long the rest takes and waits, and what it costs."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.plan.commands:add",
    routes=("muster.ext.plan.routes:api",),
)
