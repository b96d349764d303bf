"""An outsider's extension, whole: it counts the versions of volumes, in a Dag, in a terminal and on the page."""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Tab

EXTENSION = Extension(
    operators={"CountOperator": "counts.operator"},
    commands="counts.commands:add",
    checks=("counts.commands:checks",),
    settings={
        "most_counted": {
            "description": "Versions.",
            "version_added": "1.0",
            "type": "integer",
            "default": "100",
        }
    },
    routes=("counts.routes:api",),
    static=Path(__file__).parent / "static",
    tabs=(Tab(room="counts", title="Counts", script="counts.js"),),
)
