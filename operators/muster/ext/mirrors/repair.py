"""Replaces versions that a check found damaged by those of a mirror."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from muster.cli.command import store_is_here
from muster.cli.progress import progress
from muster.cli.screen import note, safe
from muster.core.address import Address, Select
from muster.core.errors import Conflict, Corrupt, MusterError, NotFound
from muster.core.settings import Settings
from muster.ext.mirrors.base import Home, check_mirror
from muster.ext.mirrors.opening import home_of, open_home
from muster.ext.mirrors.scan import scan
from muster.volumes.commit_records import Place
from muster.volumes.fsck import Report
from muster.volumes.layout import Layout, open_layout, rename_store
from muster.volumes.protocols import LocalStore


class Repair:
    """What ``muster volumes fsck --repair-from`` mends a store with, from a mirror.

    VOLUME.json of this machine's store is written again at once where it is gone or damaged: without it no store opens.
    """

    def __init__(self, mirror: str) -> None:
        self._mirror, settings = mirror, Settings.load()
        if store_is_here() and settings.store.is_dir():
            with self._open() as source:
                if _name_again(settings.store, source):
                    note(f"VOLUME.json was written again after {safe(mirror)}", style="green")

    def _open(self) -> closing[Home]:
        return closing(open_home(self._mirror, Settings.load()))

    def check(self, store: LocalStore) -> None:
        """Refuse what is no mirror of this store, also while nothing needs it: a wrong name is found on a schedule's first day."""
        with closing(home_of(store)) as target, self._open() as source:
            check_mirror(source, target)

    def __call__(self, store: LocalStore, report: Report) -> bool:
        """Replace what is damaged by the same versions of the mirror, and say so on stderr; return whether some is left."""
        with closing(home_of(store)) as target, self._open() as source, progress() as tell:
            done = repair(target, source, report, tell=tell)
        for address in done.versions:
            note(f"{safe(address)} was repaired from {safe(self._mirror)}", style="green")
        for address, why in done.left.items():
            note(f"{safe(address)} was not repaired: {safe(why)}", style="red")
        return bool(done.left)


@dataclass(kw_only=True)
class Repaired:
    """What a repair has done. `left`: what could not be repaired, each with the reason."""

    versions: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def repair(
    target: Home, source: Home, report: Report, *, tell: Callable[[str], None] = lambda _: None
) -> Repaired:
    """Bring the damaged versions of a report from a mirror: the same bytes under the same digests.

    Files that are not damaged stay. :raises Conflict: it is another store's mirror.
    """
    check_mirror(source, target)
    done = Repaired()
    damaged = sorted(_damaged(report).items())
    for index, (address, place) in enumerate(damaged):
        tell(f"{index}/{len(damaged)} {address}")
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


def _name_again(root: Path, source: Home) -> bool:
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
    found = dict[str, Place]()
    for problem in report.problems:
        if (problem.retired or not problem.harmless) and problem.where.startswith("volume://"):
            wanted = Address.parse(problem.where)
            if wanted.select is Select.NUMBER:
                found[problem.where] = (wanted.volume, int(wanted.value))
    return found
