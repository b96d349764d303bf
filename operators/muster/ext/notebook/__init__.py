"""A notebook in an image's environment, with versions of the store beside it."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.notebook.commands:add",
)
