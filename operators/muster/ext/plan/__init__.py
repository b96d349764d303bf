"""What a run of a Dag would do: which stages it keeps, how long the rest takes and waits, and what it costs."""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Tab

EXTENSION = Extension(
    commands="muster.ext.plan.commands:add",
    routes=("muster.ext.plan.routes:api",),
    static=Path(__file__).parent / "static",
    tabs=(Tab(room="plan", title="Plans", script="plan.js", listed=False),),
)
