"""Spark, Ray and Dask: clusters of an engine that are a gang."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.engines.commands:add",
)
