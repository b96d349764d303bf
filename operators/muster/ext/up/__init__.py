"""A whole Airflow of several processes on this machine, kept running: the Airflow of ``muster up``."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.up.commands:add",
)
