"""Reaches a rank on one machine: a command with the variables and the folder of its process, and the machine's ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

from muster.backends.local.places import Places
from muster.backends.local.processes import MARK_VARIABLE, ranks, variables
from muster.backends.place import Place, RankSession
from muster.core.errors import Forbidden, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.replica import LOOPBACK
from muster.core.settings import Settings


def open_session(
    _: Place, __: JobSpec, job_id: str, rank: int, command: Sequence[str], port: int
) -> RankSession:
    """Find a rank's process. :raises Forbidden: another user's. :raises NotFound: that rank does not run now."""
    places, me = Places(Settings.load().home), os.getuid()
    folder = places.job(job_id).root
    if folder.is_dir() and (owner := folder.stat().st_uid) != me:
        raise Forbidden(f"job {job_id} is of user {owner}, and this is user {me}: ask user {owner} to do it")
    for pid in ranks(places.mark(job_id)):
        pairs = (os.fsdecode(pair).partition("=") for pair in variables(pid))
        found = {name: text for name, _, text in pairs if name}
        if found.get("MUSTER_RANK") == str(rank):
            del found[MARK_VARIABLE]  # what a person starts is no process of the job, and none of its ranks
            run = partial(_become, f"/proc/{pid}/cwd", found, command)
            return RankSession(f"pid {pid}", run, partial(socket.create_connection, (LOOPBACK, port)))
    raise NotFound(
        f"rank {rank} of job {job_id} does not run now: `muster jobs show {job_id}` lists what does"
    )


def _become(folder: str, environment: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    try:
        os.chdir(folder)
        os.execvpe(command[0], list(command), environment)  # noqa: S606 what the person typed
    except OSError as error:
        where = f"the job's PATH, {environment.get('PATH', os.defpath)}"
        raise SpecError(
            f"{command[0]!r:.200} cannot be run ({error.strerror}): name a program of {where}"
        ) from error
