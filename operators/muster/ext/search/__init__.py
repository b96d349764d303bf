"""Searches: which params are tried next, which trial stops at a rung, and which one is the best.

``state`` is what the events of a search say, ``rules`` decides what comes next, ``sampling`` chooses the params of a new
trial, and ``simulation`` plays a search without jobs. None of them does I/O. ``driver`` does; ``planned`` says what a search
would cost, and ``tracking`` tells MLflow.
"""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Tab

EXTENSION = Extension(
    extra="search",
    operators={
        "Budget": "muster.ext.search.spec",
        "SearchOperator": "muster.ext.search.operator",
        "choice": "muster.ext.search.space",
        "integers": "muster.ext.search.space",
        "loguniform": "muster.ext.search.space",
        "search": "muster.ext.search.decorator",
        "uniform": "muster.ext.search.space",
    },
    decorators={
        "search": "muster.ext.search.decorator",
    },
    links=("muster.ext.search.link.SearchLink",),
    triggers={"SearchTrigger": "muster.ext.search.trigger"},
    commands="muster.ext.search.commands:add",
    routes=("muster.ext.search.routes:api",),
    static=Path(__file__).parent / "static",
    calls="muster.ext.search.service:routes",
    tabs=(Tab(room="searches", title="Searches", script="searches.js"),),
)
