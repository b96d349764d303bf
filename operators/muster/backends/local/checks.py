"""The doctor's checks of one machine: disks, memory, ports, the store and its jobs."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.backends.local.machine import GIB, Machine
from muster.core.check import Check, bad, ok, warn
from muster.core.errors import MusterError
from muster.core.settings import Settings

HOME_GIB = 2.0
LATELY_DAYS, SHORT_DAYS, LONG_DAYS = 7.0, 14.0, 730.0
DAY_SECONDS = 86_400.0
MEMORY_GIB = 4.0
_LOCKLESS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "drvfs", "fuse.sshfs"})


def machine_checks(settings: Settings) -> Iterator[Check]:
    """Yield the checks of a machine on which jobs run; each runs when it is requested."""
    for check in (home_disk, _file_system, _home_rights, _memory, _limits, _gpus, _port, _store, _jobs):
        yield check(settings)


def home_disk(settings: Settings) -> Check:
    """Check the disk space for jobs and versions, and for how many days it lasts."""
    advice = "free some (`muster jobs gc` and `muster volumes gc` show what can be deleted), or set MUSTER_HOME to another disk"
    check = disk("disk for MUSTER_HOME", settings.home, HOME_GIB, advice)
    if (daily := _daily_bytes(settings)) is None or check.state == "bad":
        return check
    days = shutil.disk_usage(_existing(settings.home)).free / max(daily, 1)
    found = f"{check.found}; what was written in the last days is {daily / GIB:.2g} GiB a day, and "
    found += f"the disk lasts for {days:.0f} days" if days < LONG_DAYS else "the disk lasts for years"
    return replace(check, found=found) if days >= SHORT_DAYS else warn(check.name, found, advice)


def _daily_bytes(settings: Settings) -> float | None:
    """Return what was written in the home a day, in bytes, of what is still there; None where its store is not older than a day."""
    named = settings.store / "VOLUME.json"
    now, written, seen = time.time(), 0, set[int]()
    days = min((now - named.stat().st_mtime) / DAY_SECONDS, LATELY_DAYS) if named.is_file() else 0.0
    if days < 1:
        return None
    for folder, _, names in os.walk(settings.home):
        for name in names:
            with suppress(OSError):  # it is gone, or a link to what is
                found = os.lstat(f"{folder}/{name}")
                if found.st_mtime > now - LATELY_DAYS * DAY_SECONDS and found.st_ino not in seen:
                    seen.add(found.st_ino)
                    written += found.st_blocks * 512
    return written / days


def disk(name: str, folder: Path, wanted_gib: float, advice: str) -> Check:
    """Check the room for a folder, which need not be there yet. :param wanted_gib: what is comfortable."""
    there = _existing(folder)
    free = shutil.disk_usage(there).free / GIB
    found = f"{free:.1f} GiB free at {folder}"
    if not os.access(there, os.W_OK):
        return bad(name, f"{there} cannot be written", advice)
    if free < wanted_gib / 4:
        return bad(name, found, advice)
    if free < wanted_gib:
        return warn(name, found, f"{wanted_gib:g} GiB is comfortable: {advice}")
    return ok(name, found)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _file_system(settings: Settings) -> Check:
    kind = kind_of(_existing(settings.home), Path("/proc/self/mounts").read_text(errors="replace"))
    if kind in _LOCKLESS:
        return bad(
            "file system",
            f"MUSTER_HOME is on {kind}",
            "set MUSTER_HOME to a local disk: locks and links are unreliable there",
        )
    if kind in ("tmpfs", "ramfs"):
        return warn(
            "file system",
            f"MUSTER_HOME is on {kind}: its versions are gone when the machine starts again",
            "set MUSTER_HOME to a disk, unless it is for a trial",
        )
    if not kind:
        return warn(
            "file system", "the type of MUSTER_HOME's file system is not known", "see that it is a local disk"
        )
    return ok("file system", f"MUSTER_HOME is on {kind}")


def _home_rights(settings: Settings) -> Check:
    try:
        mode = stat.S_IMODE(settings.home.stat().st_mode)
    except FileNotFoundError:
        return ok("rights", "MUSTER_HOME does not exist yet; only its owner will have access")
    if not mode & 0o077:
        return ok("rights", "only its owner has access to MUSTER_HOME")
    return warn(
        "rights",
        f"other users of this machine have access to MUSTER_HOME ({mode:o})",
        f"chmod 700 {settings.home}: those users can read its logs, data and models",
    )


def kind_of(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds `folder`: the deepest mount point above it."""
    best, kind = "", ""
    resolved = str(folder.resolve())
    for line in mounts.splitlines():
        _, point, fs, *_rest = line.split(" ")
        point = point.replace("\\040", " ")
        inside = point == "/" or resolved == point or resolved.startswith(f"{point}/")
        if inside and len(point) >= len(best):
            best, kind = point, fs
    return kind


def _memory(_: Settings) -> Check:
    found = Machine.here().memory_gib
    if found < MEMORY_GIB:
        return warn("memory", f"{found:.1f} GiB", f"the demo wants {MEMORY_GIB:g} GiB")
    return ok("memory", f"{found:.1f} GiB for jobs, {os.cpu_count()} CPUs")


def _limits(_: Settings) -> Check:
    from muster.backends.local.limits import make_cgroup

    cgroup = make_cgroup(f"muster-doctor-{os.getpid()}", 1.0)
    if cgroup is not None:
        cgroup.close()
        return ok("memory limits", "enforced by the kernel (cgroups)")
    return ok("memory limits", "checked by the supervisor: no cgroup can be made here")


def _gpus(_: Settings) -> Check:
    count = len(Machine.here().gpus)
    return ok("GPUs", f"{count} NVIDIA" if count else "none: gangs that ask for some run on CPUs")


def _port(_: Settings) -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return ok("loopback", f"can listen (tried port {listener.getsockname()[1]})")
    except OSError as error:
        return bad(
            "loopback",
            f"cannot listen on 127.0.0.1: {error.strerror}",
            "allow listening on loopback: gangs meet and deployments answer there",
        )


def _store(settings: Settings) -> Check:
    if not settings.store.is_dir():
        return ok("store", f"none yet; it will be made in {settings.home}")
    from muster.volumes.folder import FolderStore

    try:
        report = FolderStore(settings.store).check()
    except MusterError as error:
        return bad("store", error, "muster volumes fsck")
    if not report.clean:
        count = sum(not problem.harmless for problem in report.problems)
        return bad("store", f"{count} problems", "muster volumes fsck names them")
    found = f"{report.versions} versions, {report.files} files, all there"
    if report.problems:
        first, more = report.problems[0], len(report.problems) - 1
        others = f", and {more} more: `muster volumes fsck` lists them" if more else ""
        return warn(
            "store",
            f"{found}; no version is harmed by {first.where}: {first.what}{others}",
            first.advice,
        )
    return ok("store", found)


def _jobs(settings: Settings) -> Check:
    if not settings.store.is_dir():
        return ok("jobs", "none yet")
    from muster.backends.local.runner import LocalRunner
    from muster.volumes.folder import FolderStore

    try:
        store = FolderStore(settings.store)
        recorded = store.ledger.statuses(store.ledger.jobs())
        found = map(LocalRunner(settings, store).look(many=True), recorded)
        unended = [status for status in found if not status.state.ended]
    except MusterError as error:
        return bad("jobs", error, "muster jobs ls")
    kept = {status.job_id for status in recorded if not status.alive and status.reason}  # by a budget
    stray = [status.job_id for status in unended if not status.alive and status.job_id not in kept]
    if stray:
        return warn(
            "jobs",
            f"{len(stray)} without a supervisor: {', '.join(stray[:3])}",
            "run their Dag again to resume them, or cancel each: muster jobs cancel JOB",
        )
    return ok("jobs", f"{len(unended)} running")
