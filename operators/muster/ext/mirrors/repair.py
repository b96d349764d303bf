"""Replaces versions that a check found damaged by those of a mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from muster.core.address import Address, Select
from muster.core.errors import Conflict, Corrupt, MusterError, NotFound
from muster.ext.mirrors.base import Home, Source, check_mirror
from muster.ext.mirrors.scan import scan
from muster.volumes.commit_records import Place
from muster.volumes.fsck import Report
from muster.volumes.layout import Layout, open_layout, rename_store


@dataclass(kw_only=True)
class Repaired:
    """What a repair has done. `left`: what could not be repaired, each with the reason."""

    versions: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def repair(
    target: Home, source: Source, report: Report, *, progress: Callable[[str], None] = lambda _: None
) -> Repaired:
    """Bring the damaged versions of a report from a mirror: the same bytes under the same digests.

    Files that are not damaged stay. :raises Conflict: it is another store's mirror.
    """
    check_mirror(source, target)
    done = Repaired()
    damaged = sorted(_damaged(report).items())
    for index, (address, place) in enumerate(damaged):
        progress(f"{index}/{len(damaged)} {address}")
        try:
            documents = source.documents(place)
            if documents.holding.deleted:
                raise NotFound(f"gc has deleted it in {source.where}, too")
            target.receive(documents, source, base=documents, tell=lambda _: None)
            target.publish([documents])
            if wrong := target.verify(documents):
                raise Corrupt("; ".join(wrong[:3]))
        except MusterError as error:
            done.left[address] = str(error)
        else:
            done.versions.append(address)
    return done


def name_again(root: Path, source: Source) -> bool:
    """Write VOLUME.json of a store that has lost it, or has it damaged, after a mirror; return whether it was so.

    :raises Conflict: the mirror has none of the store's versions, or others.
    """
    try:
        open_layout(root)
        return False
    except (NotFound, Corrupt):
        if not (root / "v").is_dir() or not (root / "commits").is_dir():
            raise  # no store at all
    here = scan(Layout(root, "", links=False, syncfs=False), ())
    there = source.holdings()
    both = [(here[place].digest, there[place].digest) for place in here.keys() & there.keys()]
    if not any(mine and mine == theirs for mine, theirs in both):
        raise Conflict(f"{source.where} holds none of the versions in {root}: name the mirror of this store")
    if any(mine and theirs and mine != theirs for mine, theirs in both):
        raise Conflict(f"{source.where} holds other versions than {root}: name the mirror of this store")
    rename_store(root, source.owner())
    return True


def _damaged(report: Report) -> dict[str, Place]:
    """Return the versions of a report that are damaged."""
    found = dict[str, Place]()
    for problem in report.problems:
        if (problem.retired or not problem.harmless) and problem.where.startswith("volume://"):
            wanted = Address.parse(problem.where)
            if wanted.select is Select.NUMBER:
                found[problem.where] = (wanted.volume, int(wanted.value))
    return found
