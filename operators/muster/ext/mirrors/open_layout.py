"""An object store, or a plain folder, as a home of versions that can be read without muster.

::

    ROOT/<volume>/<n>/data/<path>                  the files of a version, under their own paths
    ROOT/<volume>/<n>/MANIFEST  RECORD.json        as in a store
    ROOT/_muster/versions/<volume>/<n>-<hex>       written last: the version is whole; {"at": seconds}
    ROOT/_muster/versions/<volume>/<n>-<hex>.deleted    gc deleted its data
    ROOT/_muster/marks/<volume>/<n>.json           {"retired": …, "pins": […]}
    ROOT/_muster/code/<hex>/  <hex>.json           code snapshots, and images' locks
    ROOT/MIRROR.json                               {"format": 1, "layout": "open", "of": "<uuid>"}

The names in ``_muster`` are all that a run lists, so it costs one listing. Two writers of one store write the same bytes
to the same names, so they need no lock. Any file system of fsspec will do; its own package must be installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blake3 import blake3

from muster.core.errors import Corrupt, NotFound, SpecError, StoreError
from muster.core.names import check_volume
from muster.ext.mirrors.base import Holding, Home, Tell, VersionDocuments, ordered, refuse_other, runs
from muster.ext.mirrors.drafts import Cut
from muster.ext.mirrors.objects import ObjectsBelow
from muster.ext.mirrors.open_files import STREAMS, OpenFiles, data_of
from muster.volumes.changes import files_below
from muster.volumes.commit_records import Place, flaw
from muster.volumes.gather import check_path
from muster.volumes.layout import MIRROR
from muster.volumes.manifest import Entry
from muster.volumes.tree import make_folders

FORMAT = 1

_INDEX = "_muster"


class OpenHome(OpenFiles):
    """The versions below a URL.

    :param url: such as ``s3://bucket/prefix``. Credentials and endpoint are those of its own package's environment.
    :param options: for the file system, such as an endpoint; never shown.
    :raises SpecError: fsspec, or the package of this kind of store, does not know it.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(ObjectsBelow(url, options))
        self.where = self.objects.where
        self._fresh: dict[Place, list[Entry]] = {}
        self._published: list[Place] = []
        # Hashes of files that were found wrong: what was copied from them is read, too.
        self._wrong = set[str]()
        self._lent: list[TemporaryDirectory[str]] = []

    def owner(self) -> str:
        """Return the uuid of the store that gave the versions their numbers; empty where there is none yet."""
        with self.objects.asking("look at it"):
            text = self.objects.text(MIRROR)
        if text is None:
            return ""
        try:
            document = json.loads(text)
            if "layout" not in document:
                raise SpecError(
                    f"{self.where} is a mirror that is a store, not one in the open layout: name its folder, without --plain"
                )
            if document["format"] != FORMAT or document["layout"] != "open":
                raise ValueError("another format")
            return str(document["of"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self.where}/{MIRROR} cannot be read, {flaw(error)}: is that a mirror?"
            ) from error

    def holdings(self, volumes: Collection[str] = ()) -> dict[Place, Holding]:
        """Return every whole version, by two listings."""
        with self.objects.asking("list its versions"):
            live, deleted = self._index(volumes)
            marks = self._marks(volumes)
        found = {place: Holding(digest, **marks.get(place, {})) for place, digest in live.items()}
        gone = {
            place: Holding(digest, deleted=True, **marks.get(place, {})) for place, digest in deleted.items()
        }
        return dict(sorted((found | gone).items()))

    def _index(self, volumes: Collection[str]) -> tuple[dict[Place, str], dict[Place, str]]:
        """Return the digests of whole and of deleted versions; one may be both for a moment."""
        live, deleted = dict[Place, str](), dict[Place, str]()
        for name in self.objects.names(f"{_INDEX}/versions", volumes):
            volume, _, last = name.rpartition("/")
            number, _, digest = last.removesuffix(".deleted").partition("-")
            if volumes and volume not in volumes:  # one of them has others below it
                continue
            if number.isdigit() and len(digest) == 64:
                into = deleted if last.endswith(".deleted") else live
                into[check_volume(volume), int(number)] = f"b3:{digest}"
        return live, deleted

    def _marks(self, volumes: Collection[str]) -> dict[Place, dict[str, Any]]:
        names = [
            name
            for name in self.objects.names(f"{_INDEX}/marks", volumes)
            if name.endswith(".json") and (not volumes or name.rpartition("/")[0] in volumes)
        ]
        found = dict[Place, dict[str, Any]]()
        with ThreadPoolExecutor(STREAMS) as pool:
            for name, text in zip(
                names, pool.map(lambda name: self.objects.text(f"{_INDEX}/marks/{name}"), names), strict=True
            ):
                if text is not None:
                    volume, _, number = name.removesuffix(".json").rpartition("/")
                    said = json.loads(text)
                    found[volume, int(number)] = {
                        "retired": said.get("retired"),
                        "pins": tuple(said.get("pins", ())),
                    }
        return found

    def documents(self, place: Place) -> VersionDocuments:
        """Return the documents of a version."""
        holding = self._holding(place)
        with self.objects.asking(f"read {place[0]}@{place[1]}"):
            at = self.objects.text(f"{_version_name(place, holding)}")
            text, said = (
                self.objects.text(f"{place[0]}/{place[1]}/{name}") for name in ("MANIFEST", "RECORD.json")
            )
        if text is None or said is None:
            raise Corrupt(f"{self.where} lacks MANIFEST or RECORD.json of {place[0]}@{place[1]}")
        documents = VersionDocuments(place, text, said, _at(at or b"{}"), holding)
        if documents.digest != holding.digest or documents.origin.digest != holding.digest:
            raise Corrupt(
                f"{self.where} has another manifest or record of {place[0]}@{place[1]} than was written"
            )
        return documents

    def _holding(self, place: Place) -> Holding:
        prefix = f"{_INDEX}/versions/{place[0]}"
        with self.objects.asking(f"look for {place[0]}@{place[1]}"):
            names = [name for name in self.objects.names(prefix) if name.startswith(f"{place[1]}-")]
            text = self.objects.text(f"{_INDEX}/marks/{place[0]}/{place[1]}.json")
        if not names:
            raise NotFound(f"{place[0]}@{place[1]} is not in {self.where}")
        deleted = any(name.endswith(".deleted") for name in names)
        marks = json.loads(text) if text else {}
        digest = names[0].removesuffix(".deleted").partition("-")[2]
        return Holding(f"b3:{digest}", deleted, marks.get("retired"), tuple(marks.get("pins", ())))

    def local(self, place: Place) -> Path | None:
        """Return the folder of a version's files, where this is a folder."""
        data = None if self.objects.folder is None else self.objects.folder / f"{place[0]}/{place[1]}/data"
        return data if data is not None and data.is_dir() else None

    def code(self, digest: str) -> Path | None:
        """Return a copy of a code snapshot, which is there until this home is closed."""
        name = digest.removeprefix("b3:")
        with self.objects.asking(f"read code snapshot {digest}"):
            told = self.objects.text(f"{_INDEX}/code/{name}.json")
            if told is None:
                return None
            try:
                files = dict[str, bool](json.loads(told))
            except (ValueError, TypeError) as error:
                raise Corrupt(f"{self.where}/{_INDEX}/code/{name}.json is torn: {error}") from error
            self._lent.append(TemporaryDirectory(prefix="muster-code-"))
            folder = Path(self._lent[-1].name)
            for path, runs_it in files.items():
                target = folder / check_path(path, output="code")
                make_folders(target.parent)
                target.write_bytes(self.whole(f"{_INDEX}/code/{name}/{path}"))
                target.chmod(0o755 if runs_it else 0o644)
        return folder

    def own(self, owner: str, *, adopt: bool = False) -> None:
        """Make this the mirror of a store, and end deletions that were cut off."""
        if adopt:
            raise SpecError(f"{self.where} is no store: restore into one, by its folder or its address")
        found = self.owner()
        refuse_other(self.where, found, owner)
        with self.objects.asking("make it a mirror"):
            if not found:
                if all(name.startswith(".") for name in self.objects.names("")):
                    document = {"format": FORMAT, "layout": "open", "of": owner}
                    self.objects.put(MIRROR, json.dumps(document).encode())
                elif not self.owner():  # else another mirror began since the first look
                    raise StoreError(f"{self.where} holds other files: name an empty place for a mirror")
            live, deleted = self._index(())
            for place in live.keys() & deleted.keys():
                self._delete_data(place, live[place])
        refuse_other(self.where, self.owner(), owner)  # another may have been first

    def free(self) -> None:
        """Nothing is left to do: an object is deleted at once."""

    def receive(
        self, documents: VersionDocuments, source: Home, *, base: VersionDocuments | None, tell: Tell
    ) -> None:
        """Write what is missing of a version's files."""
        self._fresh[documents.place] = []
        if documents.holding.deleted:
            if self.objects.folder is not None:  # a kill may have left some, nameless
                with self.objects.asking(f"delete {documents.address}"):
                    self.objects.remove_below(data_of(documents.place))
            return
        with self.objects.asking(f"write {documents.address}"):
            self._fresh[documents.place] = self.fill(documents, source, base=base, tell=tell)

    def publish(self, versions: Sequence[VersionDocuments]) -> None:
        """Write documents and marks, and last the names that make the versions whole."""
        if versions:
            for place in self._published:
                self._fresh.pop(place, None)
            self._published = [documents.place for documents in versions]
        with self.objects.asking("make versions visible"):
            for documents in versions:
                for name, text in (("MANIFEST", documents.manifest), ("RECORD.json", documents.record)):
                    self.objects.put(f"{documents.place[0]}/{documents.place[1]}/{name}", text)
                self._put_marks(documents.place, documents.holding)
            self.objects.sync()
            for documents in versions:
                holding = documents.holding
                self.objects.put(
                    _version_name(documents.place, holding), json.dumps({"at": documents.at}).encode()
                )
                if not holding.deleted:
                    self.objects.remove(_version_name(documents.place, Holding(holding.digest, deleted=True)))
            self.objects.sync()

    def mark(self, place: Place, holding: Holding) -> None:
        """Set the pins of a version, whether it is retired, and whether its data is deleted."""
        with self.objects.asking(f"mark {place[0]}@{place[1]}"):
            if holding.deleted:
                live = _version_name(place, Holding(holding.digest))
                said = self.objects.text(live) or b"{}"
                if self.objects.folder is not None:  # its disk may be full: this makes room for what says so
                    self.objects.remove(live)
                    self.objects.remove_below(data_of(place))
                self.objects.put(_version_name(place, holding), said)
                self._delete_data(place, holding.digest)
            self._put_marks(place, holding)

    def _delete_data(self, place: Place, digest: str) -> None:
        self.objects.remove_below(data_of(place))
        self.objects.remove(_version_name(place, Holding(digest)))

    def _put_marks(self, place: Place, holding: Holding) -> None:
        name = f"{_INDEX}/marks/{place[0]}/{place[1]}.json"
        if holding.retired is None and not holding.pins:
            self.objects.remove(name)
        else:
            self.objects.put(
                name, json.dumps({"retired": holding.retired, "pins": list(holding.pins)}).encode()
            )

    def verify(self, documents: VersionDocuments, *, drop: bool = False) -> list[str]:
        """Compare the sizes of all files, and read again what was written."""
        if documents.holding.deleted:
            return []
        place, entries = documents.place, documents.entries
        with self.objects.asking(f"read {documents.address} again"):
            there = self.objects.sizes(data_of(place))
        wrong = {
            path: f"{path!r:.200} has {there.get(path)} bytes in place of {entry.size_bytes}"
            for path, entry in entries.items()
            if there.get(path) != entry.size_bytes
        }
        fresh = {entry.path for entry in self._fresh.pop(place, ())}
        if self._wrong:
            fresh |= {path for path, entry in entries.items() if entry.hash in self._wrong}
        for run in runs(ordered(documents), fresh - wrong.keys()):
            wrong |= self._changed(documents, run)
        if wrong and drop:
            with self.objects.asking(f"take {documents.address} back"):
                self.objects.remove(_version_name(place, Holding(documents.digest)))
                for path in wrong:
                    self.objects.remove(self.name(documents, entries[path]))
        return list(wrong.values())

    def _changed(self, documents: VersionDocuments, run: Sequence[Entry]) -> dict[str, str]:
        """Read adjacent files; return what is wrong with each."""
        wrong = dict[str, str]()
        try:
            cut = Cut(self.read(documents, run))
            for entry in run:
                hasher = blake3()
                for chunk in cut.take(entry.size_bytes, what=entry.path):
                    hasher.update(chunk)
                if hasher.hexdigest() != entry.hash:
                    wrong[entry.path] = f"changed content: {entry.path!r:.200}"
                    self._wrong.add(entry.hash)
        except Corrupt as error:  # one cannot be read: all of them are brought again
            return dict.fromkeys((entry.path for entry in run), str(error))
        return wrong

    def holds_code(self, digest: str) -> bool:
        """Whether a code snapshot is there."""
        with self.objects.asking("look for code"):
            return self.objects.exists(f"{_INDEX}/code/{digest.removeprefix('b3:')}.json")

    def put_code(self, digest: str, folder: Path) -> None:
        """Keep a code snapshot."""
        name, files = digest.removeprefix("b3:"), files_below(folder)
        with self.objects.asking(f"write code snapshot {digest}"):
            for path, file in files.items():
                self.objects.put(f"{_INDEX}/code/{name}/{path}", file.read_bytes())
            told = {path: os.access(file, os.X_OK) for path, file in files.items()}
            self.objects.put(f"{_INDEX}/code/{name}.json", json.dumps(told).encode())

    def close(self) -> None:
        """Delete the copies of code that were lent."""
        while self._lent:
            self._lent.pop().cleanup()


def _at(text: bytes) -> float:
    """Return when a version was committed; 0 where that is not said. :raises Corrupt: what says it is torn."""
    try:
        return float(json.loads(text).get("at", 0.0))
    except (ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"{text!r:.80} is not what says when a version was committed") from error


def _version_name(place: Place, holding: Holding) -> str:
    name = f"{_INDEX}/versions/{place[0]}/{place[1]}-{holding.digest.removeprefix('b3:')}"
    return f"{name}.deleted" if holding.deleted else name
