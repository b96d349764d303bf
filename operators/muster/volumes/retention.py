"""The rules of garbage collection: which versions stay, and why; nothing here reads or deletes a file.

The newest versions of every partition stay, pinned and leased versions, and everything that kept
versions were made from.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from muster.core.errors import SpecError
from muster.core.job import DAY_SECONDS
from muster.volumes.base import Version
from muster.volumes.held import CHECKPOINT_DAYS


@dataclass(frozen=True, kw_only=True)
class RetentionRules:
    """What garbage collection keeps.

    :param volumes: delete only versions of these volumes, and nothing that belongs to no volume. Every version of
        another volume stays, and so do all that it was made from. Empty: all volumes.
    :param keep_last: versions of each partition of each volume, and of those without one.
    :param keep_partitions: the partitions of each volume, those whose newest versions are youngest, of which `keep_last` stay; None: all.
    :param partition_days: how long a partition stays after its newest version was written; None: for ever. The youngest
        partition of each volume stays in any case.
    :param job_days: how long an ended job's ledger entry and log are kept.
    :param young_days: newer versions stay: an unfinished run may have passed one to a later task,
        whose job does not exist yet. So do versions that a commit replaced no longer ago, however old they are.
    :param checkpoint_days: how long the checkpoints of a task that did not succeed are kept.
    """

    volumes: Collection[str] = ()
    keep_last: int = 3
    keep_partitions: int | None = None
    partition_days: float | None = None
    job_days: float = 30.0
    young_days: float = 0.0
    checkpoint_days: float = CHECKPOINT_DAYS

    def __post_init__(self) -> None:
        for word in (
            "keep_last",
            "keep_partitions",
            "job_days",
            "young_days",
            "checkpoint_days",
            "partition_days",
        ):
            value, least = getattr(self, word), 0 if word.endswith("_days") else 1
            if value is not None and not value >= least:
                raise SpecError(f"{word} is {value:g}: need {least} or more")


def why_kept(
    live: Mapping[str, Version],
    rules: RetentionRules,
    *,
    damaged: Collection[str] = (),
    used: Mapping[str, float] | None = None,
    replaced: Mapping[str, float],
    leased: Mapping[str, str],
    awaited: Mapping[str, str],
    inputs: Callable[[str], Iterable[str]],
) -> dict[str, str]:
    """Return for each version that stays the reason, by address. Other versions are deleted.

    :param used: when versions were last used again, by address: for gc that is their age. The newest by its number
        stays in any case, since selectors find it.
    :param replaced: when commits retired versions, by address. What was retired by its address is not in it, and goes at once.
    :param leased: holders by the addresses that they read; `awaited`: job ids by the addresses that they
        wait for.
    :param inputs: returns the addresses that a version was made from.
    """
    ages = {address: version.created for address, version in live.items()} | dict(used or {})
    born_before = time.time() - rules.young_days * DAY_SECONDS
    series = _series(version for address, version in live.items() if address not in damaged)
    kept = {
        address: "its volume is not asked for"
        for address, version in live.items()
        if rules.volumes and version.volume not in rules.volumes
    }
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
        version.address: f"one of the last {rules.keep_last}"
        for many in _youngest(series, rules, ages)
        for version in _last(many, rules.keep_last, ages)
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


def outlived(versions: Iterable[Version], rules: RetentionRules) -> list[Version]:
    """Return the versions of partitions of which none stays by its number or age. What is pinned, or retired, is left out."""
    series = _series(versions)
    stay = _youngest(series, rules, {each.address: each.created for many in series.values() for each in many})
    gone = series.keys() - {(many[0].volume, many[0].partition) for many in stay}
    return [version for key in sorted(gone, key=str) for version in series[key] if not version.pins]


def _series(versions: Iterable[Version]) -> Mapping[tuple[str, str | None], list[Version]]:
    """The versions of each partition of each volume, and of those without one, but for retired ones."""
    series: dict[tuple[str, str | None], list[Version]] = defaultdict(list)
    for version in versions:
        if version.retired is None:
            series[version.volume, version.partition].append(version)
    return series


def _youngest(
    series: Mapping[tuple[str, str | None], list[Version]], rules: RetentionRules, ages: Mapping[str, float]
) -> Iterator[list[Version]]:
    """Yield the versions of each partition of which some stay, and those without a partition."""
    seen, count = Counter[str](), rules.keep_partitions
    days = math.inf if rules.partition_days is None else rules.partition_days
    written_after = time.time() - days * DAY_SECONDS
    for (volume, partition), many in sorted(
        series.items(), key=lambda each: ages[each[1][-1].address], reverse=True
    ):
        seen[volume] += partition is not None
        old = ages[many[-1].address] < written_after and seen[volume] > 1
        if partition is None or not (old or (count is not None and seen[volume] > count)):
            yield many


def _last(versions: list[Version], count: int, ages: Mapping[str, float]) -> list[Version]:
    """The last versions of one partition, by their ages; the newest by its number is one of them."""
    newest = versions[-1]
    rest = sorted(versions[:-1], key=lambda version: (ages[version.address], version.number))
    return [*rest[max(len(rest) - count + 1, 0) :], newest]
