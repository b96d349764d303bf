"""Replaces versions that a check found damaged by those of a mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from muster.core.address import Address, Select
from muster.core.errors import Corrupt, MusterError, NotFound
from muster.volumes.commit_records import Place
from muster.volumes.fsck import Report
from muster.volumes.mirrors.base import Home, Source, check_mirror


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
    for address, place in sorted(_damaged(report).items()):
        progress(address)
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


def _damaged(report: Report) -> dict[str, Place]:
    """Return the versions of a report that are damaged."""
    found = dict[str, Place]()
    for problem in report.problems:
        if (problem.retired or not problem.harmless) and problem.where.startswith("volume://"):
            wanted = Address.parse(problem.where)
            if wanted.select is Select.NUMBER:
                found[problem.where] = (wanted.volume, int(wanted.value))
    return found
