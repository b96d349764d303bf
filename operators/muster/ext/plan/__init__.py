"""What a run of a Dag would do: which stages it keeps, how long the rest takes and waits, and what it costs."""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Tab

EXTENSION = Extension(
    commands="muster.ext.plan.commands:add",
    settings={
        "plan_on_page": {
            "description": "Whether the page plans runs of Dags. A plan runs the Dag's file in a process on "
            "the api-server's machine; `muster up` does so, and an api-server that is to run no code of "
            "Dag authors must not.",
            "type": "boolean",
            "example": "True",
            "default": "False",
        },
    },
    routes=("muster.ext.plan.routes:api",),
    static=Path(__file__).parent / "static",
    tabs=(Tab(room="plan", title="Plans", script="plan.js", listed=False),),
)
