"""One file with what a person needs who helps from afar, without secrets."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.support.commands:add",
)
