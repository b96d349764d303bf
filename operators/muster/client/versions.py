"""Versions of volumes, for programs and notebooks: their files, records and lineage, and new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from muster.client.place import open_store
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.names import check_note
from muster.volumes import base
from muster.volumes.lineage import Ancestor, ancestors
from muster.volumes.listing import Listing
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    import pandas

AT_ONCE = 200  # records that are read together


class Version:
    """One version of a volume. It is immutable; ``@latest`` is resolved once, when it is looked up.

    :ivar address: ``volume://flights/features@7``.
    :ivar created: seconds since the epoch.
    """

    def __init__(self, store: LocalStore, found: base.Version, record: base.Record | None = None) -> None:
        self._store, self._found = store, found
        self.address: str = found.address
        self.volume: str = found.volume
        self.number: int = found.number
        self.digest: str = found.digest
        self.partition: str | None = found.partition
        self.size_bytes: int = found.size_bytes
        self.created: float = found.created
        if record is not None:
            self.__dict__["record"] = record

    @cached_property
    def path(self) -> Path:
        """The folder of its files, read-only. From a cluster's store it is fetched once into the cache and checked by digest.

        :raises Corrupt: the fetched bytes are not those that were committed.
        """
        return self._store.path(self.address)

    @cached_property
    def files(self) -> Listing:
        """Every file by its path below :attr:`path`, with ``size_bytes`` and ``hash`` (BLAKE3, hex digits)."""
        return self._store.manifest(self.address)

    @cached_property
    def record(self) -> base.Record:
        """Where it comes from: job, run, code, image, inputs, params and metrics, or the note of the person who put it."""
        return self._store.record(self.address)

    @property
    def params(self) -> Mapping[str, Any]:
        """The params of the job that made it, by name."""
        return self.record.params

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the job that made it, by name."""
        return self.record.metrics

    @cached_property
    def lineage(self) -> tuple[Ancestor, ...]:
        """Every version that it was made from, directly or not, nearest first, each with its record."""
        return tuple(ancestors(self._store, self.address))[1:]

    def __fspath__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and (self.address, self.digest) == (other.address, other.digest)

    def __hash__(self) -> int:
        return hash((self.address, self.digest))

    def __repr__(self) -> str:
        partition = f", partition {self.partition}" if self.partition else ""
        return f"<muster.Version {self.address} {self.digest[:11]}{partition}>"


class Versions(Sequence[Version]):
    """Versions of one volume, oldest first, or by partition where an address selects several.

    Nothing is read before it is used; records are read many at a time.
    """

    def __init__(self, store: LocalStore, where: str, found: Sequence[base.Version] | None = None) -> None:
        self._store, self._where = store, where
        if found is not None:
            self.__dict__["_found"] = found

    @cached_property
    def _found(self) -> Sequence[base.Version]:
        if "@" not in self._where and (found := self._store.versions(Address.parse(self._where).volume)):
            return found
        return self._store.resolve(self._where)  # for a volume without versions the error lists the volumes

    @overload
    def __getitem__(self, index: int) -> Version: ...
    @overload
    def __getitem__(self, index: slice) -> Versions: ...
    def __getitem__(self, index: int | slice) -> Version | Versions:
        if isinstance(index, slice):
            return Versions(self._store, self._where, self._found[index])
        return Version(self._store, self._found[index])

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Version]:
        for first in range(0, len(self._found), AT_ONCE):
            some = self._found[first : first + AT_ONCE]
            records = self._store.records([found.address for found in some])
            yield from map(Version, [self._store] * len(some), some, records)

    def __repr__(self) -> str:
        return f"<muster.Versions {self._where}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame of one row a version, indexed by address.

        ``number``, ``partition``, ``created`` (UTC), ``size_bytes``, ``digest``, ``dag_id``, ``run_id``, ``task_id`` and
        ``job_id``, then a column ``params.NAME`` and ``metrics.NAME`` for each param and metric that one of them has.

        :raises SpecError: this Python has no pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise SpecError(
                "to_pandas() needs pandas, which this Python does not have: install it, or read the versions one by "
                "one: [v.metrics for v in muster.versions(…)]"
            ) from error
        rows = [_row(version) for version in self]
        columns = list(
            dict.fromkeys([*_COLUMNS, *sorted({name for row in rows for name in row} - {*_COLUMNS})])
        )
        frame = pandas.DataFrame(rows, columns=columns).set_index("address")
        frame["created"] = pandas.to_datetime(frame["created"], unit="s", utc=True)
        return frame


_COLUMNS = (
    *("address", "number", "partition", "created", "size_bytes", "digest"),
    *("dag_id", "run_id", "task_id", "job_id"),
)


def _row(version: Version) -> dict[str, Any]:
    record = version.record
    known = {name: getattr(version, name) for name in _COLUMNS[:6]}
    origin = {name: getattr(record.origin, name) or None for name in ("dag_id", "run_id", "task_id")}
    params = {f"params.{name}": value for name, value in record.params.items()}
    metrics = {f"metrics.{name}": value for name, value in record.metrics.items()}
    return {**known, **origin, "job_id": record.job_id, **params, **metrics}


def version(address: str) -> Version:
    """Return the version that an address names now, such as ``flights/features@2013-03`` or ``flights/model``.

    :raises NotFound: there is none; the message says what there is.
    :raises SpecError: it is no address, or names several versions or a file.
    """
    wanted = Address.parse(address)
    if wanted.many:
        raise SpecError(f"{address} may name several versions: muster.versions({address!r}) returns them all")
    if wanted.path:
        raise SpecError(
            f"{address} names a file: take the version's path, muster.version("
            f"{address.removesuffix('/' + wanted.path)!r}).path / {wanted.path!r}"
        )
    store = open_store()
    return Version(store, store.resolve(address)[0])


def versions(where: str) -> Versions:
    """Return every version of a volume, oldest first, or those that an address selects, such as ``flights/features@*``.

    Nothing is read yet: an unknown volume is refused at the first use of the sequence.

    :raises SpecError: it is no address.
    """
    Address.parse(where)
    return Versions(open_store(), where)


def put(source: Path | str, volume: str, *, partition: str | None = None, note: str = "") -> Version:
    """Copy a folder or file into a new version of a volume; a new volume is created.

    :param note: where it comes from, for the record.
    :raises SpecError: there is no such folder, or the volume's or partition's name is not allowed.
    """
    store = open_store(make=True)
    return Version(store, add(store, Path(source), volume, partition=partition, note=note))


def add(store: LocalStore, source: Path, volume: str, *, partition: str | None, note: str) -> base.Version:
    """Copy a folder or file into a new version of `store`; without a note the record names the folder."""
    check_note(note)
    if not source.exists():
        raise SpecError(f"{source} does not exist: name a folder or file to copy")
    return store.add(
        volume, source.absolute(), partition=partition, note=note or f"put from {source.absolute()}"
    )
