"""Tells a full disk from an author's mistake, and says which disk is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from muster.core.replica import Replica
from muster.core.room import CLAIM, Room, make_room
from muster.core.verdict import Cause
from muster.worker.faults import WorkerFault

IN_POD = "MUSTER_STORE_URL"

_SHARED = "/dev/shm"  # noqa: S108 - where ranks share tensors
_SHARED_DISK = f"shared memory, {_SHARED},"
_SHARED_ADVICE = f"delete what no process uses in {_SHARED}, let a DataLoader have fewer workers, or make it larger; then run again"
_NOT_BYTES = 1 << 20
_SAID = ("No space left on device", "Disk quota exceeded")
# Errors of libraries that do not say why a write failed: torch.save, numpy's tofile.
_WRITES = ("OSError", "RuntimeError")


class Disks:
    """The disks that one replica writes to.

    :param claim: whether its outputs and checkpoints lie on a cluster's claim.
    """

    def __init__(self, replica: Replica, *, claim: bool) -> None:
        self._replica = replica
        self._claim = CLAIM if claim else ""

    def blamed(self, fault: WorkerFault) -> WorkerFault:
        """Return the fault, changed to that of a full disk where a disk is full."""
        if fault.cause is not Cause.USER_ERROR:
            return fault
        fullest = self.fullest()
        said = any(text in fault.message for text in _SAID)
        full = fullest is not None and fullest.free_bytes < _NOT_BYTES
        if not (said or (full and fault.message.startswith(_WRITES))):
            return fault
        return replace(fault, cause=Cause.DISK_FULL, message=self.told(fault.message), advice=self.advice)

    @property
    def advice(self) -> str:
        """How to make room."""
        fullest = self.fullest()
        if fullest is not None and fullest.disk == _SHARED_DISK:
            return _SHARED_ADVICE
        return make_room(self._replica.checkpoints)

    def told(self, message: str) -> str:
        """Add the free space of the fullest disk to a message."""
        fullest = self.fullest()
        return message if fullest is None else f"{message}: {fullest}"

    def fullest(self) -> Room | None:
        """The disk with the least room; of several equally full ones, the disk of the outputs."""
        return min(self.rooms(), key=lambda room: (room.files_left != 0, room.free_bytes), default=None)

    def rooms(self) -> Iterator[Room]:
        """The room of each disk now."""
        named = dict.fromkeys((*self._replica.staging.values(), self._replica.checkpoints), self._claim)
        named |= {self._replica.scratch: "", _SHARED: _SHARED_DISK}
        for path, disk in named.items():
            with suppress(OSError):  # a disk that cannot be measured is not the full one
                room = Room.of(path, disk=disk)
                # Some file systems report no size. Shared memory is usually small, and counts only when it
                # is full.
                if room.total_bytes and (path != _SHARED or room.free_bytes < _NOT_BYTES):
                    yield room
