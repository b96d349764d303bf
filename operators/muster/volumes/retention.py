"""Garbage collection: which versions and files may be deleted, why the rest stays, and deleting them.

It keeps the newest versions of every partition, pinned and leased versions, and everything that kept
versions were made from. A deleted version leaves its MANIFEST, its RECORD and a tombstone: its
number is never given out again, and versions made from it can still be traced.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.room import Room
from muster.volumes import damage, trash
from muster.volumes.base import Collected, Plan, Record, UpkeepKind, Version
from muster.volumes.commit_records import holder, is_committed, replaced_at, uncommitted
from muster.volumes.durability import locked, sync_folder, translated, write_whole
from muster.volumes.held import (
    CHECKPOINT_DAYS,
    DAY_SECONDS,
    given_up,
    has_ended,
    is_left_fetchable,
    leftovers,
    named,
    resumable,
)
from muster.volumes.makings import last_used, tidy
from muster.volumes.series import keep_series, sweep_series
from muster.volumes.sharing import KNOWN
from muster.volumes.upkeep import note

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

HOUR_SECONDS = 3_600.0


def plan(
    store: FolderStore,
    *,
    volumes: Collection[str] = (),
    keep_last: int = 3,
    keep_partitions: int | None = None,
    job_days: float = 30.0,
    young_days: float = 0.0,
    checkpoint_days: float = CHECKPOINT_DAYS,
) -> Plan:
    """Return what :func:`collect` would delete now.

    :param volumes: delete only versions of these volumes, and nothing that belongs to no volume; `kept`
        lists only their versions. Every version of another volume stays, and so do all that it was made from.
    :param keep_last: versions of each partition of each volume, and of those without one.
    :param keep_partitions: the partitions of each volume, those whose newest versions are youngest, of which `keep_last` stay; None: all.
    :param job_days: how long an ended job's ledger entry and log are kept.
    :param young_days: newer versions stay: an unfinished run may have passed one to a later task,
        whose job does not exist yet. So do versions that a commit replaced no longer ago, however old they are.
    :param checkpoint_days: how long the checkpoints of a task that did not succeed are kept.
    :raises SpecError: `keep_last` or `keep_partitions` is below 1, `job_days`, `young_days` or `checkpoint_days` below 0.
    :raises NotFound: one of `volumes` does not exist.
    """
    check(
        keep_last, keep_partitions, job_days=job_days, young_days=young_days, checkpoint_days=checkpoint_days
    )
    known = store.volumes()
    _check_volumes(volumes, known)
    damaged = {version.address: version for volume in known for version in store.catalog.damaged(volume)}
    live = {version.address: version for volume in known for version in store.versions(volume)} | damaged
    used = {address: last_used(store.layout, version) for address, version in live.items()}
    spared = [version.address for version in live.values() if volumes and version.volume not in volumes]
    born_before = time.time() - young_days * DAY_SECONDS
    kept = why_kept(
        live,
        damaged=damaged.keys(),
        spared=spared,
        keep_last=keep_last,
        keep_partitions=keep_partitions,
        born_before=born_before,
        used=used,
        replaced=dict(_replaced(store, live.values())),
        leased=leased(store),
        awaited=dict(_awaited(store)),
        inputs=lambda address: _inputs(store, address),
    )
    gone = tuple(version for address, version in live.items() if address not in kept)
    if volumes:
        return Plan(versions=gone, kept={a: why for a, why in kept.items() if live[a].volume in volumes})
    jobs = tuple(_old_jobs(store, time.time() - job_days * DAY_SECONDS))
    stay = resumable(store, days=checkpoint_days)
    return Plan(
        versions=gone,
        kept=kept,
        staging=tuple(leftovers(store, but=stay)),
        resumable=stay,
        torn=tuple(str(folder) for folder, job_id in uncommitted(store.layout) if given_up(store, job_id)),
        code=tuple(_unused_code(store, kept, set(jobs))),
        jobs=jobs,
    )


def _check_volumes(volumes: Iterable[str], known: Collection[str]) -> None:
    for name in volumes:
        if name not in known:
            there = ", ".join(known) or "none yet"
            raise NotFound(f"no volume {name!r:.120}: name a whole volume, without @ and version ({there})")


def check(
    keep_last: int, keep_partitions: int | None, *, job_days: float, young_days: float, checkpoint_days: float
) -> None:
    """Refuse wrong arguments. :raises SpecError: names the values and what is needed."""
    partitions = "" if keep_partitions is None else f", keep_partitions {keep_partitions}"
    if min(keep_last, 1 if keep_partitions is None else keep_partitions) < 1 or (
        min(job_days, young_days, checkpoint_days) < 0
    ):
        raise SpecError(
            f"keep_last is {keep_last}{partitions}, job_days {job_days:g}, young_days {young_days:g}, "
            f"checkpoint_days {checkpoint_days:g}: need 1 or more, and 0 or more"
        )


def collect(
    store: FolderStore,
    *,
    volumes: Collection[str] = (),
    keep_last: int = 3,
    keep_partitions: int | None = None,
    job_days: float = 30.0,
    young_days: float = 0.0,
    checkpoint_days: float = CHECKPOINT_DAYS,
    now: bool = False,
    grace_seconds: float = HOUR_SECONDS,
) -> Collected:
    """Delete what :func:`plan` names, and unlink files that have been in the trash for `grace_seconds`.

    A reader without a lease has that long to finish, unless the disk is nearly full: then files are unlinked
    at once, as with `now`. New leases and pins wait while this decides, so none comes too late.

    :raises Corrupt: fsck would find damage in versions that are not retired; nothing is deleted.
    """
    failed: OSError | None = None
    with translated("collect garbage"):
        damage.refuse(store)
        with locked(store.layout.root / "gc.lock"):
            decided = plan(
                store,
                volumes=volumes,
                keep_last=keep_last,
                keep_partitions=keep_partitions,
                job_days=job_days,
                young_days=young_days,
                checkpoint_days=checkpoint_days,
            )
            scarce, buried = now or Room.of(store.layout.root).scarce, list[Path]()
            try:
                for version in decided.versions:
                    buried += bury(store, version)
                for digest in decided.code:
                    store.layout.discard(store.layout.code(digest))
            except OSError as error:  # a full disk: a tombstone needs room, which is made below
                failed = error
        for folder in decided.torn:
            with locked(
                store.layout.root / "gc.lock"
            ):  # a mirror makes versions visible with the lock shared
                _empty(store, Path(folder))
        staged = sum(trash.delete(store.layout, store.layout.staging(job_id)) for job_id in decided.staging)
        staged += sum(
            trash.delete(store.layout, path)
            for job_id in decided.resumable
            if not is_left_fetchable(store, job_id)
            for path in store.attempts.beside_checkpoints(job_id)
        )
        for reader in named(store.layout.root / "leases"):
            if has_ended(store, reader.name):
                store.release(reader.name)
        for job_id in decided.jobs:
            keep_series(store.layout, job_id)
            store.layout.discard(store.layout.job(job_id))
        sweep_series(store.layout)
        tidy(store.layout)
        store.searching.tidy(days=job_days)
        freed_bytes = staged + (trash.remove_all(store.layout, buried) if scarce else 0)
        freed_bytes += trash.empty(store.layout, before=time.time() - (0.0 if now else grace_seconds))
        if failed is not None:
            raise failed
        note(store.layout, UpkeepKind.GC)
        return Collected(plan=decided, freed_bytes=freed_bytes, at_once=scarce)


def leased(store: FolderStore) -> dict[str, str]:
    """Return every leased address with one holder; leases of ended jobs do not count."""
    found: dict[str, str] = {}
    for reader in named(store.layout.root / "leases"):
        with suppress(FileNotFoundError):  # released meanwhile
            if not has_ended(store, reader.name):
                found |= {
                    f"volume://{lease.name.replace(':', '/')}": reader.name for lease in reader.iterdir()
                }
    return found


def why_kept(
    live: Mapping[str, Version],
    *,
    damaged: Collection[str] = (),
    spared: Iterable[str] = (),
    keep_last: int,
    keep_partitions: int | None = None,
    born_before: float,
    used: Mapping[str, float] | None = None,
    replaced: Mapping[str, float],
    leased: Mapping[str, str],
    awaited: Mapping[str, str],
    inputs: Callable[[str], Iterable[str]],
) -> dict[str, str]:
    """Return for each version that stays the reason, by address. Other versions are deleted.

    :param spared: versions that stay since their volumes are not to be collected.
    :param used: when versions were last used again, by address: for gc that is their age. The newest by its number
        stays in any case, since selectors find it.
    :param replaced: when commits retired versions, by address. What was retired by its address is not in it, and goes at once.
    :param leased: holders by the addresses that they read; `awaited`: job ids by the addresses that they
        wait for.
    :param inputs: returns the addresses that a version was made from.
    """
    ages = {address: version.created for address, version in live.items()} | dict(used or {})
    series: dict[tuple[str, str | None], list[Version]] = defaultdict(list)
    for address, version in live.items():
        if version.retired is None and address not in damaged:
            series[version.volume, version.partition].append(version)
    kept = dict.fromkeys(spared, "its volume is not asked for")
    kept |= {
        address: "damaged: retire it, and it goes" for address in damaged if live[address].retired is None
    }
    kept |= {
        version.address: "young: a run that goes on may name it"
        for many in series.values()
        for version in many
        if ages[version.address] > born_before
    }
    kept |= {
        address: "replaced lately: a run that goes on may name it"
        for address, at in replaced.items()
        if address not in damaged and max(at, ages[address]) > born_before
    }
    kept |= {
        version.address: f"one of the last {keep_last}"
        for many in _youngest(series, keep_partitions, ages)
        for version in _last(many, keep_last, ages)
    }
    kept |= {address: f"leased by {holder}" for address, holder in leased.items() if address in live}
    kept |= {address: f"{job_id} waits for it" for address, job_id in awaited.items() if address in live}
    kept |= {
        address: f"pinned: {', '.join(version.pins)}" for address, version in live.items() if version.pins
    }
    waiting = list(kept)
    while waiting:
        address = waiting.pop()
        for pinned in inputs(address):
            if pinned in live and pinned not in kept:
                kept[pinned] = f"{address} was made from it"
                waiting.append(pinned)
    return kept


def _youngest(
    series: Mapping[tuple[str, str | None], list[Version]], count: int | None, ages: Mapping[str, float]
) -> Iterator[list[Version]]:
    """Yield the versions of each partition of which some stay, and those without a partition."""
    seen = Counter[str]()
    for (volume, partition), many in sorted(
        series.items(), key=lambda each: ages[each[1][-1].address], reverse=True
    ):
        seen[volume] += partition is not None
        if partition is None or count is None or seen[volume] <= count:
            yield many


def _last(versions: list[Version], count: int, ages: Mapping[str, float]) -> list[Version]:
    """The last versions of one partition, by their ages; the newest by its number is one of them."""
    newest = versions[-1]
    rest = sorted(versions[:-1], key=lambda version: (ages[version.address], version.number))
    return [*rest[max(len(rest) - count + 1, 0) :], newest]


def _replaced(store: FolderStore, live: Iterable[Version]) -> Iterator[tuple[str, float]]:
    """Yield the retired versions that a commit retired, with the time."""
    for version in live:
        if version.retired is not None:
            at = replaced_at(store.layout, store.layout.version(version.volume, version.number))
            if at is not None:
                yield version.address, at


def _awaited(store: FolderStore) -> Iterator[tuple[str, str]]:
    """Yield the inputs of jobs that have not ended, including queued ones, which lease nothing yet."""
    for job_id in store.ledger.jobs():
        if not has_ended(store, job_id):
            for given in store.ledger.spec(job_id).inputs.values():
                for pinned in given.versions:
                    yield pinned.address, job_id


def _inputs(store: FolderStore, address: str) -> Iterator[str]:
    record = _record(store, address)
    for versions in record.inputs.values() if record else ():
        for pinned in versions:
            yield pinned.address


def _record(store: FolderStore, address: str) -> Record | None:
    """Return a version's record; None where it is damaged and cannot be read."""
    try:
        return store.record(address)
    except Corrupt:
        return None


def _old_jobs(store: FolderStore, before: float) -> Iterator[str]:
    for job_id in store.ledger.jobs():
        status = store.ledger.status(job_id)
        if status.state.ended and (status.ended or status.submitted) < before:
            yield job_id


def _unused_code(store: FolderStore, kept: Iterable[str], going: set[str]) -> Iterator[str]:
    """Yield snapshots of code and images' locks that no kept version and no job uses."""
    records = (_record(store, address) for address in kept)
    users: list[Record | JobSpec] = [record for record in records if record]
    users += [store.ledger.spec(job_id) for job_id in store.ledger.jobs() if job_id not in going]
    used = {digest for user in users for digest in (user.code, user.image_digest)}
    for folder in sorted((store.layout.root / "code").iterdir()):
        fresh = folder.stat().st_ctime > time.time() - DAY_SECONDS  # its job may not be entered yet
        if f"b3:{folder.name}" not in used and not fresh:
            yield f"b3:{folder.name}"


def bury(store: FolderStore, version: Version) -> list[Path]:
    """Delete a version's data; return its places in the trash, if any."""
    folder = store.layout.version(version.volume, version.number)
    (folder / KNOWN).unlink(missing_ok=True)  # first: on a full disk it makes room for the tombstone
    write_whole(folder / "TOMBSTONE", json.dumps({"at": time.time(), "digest": version.digest}))
    taken = store.layout.discard(folder / "data")
    sync_folder(folder)
    return [taken] if taken is not None else []


def _empty(store: FolderStore, folder: Path) -> None:
    """Delete the files of an abandoned commit; the folder stays, so its number is never reused.

    Do nothing if it was committed meanwhile, or a commit is in progress again.
    """
    job_id = holder(folder)
    if job_id is None or not store.attempts.idle(job_id):
        return
    volume, number = folder.parent.relative_to(store.layout.root / "v").as_posix(), int(folder.name)
    with store.attempts.alone(job_id):
        if holder(folder) == job_id and not is_committed(store.layout, volume, number):
            for entry in folder.iterdir():
                store.layout.discard(entry)
            store.layout.delete(store.layout.staging(job_id))
