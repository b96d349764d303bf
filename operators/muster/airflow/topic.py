"""Finds a trigger that Airflow's database names as one of this module, and that is an extension's now."""

from __future__ import annotations

from muster.airflow.attempts.trigger import __getattr__ as __getattr__
