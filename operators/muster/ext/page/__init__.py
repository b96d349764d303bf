"""muster inside Airflow's UI: a page with jobs, volumes and deployments, behind Airflow's own login."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension()
