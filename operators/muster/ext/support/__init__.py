"""What a person on call types: one file for who helps from afar, without secrets, and a way into a job that runs."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.support.commands:add",
)
