"""Checks of what the command itself needs: Python, the images' interpreters, Airflow and its database, images, room to build them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser, Error
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from muster.airflow.embedded.cleaning import DAYS, MARKER
from muster.backends.local.checks import disk
from muster.cli.screen import program, when
from muster.core.check import Check, bad, ok, warn
from muster.core.errors import SpecError
from muster.core.locks import is_locked
from muster.core.settings import INTERPRETER, Settings, project_folder, variable_name
from muster.core.shipped import install

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
    days = _of_up(settings).getfloat("muster", "run_days", fallback=DAYS)
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

    options = _of_up(settings)
    if not (address := options.get("database", "sql_alchemy_conn", fallback="")):
        started = bool(options.sections())
        return ok(
            name, "own.cfg does not hold the database's address" if started else "no muster up here yet"
        )
    url = make_url(address)
    postgres = url.get_backend_name() == "postgresql"
    if (
        postgres and url.host is None and not is_locked(settings.home / "up/up.lock")
    ):  # its own, which ends with it
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


_OPTION = "interpreter."


def interpreters(settings: Settings) -> Iterator[Check]:
    """Check each interpreter that a variable or the Airflow of ``muster up`` sets; it is started, and torch in it."""
    from muster.images.folders import known_images, project_folders

    known = {variable_name(name): name for name in known_images(project_folders(settings, project_folder()))}
    for name, path in sorted({**_interpreters_of_up(settings), **dict(settings.interpreters)}.items()):
        if name in known:
            yield _check(known[name], path)
        else:
            yield warn(
                f"interpreter {name}",
                f"{path}, for an image that is not here",
                f"known are: {', '.join(sorted(known))}; the variable is {INTERPRETER} and one of these",
            )


def _check(image: str, path: Path) -> Check:
    from muster.images.interpreter import look_at, torch_of

    name = f"interpreter of {image}"
    try:
        found, torch = look_at(image, path), torch_of(image, path)
    except SpecError as error:
        return bad(name, error, "jobs of this image are refused until it is set right")
    said = f"Python {found} at {path}"
    if torch is None:
        return ok(name, f"{said}, without torch")
    built = f"built for CUDA {torch.cuda}" if torch.cuda else "built for CPUs"
    if torch.cards:
        return ok(name, f"{said}, torch {torch.torch} {built}: sees {torch.cards} GPUs")
    return ok(name, f"{said}, torch {torch.torch} {built}: sees no GPU")


def _interpreters_of_up(settings: Settings) -> Mapping[str, Path]:
    """What the Airflow of ``muster up`` sets under ``[muster]``, by the name of the variable that would."""
    options = _of_up(settings)
    return {
        variable_name(option.removeprefix(_OPTION)): Path(text).expanduser().absolute()
        for option, text in (options.items("muster", raw=True) if options.has_section("muster") else ())
        if option.startswith(_OPTION) and text
    }


def _of_up(settings: Settings) -> ConfigParser:
    """Return the settings of the Airflow of ``muster up``; none of a file that it refuses, and names."""
    options = ConfigParser()
    with suppress(Error):
        options.read(settings.home / "up" / "airflow.cfg", encoding="utf-8")
    return options


AIRFLOW = "apache-airflow"
CACHE_GIB = 12.0  # every shipped environment and its downloads, with room to build
_FETCHED_GIB = 2.0


def _python(_: Settings) -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return ok("Python", found)
    return bad("Python", found, "make the environment with Python 3.11, 3.12 or 3.13")


def _system(_: Settings) -> Check:
    release = platform.release()
    found = f"{platform.system()} {release} {platform.machine()}"
    if sys.platform != "linux":
        return bad("system", found, "muster runs on Linux, or on Windows under WSL2")
    if "microsoft" in release.lower() and "wsl2" not in release.lower():
        return warn("system", f"{found} (WSL)", "if this is WSL 1: wsl --set-version DISTRO 2")
    return ok("system", found)


def _uv(_: Settings) -> Check:
    try:
        from uv import find_uv_bin

        return ok("uv", find_uv_bin())
    except (ImportError, FileNotFoundError):
        return bad("uv", "not there", install("machine"))


def _airflow(_: Settings) -> Check:
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    try:
        found, needed = version(AIRFLOW), map(Requirement, requires("airflow-provider-muster") or ())
    except PackageNotFoundError:
        return bad("Airflow", "not there", "install muster again: Airflow is one of its requirements")
    wanted = next(each.specifier for each in needed if each.name == AIRFLOW)
    if wanted.contains(found, prereleases=True):
        return ok("Airflow", found)
    return bad("Airflow", found, f"install muster in an environment of its own: it needs Airflow {wanted}")


def _images(settings: Settings) -> Check:
    from muster.images.folders import images_of

    found = list(images_of(settings, project_folder()))
    wrong = [f"{image.name}: {image.trouble}" for image in found if image.trouble]
    if wrong:
        return warn("images", "; ".join(wrong), "lock them before they are used")
    return ok("images", f"{len(found)}, each with a lock that is up to date")


def cache_disk(settings: Settings) -> Check:
    """Check the disk space for building images; less is needed once some are built."""
    needed = 1.0 if (settings.cache / "images").is_dir() else CACHE_GIB
    return disk(
        "disk for MUSTER_CACHE", settings.cache, needed, "free some, or set MUSTER_CACHE to another disk"
    )


def _fetched_disk(settings: Settings) -> Check:
    advice = "free some, or set MUSTER_CACHE to another disk: what is read of volumes is kept there"
    return disk("disk for MUSTER_CACHE", settings.cache, _FETCHED_GIB, advice)


def _waiting(settings: Settings) -> Check:
    from muster.cli.warm.place import waiting

    found = [
        f"process {note.pid} has Airflow imported for the next run (runs so far: {note.runs}, since {when(note.began)}); `kill {note.pid}` ends it"
        for note in waiting(settings.home)
    ]
    if os.environ.get("MUSTER_NO_WARM") == "1":
        return ok("muster run", "imports Airflow each time: MUSTER_NO_WARM is set")
    otherwise = "the next one imports Airflow: no process waits with it"
    return ok("muster run", "; ".join(found) or otherwise)


def _patches(_: Settings) -> Check:
    from muster.airflow.upstream import fields, imports, threads, versions

    patches = [each.PATCH for each in (fields, imports, threads, versions)]
    left_out = "; ".join(sorted({each.off for each in patches if each.off}))
    if left_out:
        return warn(
            "patches",
            left_out,
            "what those packages do at a start of Airflow is not changed: it starts later",
        )
    return ok("patches", ", ".join(f"{each.package} ({each.worth_seconds:g} s)" for each in patches))


def command_checks(settings: Settings, *, here: bool) -> Iterator[Check]:
    """Yield the checks of what the command needs; each runs when it is requested. :param here: whether jobs run here."""
    for check in (_python, _airflow, *(_ONLY_HERE if here else (_fetched_disk,))):
        yield check(settings)
    if here:
        yield from interpreters(settings)


_ONLY_HERE = (_system, _uv, cache_disk, _images, maintenance, old_runs, pools, _waiting, _patches)
