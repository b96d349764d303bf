"""Hands checkpoints on without copying them, where every process of the attempt before is known to be gone.

Who is gone stands in the attempt's folder. On one machine the supervisor knows it of all, in a pod its first process of
its replica::

    staging/<job>/<attempt>/gone/<attempt>/all
                                           <role>-<index>.json

The number is there twice: a folder that has become the next attempt's says nothing about the processes of that one.
Without these notes checkpoints are copied, since a process that lives on may write them.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from muster.core.holding import held
from muster.core.job import JobSpec
from muster.volumes.base import Staging
from muster.volumes.durability import rename, sync_folder, write_whole
from muster.volumes.layout import Layout
from muster.volumes.tree import unlock

GANG = "gang"
"""The folder of an attempt that its replicas share with each other; the store reads nothing there."""

PODS = "pods"
"""The folder of an attempt that says which pod is which replica."""

_CHECKPOINTS, _GONE, _ALL = "checkpoints", "gone", "all"

KEPT = frozenset({_CHECKPOINTS, _GONE})
"""What stays in the folder of an attempt whose checkpoints may be of use."""


def note_all_gone(staging: Staging) -> None:
    """Note that no process of an attempt is left."""
    _write(staging, _ALL, b"")


def note_gone(staging: Staging, replica: str, said: bytes, *, replace: bool = False) -> None:
    """Note that no process of one replica is left, and what it said at last; the first word stays.

    :param replace: this one takes the first one's place.
    """
    if replace or said_by(staging, replica) is None:
        _write(staging, f"{replica}.json", said)


def said_by(staging: Staging, replica: str) -> bytes | None:
    """Return what a replica said when it was gone; None where it is not known to be."""
    with suppress(FileNotFoundError):
        return (staging.gone / f"{replica}.json").read_bytes()
    return None


def all_gone(staging: Staging, spec: JobSpec) -> bool:
    """Whether every process of an attempt is known to be gone."""
    if (staging.gone / _ALL).exists():
        return True
    return all((staging.gone / f"{replica}.json").exists() for replica in replicas_of(staging.as_begun(spec)))


def replicas_of(spec: JobSpec) -> list[str]:
    """Return the names of a job's replicas."""
    return [f"{role.name}-{index}" for role in spec.roles for index in range(role.replicas)]


def hand_over(layout: Layout, before: Staging, new: Staging, spec: JobSpec) -> list[Path]:
    """Make the folder of an attempt that of the next, with its checkpoints and nothing else that it wrote.

    It is renamed, and the folders in it that pods have mounted stay what they are: the same pods can go on.

    :return: what is to be deleted once the next attempt counts, which takes as long as it is big.
    """
    rename(before.root, new.root)
    sync_folder(new.root.parent)
    taken = _emptied(layout, new.root, mounted={GANG, *replicas_of(spec)})
    return [*taken, dataclasses.replace(before, root=new.root).gone]


def move_checkpoints(before: Staging, new: Staging) -> bool:
    """Move the checkpoints of a job to the job that follows it; False where no folder can be moved to another (EXDEV)."""
    try:
        rename(before.checkpoints, new.checkpoints)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    sync_folder(new.root)
    sync_folder(before.root)
    return True


def _emptied(layout: Layout, root: Path, *, mounted: Collection[str]) -> list[Path]:
    taken: list[Path | None] = []
    for entry in list(os.scandir(root)):
        path = root / entry.name
        if entry.name in KEPT or entry.name == PODS:  # the same pods may go on
            continue
        if entry.name in mounted and entry.is_dir(follow_symlinks=False):
            taken += _discarded(layout, path)
        else:
            taken.append(layout.discard(path))
    return [path for path in taken if path is not None]


def _discarded(layout: Layout, folder: Path) -> list[Path | None]:
    """Discard all that is in a folder, which its job could replace by a link, had it a process left."""
    # What other machines wrote is listed late on NFS; and a folder that moves must be writable.
    unlock(folder)
    with held(folder) as here:
        return [layout.discard(Path(here, name)) for name in os.listdir(here)]  # noqa: PTH208 - names


def _write(staging: Staging, name: str, said: bytes) -> None:
    if not staging.checkpoints.is_dir():
        return  # it was committed, and has nothing to hand over
    staging.gone.mkdir(parents=True, exist_ok=True)
    write_whole(
        staging.gone / name, said, durable=False
    )  # without it, after a power cut, checkpoints are copied
