"""Checks of the Airflow of ``muster up``: its maintenance Dag and its pools."""

from __future__ import annotations

from collections.abc import Sequence
from configparser import ConfigParser
from shlex import quote
from typing import Any

from muster.airflow.embedded.cleaning import DAYS, MARKER
from muster.cli.screen import program, when
from muster.core.check import Check, ok, warn
from muster.core.locks import is_locked
from muster.core.settings import Settings

MAINTENANCE = "muster_maintenance"
_BY_HAND = "muster volumes gc deletes old versions by hand"
_PAUSED = "SELECT is_paused FROM dag WHERE dag_id = :dag AND NOT is_stale"
_LAST = "SELECT run_id, state FROM dag_run WHERE dag_id = :dag AND state IN ('success', 'failed') ORDER BY end_date DESC LIMIT 1"
_LOOSE = "SELECT pool FROM slot_pool WHERE NOT include_deferred AND pool <> 'default_pool' ORDER BY pool"


def maintenance(settings: Settings) -> Check:
    """Check that the maintenance Dag runs, which ends jobs without a task and deletes old versions."""
    rows = _rows(settings, "maintenance", _PAUSED, dag=MAINTENANCE)
    if isinstance(rows, Check):
        return rows if rows.advice else ok("maintenance", f"{rows.found}; {_BY_HAND}")
    if not rows:
        return ok(
            "maintenance",
            f"muster up has no Dag {MAINTENANCE}: a Dag of your own with RetentionOperator, or none",
        )
    if not rows[0][0]:
        last = _rows(settings, "maintenance", _LAST, dag=MAINTENANCE)
        if isinstance(last, Check):
            return last
        if last and last[0][1] == "failed":
            return warn(
                "maintenance",
                f"the last run of the Dag {MAINTENANCE} failed ({last[0][0]}): old versions, and jobs that no task owns, may stay",
                "its task's log, on the page of muster up, says why",
            )
        return ok("maintenance", f"the Dag {MAINTENANCE} runs once an hour under muster up")
    return warn(
        "maintenance",
        f"the Dag {MAINTENANCE} is paused: old versions, and jobs that no task owns, stay",
        f"start it on the page of muster up, or: AIRFLOW_HOME={quote(str(settings.home / 'up'))} "
        f"{program('airflow')} dags unpause {MAINTENANCE}; {_BY_HAND}",
    )


def old_runs(settings: Settings) -> Check:
    """Say after how many days rows and logs of runs go, and when they were looked for last."""
    root, options = settings.home / "up", ConfigParser(interpolation=None)
    options.read(root / "airflow.cfg", encoding="utf-8")
    days = options.getfloat("muster", "run_days", fallback=DAYS)
    if not days:
        advice = "set run_days under [muster] in own.cfg to the days that they are to stay, if nothing else deletes them"
        return warn("old runs", "Airflow's rows and logs of runs stay for ever", advice)
    found = f"Airflow's rows and logs of runs that ended go after {days:g} days"
    last = [marker.stat().st_mtime for marker in settings.home.glob(f"*/{MARKER}")]
    return ok("old runs", f"{found}; once a day, last {when(max(last))}" if last else found)


def pools(settings: Settings) -> Check:
    """Find pools that do not count deferred tasks: their slots are free while jobs run."""
    rows = _rows(settings, "pools", _LOOSE)
    if isinstance(rows, Check):
        return rows
    if not rows:
        return ok("pools", "each pool of your own counts deferred tasks")
    names = ", ".join(str(name) for (name,) in rows)
    return warn(
        "pools",
        f"{names}: deferred tasks are not counted, so more jobs may run than there are slots",
        "in Airflow, Admin, Pools: edit each and tick Include Deferred; docs/howto/pools.md says why",
    )


def _rows(settings: Settings, name: str, query: str, **values: str) -> Sequence[Any] | Check:
    """Query Airflow's database; return the check `name` where it is not up, or cannot be read."""
    from sqlalchemy import create_engine, make_url, text
    from sqlalchemy.exc import SQLAlchemyError

    root, options = settings.home / "up", ConfigParser()
    options.read(root / "airflow.cfg", encoding="utf-8")
    if not (address := options.get("database", "sql_alchemy_conn", fallback="")):
        started = bool(options.sections())
        return ok(
            name, "own.cfg does not hold the database's address" if started else "no muster up here yet"
        )
    url = make_url(address)
    postgres = url.get_backend_name() == "postgresql"
    if postgres and url.host is None and not is_locked(root / "up.lock"):  # its own, which ends with it
        return ok(name, "not known while muster up does not run here")
    try:
        with create_engine(url, connect_args={"connect_timeout": 5} if postgres else {}).connect() as airflow:
            return airflow.execute(text(query), values).fetchall()
    except SQLAlchemyError as error:
        return warn(
            name,
            f"{url.render_as_string()} cannot be read: {error}",
            "run muster up: it upgrades the database, or says what is wrong with it",
        )
