"""Checks of what the command itself needs: Python, Airflow, images, room to build them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

from muster.backends.local.checks import disk
from muster.cli.checks.airflow import maintenance, old_runs, pools
from muster.cli.checks.interpreters import interpreters
from muster.cli.screen import when
from muster.core.check import Check, bad, ok, warn
from muster.core.settings import Settings, project_folder
from muster.core.shipped import install

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
