"""Tokens of persons: made, listed and ended on the page by their person, and by the command by who is on call."""

from __future__ import annotations

from pathlib import Path

from muster.core.extensions import Extension, Tab

EXTENSION = Extension(
    commands="muster.ext.tokens.commands:add",
    routes=("muster.ext.tokens.routes:api",),
    static=Path(__file__).parent / "static",
    tabs=(Tab(room="tokens", title="Tokens", script="tokens.js"),),
)
