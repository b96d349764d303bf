"""Mirrors: second homes of a store's versions, with the same numbers and the same digests."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    extra="mirrors",
    operators={
        "MirrorOperator": "muster.ext.mirrors.operator",
    },
    commands="muster.ext.mirrors.commands:add",
    calls="muster.ext.mirrors.service:routes",
    reading="muster.ext.mirrors.elsewhere:reads_mirror",
    repair="muster.ext.mirrors.repair:Repair",
)
