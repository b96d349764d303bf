"""Dags that are versions of a volume: Airflow takes them from the store."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(reconciled=("muster.ext.dags.bundle:keep_used",))
