"""The files of a folder store, and the abilities of its file system.

::

    STORE/VOLUME.json                      uuid, format, abilities
    STORE/v/<volume>/<n>/data/             one version; files 0444, folders 0555
                         MANIFEST  INDEX  RECORD.json  KNOWN  RETIRED  USED  TOMBSTONE  pins/<key>  replaced/<job_id>
    STORE/tombstones/<volume>/             documents of deleted versions (:mod:`muster.volumes.tombstones`)
    STORE/v/<volume>/.<n>                  a number that a commit has reserved
    STORE/commits/<job_id>.json            the versions of one commit: it makes them visible
        STORE/commits/<job_id>.series          their job's series, once its ledger entry is deleted
        STORE/hints/<volume>/                  saves commits and selectors from reading a volume; may be deleted (``:`` for ``/``)
    STORE/staging/<job_id>/<attempt>/      where an attempt writes
    STORE/code/<hex>/                      code snapshots, unpacked
    STORE/made/                            what was made from what (:mod:`muster.volumes.makings`); may be deleted
    STORE/ends/                            how tasks without a job ended (:mod:`muster.volumes.task_notes`); may be deleted
    STORE/runs/                            runs that go on (:mod:`muster.volumes.task_notes`); may be deleted
    STORE/jobs/<job_id>/                   the ledger: spec.json, status.json, owner, tally.json, log, series, attempt
        STORE/leases/<holder>/<volume>@<n>     versions in use, by reader (``:`` for ``/``)
        STORE/trash/                           deleted, to be unlinked later
    STORE/predictions/<deployment>/        requests that model servers of a cluster keep (:mod:`muster.volumes.spool`)
    STORE/events/<kind>/<name>/            event logs of extensions (:mod:`muster.volumes.event_logs`); those of searches are STORE/searches/<search_id>/
    STORE/MIRROR.json                      of which store this one is a mirror (:mod:`muster.ext.mirrors.folder`)
    STORE/mirror/                          what a mirror has received and not yet made visible
    STORE/tokens/                          tokens of persons, without the tokens themselves (:mod:`muster.volumes.service.persons`)
    STORE/usage/                           what jobs used, by month, and which jobs go on (:mod:`muster.ext.usage.log`)
    STORE/upkeep/                          when fsck, gc and a sweep last ran (:mod:`muster.volumes.upkeep`); may be deleted

Volumes nest (``flights`` and ``flights/features``): a segment of a name is never digits alone, so
a folder of digits is always a version.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from blake3 import blake3

from muster.core.errors import Corrupt, NotFound, StoreError
from muster.core.names import check_job_id, check_volume
from muster.volumes.durability import (
    is_local,
    link_text,
    rename,
    sync_all,
    sync_folder,
    sync_tree,
    temporary,
    write_whole,
)
from muster.volumes.tree import remove

FORMAT = 1
MARKER = "VOLUME.json"
MIRROR = "MIRROR.json"
_CURE = (
    "With a mirror, `muster volumes fsck --repair-from MIRROR` writes it again; without one write "
    '{"format": 1, "uuid": "UUID", "abilities": {"link": true, "syncfs": true}}, with 32 new hex digits as UUID; on NFS '
    "both abilities are false"
)
_ROOMS = ("v", "commits", "staging", "code", "jobs", "leases", "trash")


@lru_cache(4096)  # listing a volume of a thousand versions calls it some thousand times
def _volume(root: Path, name: str) -> Path:
    return root / "v" / check_volume(name)


@dataclass(frozen=True)
class Layout:
    """The paths of one store. Every name is checked before it becomes part of a path."""

    root: Path
    uuid: str
    links: bool
    syncfs: bool

    def volume(self, name: str) -> Path:
        """The folder of a volume's versions."""
        return _volume(self.root, name)

    def version(self, volume: str, number: int) -> Path:
        """The folder of one version."""
        return self.volume(volume) / str(int(number))

    def commit(self, job_id: str) -> Path:
        """The file that makes a job's versions visible."""
        return self.root / "commits" / f"{check_job_id(job_id)}.json"

    def series(self, job_id: str) -> Path:
        """The series of a job that the ledger no longer has, as long as one of its versions has data."""
        return self.root / "commits" / f"{check_job_id(job_id)}.series"

    def job(self, job_id: str) -> Path:
        """The ledger's folder of one job."""
        return self.root / "jobs" / check_job_id(job_id)

    def staging(self, job_id: str) -> Path:
        """The folder of all attempts of one job."""
        return self.root / "staging" / check_job_id(job_id)

    def code(self, digest: str) -> Path:
        """The folder of one code snapshot."""
        return self.root / "code" / digest.removeprefix("b3:")

    def leases(self, holder: str) -> Path:
        """The folder of one holder's leases."""
        return self.root / "leases" / check_job_id(holder)

    def hints(self, volume: str) -> Path:
        """The folder of what saves a look at all versions of a volume."""
        return self.root / "hints" / check_volume(volume).replace("/", ":")

    def tombstones(self, volume: str) -> Path:
        """The folder of the documents of a volume's deleted versions."""
        return self.root / "tombstones" / volume.replace("/", ":")

    @property
    def upkeep(self) -> Path:
        """The folder that says when the store was last checked, collected and swept."""
        return self.root / "upkeep"

    @property
    def trash(self) -> Path:
        """The folder of files that wait to be unlinked."""
        return self.root / "trash"

    def sync(self, *folders: Path) -> None:
        """Make all that was written below folders of the store durable: in one call where that is a barrier, else file by file."""
        if self.syncfs:
            sync_all(self.root)
        else:
            for folder in folders:
                sync_tree(folder)

    def discard(self, path: Path) -> Path | None:
        """Move a file or folder to the trash in one step; None where it was gone already.

        Where the file system cannot move it between folders (EXDEV) it is deleted at once.
        """
        target = self.trash / f"{int(time.time())}-{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)  # a folder that moves must be writable (rename(2))
            try:
                rename(path, target)
                return target
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
            aside = temporary(path)
            rename(path, aside)
            remove(aside)
        return None

    def delete(self, path: Path) -> None:
        """Delete a file or folder for good; a crash leaves it whole, or in the trash."""
        taken = self.discard(path)
        if taken is not None:
            with suppress(OSError):  # NFS keeps a file that is open, and its folder: gc empties the trash
                remove(taken)

    def volumes(self) -> Iterator[str]:
        """Every volume's name, in no order."""
        top = self.root / "v"
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            folders = (entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
            names = [name for name in folders if not name.startswith(".")]
            if folder != top and any(name.isdigit() for name in names):
                yield str(folder.relative_to(top))
            waiting += [folder / name for name in names if not name.isdigit()]

    def numbers(self, volume: str) -> list[int]:
        """Return every number given out in a volume, ascending, also of invisible or deleted versions."""
        try:
            names = os.listdir(self.volume(volume))  # noqa: PTH208 - half the time of iterdir
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def taken(self, volume: str) -> dict[int, str]:
        """Return the reserved numbers, each with the claim that reserved it."""
        taken = {}
        for path in self.volume(volume).iterdir():
            if path.is_symlink():
                claim = link_text(path)
                if claim is not None:  # else published meanwhile
                    taken[int(path.name[1:])] = claim
        return taken


def open_layout(root: Path) -> Layout:
    """Open the store at `root`, creating it whole where there is none; two processes at once create one.

    :raises StoreError: the folder is something else, or belongs to a newer muster. :raises Corrupt: VOLUME.json is damaged.
    """
    root = root.absolute()
    try:
        document = json.loads((root / MARKER).read_bytes())
    except FileNotFoundError:
        return create(root)
    except OSError as error:
        raise StoreError(f"{root} cannot be opened as a store: {error}") from error
    except ValueError as error:
        raise Corrupt(f"{root} cannot be opened as a store: {MARKER} is no JSON. {_CURE}") from error
    if isinstance(document, dict) and document.get("digest", digest := _digest(document)) != digest:
        raise Corrupt(f"{root} cannot be opened as a store: {MARKER} is not as it was written. {_CURE}")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StoreError(f"{root} is no store that this muster knows: {MARKER} needs format {FORMAT}")
    able = document.get("abilities", {})
    return Layout(root, document.get("uuid", ""), bool(able.get("link")), bool(able.get("syncfs")))


def write_marker(root: Path, document: Mapping[str, Any]) -> None:
    """Write what names a store, with a digest of it, so that a flipped bit is seen."""
    write_whole(root / MARKER, json.dumps({**document, "digest": _digest(document)}, indent=1) + "\n")


def _digest(document: Mapping[str, Any]) -> str:
    """Return the digest of what names a store. Where its document has none, it was written by hand."""
    named = {name: value for name, value in document.items() if name != "digest"}
    return f"b3:{blake3(json.dumps(named, sort_keys=True).encode()).hexdigest()}"


def rename_store(root: Path, uuid: str) -> Layout:
    """Write what names a store that has lost it, and open the store."""
    write_marker(root, {"format": FORMAT, "uuid": uuid, "abilities": _probe(root)})
    return open_layout(root)


def create(root: Path) -> Layout:
    """Make a store in an empty folder, or open the one that another process made there meanwhile."""
    if root.is_dir() and any(root.iterdir()):
        if (root / MARKER).is_file():  # created by another process meanwhile
            return open_layout(root)
        if (root / "v").is_dir() and (root / "commits").is_dir():
            raise NotFound(f"{root} holds versions and no {MARKER}, which names the store. {_CURE}")
        raise NotFound(
            f"{root} is not empty and holds no {MARKER}: name an empty folder or an existing store"
        )
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        new = temporary(root)
        for room in _ROOMS:
            (new / room).mkdir(parents=True)
        write_marker(new, {"format": FORMAT, "uuid": os.urandom(16).hex(), "abilities": _probe(new)})
    except OSError as error:
        raise StoreError(f"no store can be made at {root}: {error.strerror or error}") from error
    try:
        rename(new, root)
    except OSError as error:
        remove(new)
        if not (root / MARKER).is_file():  # else another process created it first: open that one
            raise StoreError(
                f"no store can be made at {root}: {error.strerror}; if it is a mount or a link, name a folder below it"
            ) from error
    sync_folder(root.parent)
    return open_layout(root)


def _probe(folder: Path) -> dict[str, bool]:
    first, second = folder / "probe-1", folder / "probe-2"
    first.write_bytes(b"muster")
    able = dict[str, bool]()
    for name, call, arguments in (("link", os.link, (first, second)), ("syncfs", sync_all, (folder,))):
        try:
            call(*arguments)
            able[name] = True
        except OSError:
            able[name] = False
    able["syncfs"] &= is_local(folder)
    for probe in folder.glob("probe-*"):
        probe.unlink()
    return able
