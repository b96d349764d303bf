"""Lineage: which versions a version was made from; and what differs between two versions, or two stages of runs, and may explain their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.core.address import pinned
from muster.core.errors import Corrupt, NotFound
from muster.core.wire import plain
from muster.volumes.base import Record
from muster.volumes.listing import Listing
from muster.volumes.manifest import Entry
from muster.volumes.protocols import Store

if TYPE_CHECKING:
    from muster.volumes.runs import Run, RunStage

DIGITS = len("b3:") + 8  # of an input's digest: as many as people are shown
_ENDING = ("state", "says")


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """One version that another was made from, directly or not.

    :param depth: 0 for the version where the walk began, 1 for its inputs, …
    :param reader: the address of the version that was made from it, and `name` the input's name there.
    :param record: None where this store does not know the version (it was copied from another store), or
        can no longer read it.
    """

    address: str
    digest: str
    depth: int
    record: Record | None
    reader: str = ""
    name: str = ""


def ancestors(
    store: Store, address: str, *, through: Callable[[Record], bool] = lambda _: True
) -> Iterator[Ancestor]:
    """Walk from one version back through the inputs of records, nearest first; each version once.

    Versions whose data gc deleted are on the way too: their records stay.

    :param through: whether to follow a record's inputs.
    """
    record = store.record(address)
    first = pinned(record.volume, record.number)
    waiting = [Ancestor(address=first, digest=record.digest, depth=0, record=record)]
    seen = {first}
    while waiting:
        here = waiting.pop(0)
        yield here
        for name, versions in (here.record.inputs if here.record and through(here.record) else {}).items():
            for version in versions:
                if version.address in seen:
                    continue
                seen.add(version.address)
                waiting.append(
                    Ancestor(
                        address=version.address,
                        digest=version.digest,
                        depth=here.depth + 1,
                        record=_known(store, version.address),
                        reader=here.address,
                        name=name,
                    )
                )


def document(store: Store, address: str) -> dict[str, Any]:
    """Return one version's record and, in short, everything it was made from, as JSON values.

    ``{"version": …, "record": {…}, "ancestors": [{"version", "digest", "depth", "reader", "name",
    "partition", "made_by", "code", "image", "image_digest"}, …]}``, nearest first; `made_by` is the
    entrypoint or the note, and it and the fields after it are empty where this store does not know the
    version.
    """
    first, *others = ancestors(store, address)
    return {
        "version": first.address,
        "record": plain(first.record),
        "ancestors": [{**_short(each), **_maker(each.record)} for each in others],
    }


def _short(ancestor: Ancestor) -> dict[str, Any]:
    fields = ("digest", "depth", "reader", "name")
    return {"version": ancestor.address, **{field: getattr(ancestor, field) for field in fields}}


def _maker(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"partition": None, "made_by": "", "code": None, "image": "", "image_digest": ""}
    made_by = record.entrypoint or record.job_name or record.note
    fields = ("partition", "code", "image", "image_digest")
    return {"made_by": made_by, **{field: getattr(record, field) for field in fields}}


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """What changed from one version to another. Sizes are bytes.

    :param changed: path to its size before and after.
    """

    added: Mapping[str, int]
    removed: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    same_files: int


def compare(before: Listing, after: Listing) -> FileDifference:
    """Compare two manifests (:meth:`muster.volumes.folder.FolderStore.manifest`) by path, hash, and whether a file may be run.

    An empty folder is a path that ends in a slash. Pages that both have are not read.
    """
    shared = {page.hash for page in before.index.pages} & {page.hash for page in after.index.pages}
    same = sum(page.files for page in before.index.pages if page.hash in shared)
    added, removed, changed = dict[str, int](), dict[str, int](), dict[str, tuple[int, int]]()
    for old, new in _paired(before.outside(shared), after.outside(shared)):
        if old is None:
            assert new is not None
            added[new.path] = new.size_bytes
        elif new is None:
            removed[old.path] = old.size_bytes
        elif old.content != new.content:
            changed[old.path] = (old.size_bytes, new.size_bytes)
        else:
            same += not old.path.endswith("/")
    return FileDifference(added=added, removed=removed, changed=changed, same_files=same)


def _paired(old: Iterator[Entry], new: Iterator[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Yield the entries of each path; None where one side does not have it."""
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        paths = [each.path for each in (before, after) if each is not None]
        was = before if before is not None and before.path == min(paths) else None
        now = after if after is not None and after.path == min(paths) else None
        yield was, now
        before = before if was is None else next(old, None)
        after = after if now is None else next(new, None)


def _known(store: Store, address: str) -> Record | None:
    try:
        return store.record(address)
    except (NotFound, Corrupt):  # fsck reports the damage; the walk goes on
        return None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One fact that differs: its name, such as ``params.epochs``, and both values; None where there is none."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class StageDifference:
    """One stage of two runs. Where only one of them has it, `only` is ``old`` or ``new``, and no facts are given.

    :param seconds: what its newest job took in both runs; None where that is not known.
    """

    task_id: str
    map_index: int
    only: str = ""
    facts: tuple[Fact, ...] = ()
    seconds: tuple[float | None, float | None] = (None, None)


def facts(old: Record | RunStage, new: Record | RunStage) -> tuple[Fact, ...]:
    """Return which of code, environment, params, metrics and inputs (by digest) differ, by name.

    Of stages how they ended comes first: ``state``, and ``says``, why they failed or what a task without a job says.
    """
    before, after = _flat(old), _flat(new)
    names = before.keys() | after.keys()
    return tuple(
        Fact(name=name, old=before.get(name), new=after.get(name))
        for name in [*(name for name in _ENDING if name in names), *sorted(names - {*_ENDING})]
        if before.get(name) != after.get(name)
    )


def stages(old: Run, new: Run) -> Iterator[StageDifference]:
    """Yield every stage of two runs with what differs, in the order of the new run, then what only the old one has."""
    before, after = _stages(old), _stages(new)
    for key in [*after, *(key for key in before if key not in after)]:
        was, now = before.get(key), after.get(key)
        if was is None or now is None:
            yield StageDifference(task_id=key[0], map_index=key[1], only="old" if now is None else "new")
        else:
            took = (was.seconds, now.seconds)
            yield StageDifference(task_id=key[0], map_index=key[1], facts=facts(was, now), seconds=took)


def _stages(run: Run) -> Mapping[tuple[str, int], RunStage]:
    return {(stage.task_id, stage.map_index): stage for stage in run.stages}


def _flat(made: Record | RunStage) -> dict[str, Any]:
    flat: dict[str, Any] = {name: getattr(made, name) for name in ("code", "entrypoint", "image_digest")}
    flat |= {"interpreter": str(made.interpreter)} if made.interpreter else {}
    if not isinstance(made, Record):
        flat |= {"state": made.state.value, "says": made.verdict or made.line or None}
    for kind in ("params", "metrics"):
        flat |= {f"{kind}.{name}": plain(value) for name, value in getattr(made, kind).items()}
    for name, versions in made.inputs.items():
        flat[f"inputs.{name}"] = " ".join(version.digest[:DIGITS] for version in versions)
    return flat
