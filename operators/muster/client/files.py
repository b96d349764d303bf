"""``volume://`` for fsspec: pandas, polars, pyarrow and DuckDB read a version by its address; nothing is written.

``volume://flights/features@2013-03/part.parquet`` is a file of a version, and every address of
:mod:`muster.core.address` is a folder. One that names several versions is a folder of folders, one for each
partition; as a pattern (``volume://flights/features@*/*.parquet``) it matches files of all of them.

Each file system object looks an address up once, so all files that one call reads are of one version.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, NoReturn

from fsspec.spec import AbstractFileSystem

from muster.client.place import open_store
from muster.core.address import SCHEME, Address
from muster.core.errors import MusterError, NotFound, SpecError
from muster.volumes.base import Version
from muster.volumes.listing import Listing
from muster.volumes.manifest import Entry
from muster.volumes.protocols import LocalStore

_SELECTORS = "*<>"


class _Place(NamedTuple):
    """A path inside a version, or the top folder of an address of several versions."""

    version: Version | None
    inner: str = ""


class VolumeFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The versions of the store that the command speaks to, read-only.

    An object sees each address as it was at its first use; :meth:`invalidate_cache` makes it look again. Of a
    cluster's store each file is fetched once into the cache when it is opened, and checked by its hash.
    """

    protocol = "volume"
    root_marker = ""
    cachable = False  # `@latest` is looked up by each new object
    local_file = True  # what is open is a file of this machine, for fsspec.open_local

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._found: dict[str, tuple[Version, ...]] = {}
        self._manifests: dict[str, Listing] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return str(path).removeprefix(SCHEME).strip("/")

    def invalidate_cache(self, path: str | None = None) -> None:
        """Look up addresses again, those below `path` or all."""
        start = self._strip_protocol(path or "")
        self._found = {name: found for name, found in self._found.items() if not name.startswith(start)}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, type and size of a file or folder, and of a version its digest and creation.

        :raises FileNotFoundError: there is none; the message says what there is.
        """
        path = self._strip_protocol(path)
        with _translated(path):
            if not path or self._is_above(path):
                return _folder(path)
            version, inner = self._place(path)
            if version is None:
                return _folder(path)
            entry = self._entries(version).get(inner)
            if entry is not None:
                return _file(path, entry, version)
            if not self._entries(version).holds(inner):
                raise NotFound(_absent(version, inner, self._entries(version)))
            return _folder(path, version)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder: volumes at the top, then the files of a version.

        :raises FileNotFoundError: there is none.
        """
        path = self._strip_protocol(path)
        with _translated(path):
            found = list(self._children(path))
        return found if detail else [each["name"] for each in found]

    def glob(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        """Return what matches a pattern; an address of several versions matches all of them, by number."""
        path = self._strip_protocol(path)
        base, _, pattern = path.partition("@")
        selector, slash, pattern = pattern.partition("/")
        if not selector or selector[0] not in _SELECTORS:
            return super().glob(path, maxdepth=maxdepth, **options)
        with _translated(path):
            tops = [f"{base}@{version.number}" for version in self._resolve(f"{base}@{selector}")]
        found = [
            super(VolumeFileSystem, self).glob(f"{top}{slash}{pattern}", maxdepth=maxdepth, **options)
            for top in tops
        ]
        if options.get("detail"):
            return {name: known for each in found for name, known in each.items()}
        return [name for each in found for name in each]

    def created(self, path: str) -> datetime:
        """Return when the version was made."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=UTC)

    modified = created

    def ukey(self, path: str) -> str:
        """Return the hash of a file: it never changes."""
        return str(self.info(path)["hash"])

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        if mode != "rb":
            self._refuse(path)
        with _translated(path):
            version, inner = self._place(path)
            if version is None or self.info(path)["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "a folder of a version, not a file", path)
            return self._store.path(f"{version.address}/{inner}").open("rb")

    def _refuse(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise OSError(
            errno.EROFS, "a version is never changed: muster.put(folder, volume) makes a new one", str(path)
        )

    mkdir = makedirs = rm_file = _rm = rmdir = cp_file = touch = _refuse

    @property
    def _store(self) -> LocalStore:
        return open_store()

    def _resolve(self, address: str) -> tuple[Version, ...]:
        if address not in self._found:
            self._found[address] = self._store.resolve(address)
        return self._found[address]

    def _entries(self, version: Version) -> Listing:
        if version.digest not in self._manifests:
            self._manifests[version.digest] = self._store.manifest(version.address)
        return self._manifests[version.digest]

    def _place(self, path: str) -> _Place:
        path = self._with_selector(path)
        wanted = Address.parse(path)
        found = self._resolve(path.removesuffix(f"/{wanted.path}") if wanted.path else path)
        if not wanted.many:
            return _Place(found[0], wanted.path)
        partition, _, inner = wanted.path.partition("/")
        if not partition:
            return _Place(None)
        for version in found:
            if version.partition == partition:
                return _Place(version, inner)
        there = [version.partition for version in found if version.partition is not None]
        raise NotFound(f"{path} has no partition {partition!r:.80}; it has {', '.join(there[:8])}")

    def _with_selector(self, path: str) -> str:
        """Return a path below a bare volume as one below its ``@latest``: readers of a folder ask for such paths."""
        if "@" in path:
            return path
        above = (name for name in self._store.volumes() if path.startswith(f"{name}/"))
        volume = max(above, key=len, default="")
        return f"{volume}@latest/{path[len(volume) + 1 :]}" if volume else path

    def _is_above(self, path: str) -> bool:
        """Whether `path` is not a volume, but the beginning of volumes' names."""
        if "@" in path:
            return False
        names = self._store.volumes()
        inside = any(path == name or path.startswith(f"{name}/") for name in names)
        return not inside and any(name.startswith(f"{path}/") for name in names)

    def _children(self, path: str) -> Iterator[dict[str, Any]]:
        if not path or self._is_above(path):
            yield from map(
                _folder, (name for name in self._store.volumes() if not path or name.startswith(f"{path}/"))
            )
            return
        version, inner = self._place(path)
        if version is None:
            for each in self._resolve(path):
                yield _folder(f"{path}/{each.partition}", each)
            return
        entries = self._entries(version)
        if inner in entries:
            yield _file(path, entries[inner], version)
            return
        below = dict(entries.names(inner))
        if not entries.holds(inner):
            raise NotFound(_absent(version, inner, entries))
        for name, entry in below.items():
            yield (
                _folder(f"{path}/{name}", version)
                if entry is None
                else _file(f"{path}/{name}", entry, version)
            )


def _folder(path: str, version: Version | None = None) -> dict[str, Any]:
    known = (
        {}
        if version is None
        else {"created": version.created, "address": version.address, "digest": version.digest}
    )
    return {"name": path, "size": 0, "type": "directory", **known}


def _file(path: str, entry: Entry, version: Version) -> dict[str, Any]:
    return {**_folder(path, version), "size": entry.size_bytes, "type": "file", "hash": entry.hash}


def _absent(version: Version, inner: str, entries: Listing) -> str:
    there = ", ".join(name for name, _ in islice(entries.names(), 8))
    return f"{version.address} holds no {inner!r:.120}; at its top are {there}"


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Raise muster's errors as the file errors that readers expect, with muster's message."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, str(error), f"{SCHEME}{path}") from error
    except SpecError as error:
        raise ValueError(str(error)) from error
    except MusterError as error:
        raise OSError(errno.EIO, str(error), f"{SCHEME}{path}") from error
