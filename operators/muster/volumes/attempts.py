"""The attempts of a job: their staging folders, their seals, and which one is current."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from muster.core import wire
from muster.core.address import Address
from muster.core.data import CHECKPOINTS
from muster.core.errors import Conflict, NotFound, SpecError, StoreError
from muster.core.replica import PartManifest
from muster.core.status import JobState
from muster.volumes.base import Saved, Staging
from muster.volumes.commit_records import committed
from muster.volumes.durability import (
    is_free,
    locked,
    read_whole,
    rename,
    translated,
    write_whole,
)
from muster.volumes.handing_over import KEPT, all_gone, hand_over, move_checkpoints, note_all_gone
from muster.volumes.layout import Layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.tree import copy_tree, held_files_of, holds_files, remove, unlock

SETTLED_SECONDS = 60.0


@dataclass(frozen=True)
class FolderAttempts:
    """The staging folders of all jobs of one store."""

    layout: Layout
    ledger: FolderLedger

    @contextmanager
    def alone(self, job_id: str) -> Iterator[None]:
        """Hold the job's lock: one process at a time stages or commits it, and gc leaves it alone."""
        with ExitStack() as held:
            while not self._taken(job_id, held):
                held.close()
            yield

    def _taken(self, job_id: str, held: ExitStack) -> bool:
        """Wait for the job's lock; False where its holder deleted it with the whole staging folder."""
        lock = self.layout.staging(job_id) / "lock"
        lock.parent.mkdir(exist_ok=True)
        try:
            held.enter_context(locked(lock))
        except FileNotFoundError:
            return False
        return lock.exists()

    def idle(self, job_id: str) -> bool:
        """Whether no process stages or commits the job now, or is about to stage a new one."""
        lock = self.layout.staging(job_id) / "lock"
        try:
            quiet = time.time() - lock.stat().st_mtime > SETTLED_SECONDS or self.layout.job(job_id).is_dir()
        except FileNotFoundError:
            return not lock.parent.is_dir()
        return quiet and is_free(lock)

    def staging(self, job_id: str) -> Staging | None:
        """The current attempt's staging, or None before the first."""
        try:
            attempt = int(read_whole(self.layout.job(job_id) / "attempt"))
        except FileNotFoundError:
            self.ledger.check(job_id)
            return None
        staging, new = self._of(job_id, attempt), self._of(job_id, attempt + 1)
        if not staging.root.exists() and new.root.exists():
            return replace(staging, root=new.root)  # it is being handed over, or a crash came meanwhile
        return staging

    def _of(self, job_id: str, attempt: int) -> Staging:
        return Staging(job_id=job_id, attempt=attempt, root=self.layout.staging(job_id) / str(attempt))

    def stage(self, job_id: str, *, replicas: int | None = None) -> Staging:
        """Begin a new attempt; every earlier one is fenced.

        :param replicas: of an elastic gang; without it, those of the attempt before.
        """
        self.ledger.check(job_id)
        with translated(f"stage job {job_id}"), self.alone(job_id):
            return self.begin(job_id, replicas=replicas)

    def begin(self, job_id: str, *, copy: bool = True, replicas: int | None = None) -> Staging:
        """Create the next attempt's staging and fence the one before; call it within :meth:`alone`.

        If every process of the one before is known to be gone, its folder becomes that of the next.

        :param copy: otherwise copy its checkpoints.
        :param replicas: of an elastic gang; without it, those of the attempt before.
        :raises Conflict: not all are known to be gone, and `copy` is false.
        """
        self._refuse_settled(job_id)
        before = self._put_back(job_id)
        spec = self.ledger.spec(job_id)
        if before is not None and replicas is None:
            replicas = before.as_begun(spec).replicas
        if before is None:
            new = self._of(job_id, 1)
            left = self._begin_first(new)
        else:
            new = self._of(job_id, before.attempt + 1)
            left = self._begin_next(before, new, copy=copy)
        (new.root / "sealed").mkdir(exist_ok=True)
        if spec.elastic:
            write_whole(new.replicas, str(replicas or spec.replicas), durable=False)
        write_whole(self.layout.job(job_id) / "attempt", str(new.attempt))
        for path in left:
            self.layout.delete(path)
        return new

    def _put_back(self, job_id: str) -> Staging | None:
        """Return the current attempt, under its own name also where a crash interrupted handing it over."""
        staging = self.staging(job_id)
        if staging is None:
            return None
        named = self._of(job_id, staging.attempt)
        if staging != named:
            rename(staging.root, named.root)
        return named

    def _begin_first(self, new: Staging) -> list[Path]:
        """Fill a job's first attempt from the job that it follows; return what is to be deleted once it counts."""
        source = self._followed(new.job_id)
        ended = source is not None and self.ledger.status(source.job_id).state.ended
        if not new.checkpoints.is_dir():  # else they were whole when a crash came
            _make_anew(new.root)
            if source is None or not (ended and self._gone(source) and move_checkpoints(source, new)):
                start = source.checkpoints if source else self._version_to_start_from(new.job_id)
                _fill(self.layout, new, start)
        # its other staged files may still be fetched
        return [source.checkpoints] if source is not None and ended else []

    def _begin_next(self, before: Staging, new: Staging, *, copy: bool) -> list[Path]:
        """Fill an attempt from the one before; return what is to be deleted once it counts."""
        if self._gone(before):
            return hand_over(self.layout, before, new, self.ledger.spec(new.job_id))
        if not copy:
            raise Conflict(
                f"job {new.job_id}: processes of attempt {before.attempt} may live on, and write its checkpoints"
            )
        _make_anew(new.root)  # a crash may have left a part of it
        _fill(self.layout, new, before.checkpoints)
        return [before.root]

    def note_gone(self, job_id: str, *, attempt: int) -> None:
        """See :meth:`muster.volumes.protocols.LocalStore.note_gone`."""
        self.ledger.check(job_id)
        with translated(f"note the end of attempt {attempt} of job {job_id}"), self.alone(job_id):
            staging = self.staging(job_id)
            if staging is not None and staging.attempt == attempt:
                note_all_gone(staging)

    def _gone(self, staging: Staging) -> bool:
        return all_gone(staging, self.ledger.spec(staging.job_id))

    def saved(self, job_id: str) -> Saved | None:
        """See :meth:`muster.volumes.protocols.Attempts.saved`."""
        self.ledger.check(job_id)
        with translated(f"look at the checkpoints of job {job_id}"):
            staging = self.last_saved(job_id)
            if staging is None:
                return None
            found = [entry.stat(follow_symlinks=False) for _, entry in held_files_of(staging.checkpoints)]
        return Saved(
            job_id=staging.job_id,
            files=len(found),
            size_bytes=sum(stat.st_size for stat in found),
            newest=max((stat.st_mtime for stat in found), default=0.0),
        )

    def last_saved(self, job_id: str | None) -> Staging | None:
        """The staging with the checkpoints that a job continues from: its own, or one of a job it follows."""
        return self._saved(job_id, done=False)

    def left(self, job_id: str) -> Staging | None:
        """The same, and also what a trial's job that succeeded has left: nothing goes on from that."""
        return self._saved(job_id, done=True)

    def _saved(self, job_id: str | None, *, done: bool) -> Staging | None:
        seen = set[str]()
        while job_id is not None and job_id not in seen:
            seen.add(job_id)
            try:
                succeeded = self.ledger.status(job_id).state is JobState.SUCCEEDED
                if succeeded and not (done and self.ledger.spec(job_id).origin.is_trial):
                    return None
                staging, follows = self._staging_or_first(job_id), self.ledger.spec(job_id).follows
            except NotFound:  # gc has deleted it, with its checkpoints
                return None
            if _holds_files(staging.checkpoints):
                return staging
            job_id = follows
        return None

    def _staging_or_first(self, job_id: str) -> Staging:
        """The current attempt's staging; before the first that of the first, which a crash may have left filled."""
        return self.staging(job_id) or self._of(job_id, 1)

    def _followed(self, job_id: str) -> Staging | None:
        return self.last_saved(self.ledger.spec(job_id).follows)

    def _version_to_start_from(self, job_id: str) -> Path | None:
        """The folder of the version with which a job fills its checkpoints at first."""
        given = self.ledger.spec(job_id).inputs.get(CHECKPOINTS)
        if given is None:
            return None
        address = Address.parse(given.versions[0].address)
        return self.layout.version(address.volume, int(address.value)) / "data" / given.path

    def beside_checkpoints(self, job_id: str) -> list[Path]:
        """All staged files of a job but its checkpoints: gc deletes these where checkpoints are kept."""
        folder, staging = self.layout.staging(job_id), self._staging_or_first(job_id)
        found = [entry for entry in folder.iterdir() if entry.name != "lock"]
        if staging.root not in found:
            return found
        found.remove(staging.root)
        return found + [entry for entry in staging.root.iterdir() if entry.name not in KEPT]

    def current(self, job_id: str, attempt: int) -> Staging:
        """The staging of `attempt`. :raises Conflict: it is not the current one, or the job has ended."""
        staging = self.staging(job_id)
        if staging is None or staging.attempt != attempt:
            now = "there is none" if staging is None else f"the current one is {staging.attempt}"
            raise Conflict(
                f"job {job_id}: attempt {attempt} cannot be committed, {now}; what a fenced attempt "
                "wrote is left aside"
            )
        state = self.ledger.status(job_id).state
        if state.ended:
            raise Conflict(f"job {job_id} has ended ({state.value}): its outputs are not committed any more")
        return staging

    def sealed(self, staging: Staging) -> tuple[PartManifest, ...] | None:
        """The part-manifests of all replicas, or None where one is missing.

        :raises StoreError: a seal cannot be read, or belongs to another replica or attempt.
        """
        parts = []
        for role in staging.as_begun(self.ledger.spec(staging.job_id)).roles:
            for index in range(role.replicas):
                try:
                    text = staging.sealed(role.name, index).read_bytes()
                except FileNotFoundError:
                    return None
                parts.append(_part(text, staging, role.name, index))
        return tuple(parts)

    def sealed_at(self, staging: Staging) -> float:
        """Unix time at which the last replica sealed: the same on every machine that commits the attempt."""
        return max(seal.stat().st_mtime for seal in staging.seals(self.ledger.spec(staging.job_id)))

    def clear(self, staging: Staging) -> None:
        """Delete a committed attempt's files, but keep its seals, and how many they are: they show that it must not run again.

        A trial's checkpoints stay, too, until its search has ended.
        """
        kept = {"sealed", staging.replicas.name}
        if self.ledger.spec(staging.job_id).origin.is_trial:
            kept.add(staging.checkpoints.name)
        for entry in list(staging.root.iterdir()):
            if entry.name not in kept:
                self.layout.delete(entry)

    def _refuse_settled(self, job_id: str) -> None:
        staging = self.staging(job_id)
        if committed(self.layout, job_id) is not None or (staging and self.sealed(staging) is not None):
            raise Conflict(f"job {job_id} has sealed: it is committed, never run again")
        state = self.ledger.status(job_id).state
        if state.ended:
            raise Conflict(f"job {job_id} has ended ({state.value}): submit it under a new job_id")


def _holds_files(checkpoints: Path) -> bool:
    with suppress(PermissionError):  # it only refreshes listings on NFS
        unlock(checkpoints)
    return holds_files(checkpoints)


def _make_anew(folder: Path) -> None:
    remove(folder)
    folder.mkdir(parents=True)


def _fill(layout: Layout, new: Staging, before: Path | None) -> None:
    """Copy the checkpoints of the attempt before, whose late writes change nothing here, or those of a version."""
    if before is None or not before.is_dir():
        new.checkpoints.mkdir()
        return
    part = new.root / "filling"
    if before.name == CHECKPOINTS:
        with suppress(PermissionError):  # it only refreshes listings on NFS, and must not stop a restart
            unlock(before)
    copy_tree(before, part)
    if any(part.iterdir()):  # the originals are deleted next, and a power cut must leave one of the two
        layout.sync(part)
    rename(part, new.checkpoints)


def _part(text: bytes, staging: Staging, role: str, index: int) -> PartManifest:
    try:
        part = wire.loads(PartManifest, text)
    except SpecError as error:
        raise StoreError(f"the seal of replica {role}-{index} cannot be read: {error}") from error
    if other := other_seal(part, staging.job_id, staging.attempt, role, index):
        raise StoreError(other)
    return part


def other_seal(part: PartManifest, job_id: str, attempt: int, role: str, index: int) -> str:
    """Say that a seal is another replica's, or of another attempt; empty where it is that of this one."""
    if (part.job_id, part.attempt, part.role, part.index) == (job_id, attempt, role, index):
        return ""
    return (
        f"the seal of replica {role}-{index}, attempt {attempt} of job {job_id} is that "
        f"of replica {part.role}-{part.index}, attempt {part.attempt} of job {part.job_id}"
    )
