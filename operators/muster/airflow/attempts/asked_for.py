"""What a Dag run was asked for: to make everything anew, and by which backfill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

NO_CACHE = "no_cache"
BACKFILL = "muster_backfill"


def no_cache(context: Context) -> bool:
    """Whether the run's conf, or a Param of the Dag, says ``no_cache``: then nothing is kept.

    :raises SpecError: its value is neither true nor false.
    """
    conf: Mapping[str, Any] = getattr(context.get("dag_run"), "conf", None) or {}
    value = conf.get(NO_CACHE, (context.get("params") or {}).get(NO_CACHE, False))
    if not isinstance(value, bool):
        raise SpecError(f"{NO_CACHE} is {value!r:.60}: expected true or false")
    return value


def backfill_of(context: Context) -> str | None:
    """Return the backfill that a run belongs to; one that muster's listener did not number is ``backfill``."""
    run = context.get("dag_run")
    number = (getattr(run, "conf", None) or {}).get(BACKFILL)
    if number is not None:
        return str(number)
    return "backfill" if str(getattr(run, "run_type", "")).endswith("backfill") else None
