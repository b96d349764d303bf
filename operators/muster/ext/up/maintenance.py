"""Muster's own maintenance Dag, for a project that has none: which bundles of Dags the Airflow of ``muster up`` reads."""

from __future__ import annotations

import json
from configparser import RawConfigParser
from pathlib import Path

from muster.core.errors import SpecError
from muster.core.shipped import shipped

_DAG_ID = "muster_maintenance"
_OWN_BUNDLE = "dags-folder"  # Airflow's own name for the folder of Dags
BUNDLE = "muster"
_LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
_OF_MAINTENANCE = (_DAG_ID, "RetentionOperator")


def wanted(options: RawConfigParser, dags: Path) -> bool:
    """Whether Airflow reads muster's own Dag: not if the project has one, or if it is turned off.

    :param options: Airflow's settings, including the user's own.
    :raises SpecError: ``maintenance`` under ``[muster]`` is neither true nor false.
    """
    try:
        on = options.getboolean("muster", "maintenance", fallback=True)
    except ValueError as error:
        raise SpecError(
            f"maintenance under [muster] is {options['muster']['maintenance']!r:.40}: write True or False"
        ) from error
    return on and not options.has_option("dag_processor", "dag_bundle_config_list") and not has_own(dags)


def bundles() -> str:
    """Airflow's ``dag_bundle_config_list``: the folder of Dags, and muster's own Dag beside it."""
    folders: dict[str, dict[str, str]] = {_OWN_BUNDLE: {}, BUNDLE: {"path": str(shipped("dags") / _DAG_ID)}}
    return json.dumps([{"name": name, "classpath": _LOCAL, "kwargs": path} for name, path in folders.items()])


def has_own(dags: Path) -> bool:
    """Whether a Dag file of the project holds the maintenance Dag's name, or that of the retention operator."""
    return any(
        word in _text(file) for file in dags.rglob("*.py") if file.is_file() for word in _OF_MAINTENANCE
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it is gone by now, or not readable, by Airflow neither
        return ""
