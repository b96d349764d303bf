"""The objects below a URL: whole reads and writes by name, in an object store or in a folder, through fsspec.

An object store writes an object whole or not at all; elsewhere a file is written beside its place and renamed.

A large object is made of stretches of one that its store has already, and of new bytes, so that only these travel.
S3 makes an object of parts, each sent or copied within the store (UploadPart and UploadPartCopy of its API). It takes parts of 5 MiB to
5 GiB, 10,000 of them, and the last one may be smaller; so a small change costs 5 MiB. Parts of an upload that a kill left lie there unseen,
and are paid for, until a rule of the bucket deletes them (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from muster.core.errors import MusterError, SpecError, StoreError
from muster.ext.mirrors.delta import Stretch
from muster.volumes.durability import is_local, sync_all
from muster.volumes.tree import make_folders

PIECE_BYTES = 8 << 20
"""The parts in which a large object is written."""

LEFT_SECONDS = 86_400
"""What is so old and still no object was left by a kill."""

_NEW = ".new-"
_PART = re.compile(rf"{re.escape(_NEW)}[0-9a-f]{{16}}\Z")
_COPY_RANGES = frozenset({"s3", "s3a"})
_WHOLE_PUTS = frozenset({"s3", "s3a", "gcs", "gs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})


def is_new(name: str) -> bool:
    """Whether a name is that of a file which is being written, or was when its writer was killed."""
    return _PART.match(name.rpartition("/")[2]) is not None


class ObjectsBelow:
    """The objects below a URL. A name is a path below it. Safe to use from many threads.

    :ivar where: the URL, as messages show it.
    :ivar folder: where this is a folder of this machine; else None.
    :ivar copies_ranges: whether the store makes objects of ranges of others.
    :param options: for the file system, such as an endpoint; never shown.
    :raises SpecError: fsspec, or the package of this kind of store, does not know it.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        import fsspec

        self.where = url.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(self.where, use_listings_cache=False, **(options or {}))
        except (ImportError, ValueError) as error:
            raise SpecError(f"{url!r:.120} cannot be opened: {error}") from error
        self._root = str(root).rstrip("/")
        protocol = self._fs.protocol if isinstance(self._fs.protocol, str) else self._fs.protocol[0]
        self.folder = Path(self._root) if protocol in ("file", "local") else None
        self._puts_whole = protocol in _WHOLE_PUTS
        # A store that wants all parts of one size is told so to s3fs.
        self.copies_ranges = protocol in _COPY_RANGES and not getattr(self._fs, "fixed_upload_size", False)

    def names(self, prefix: str, folders: Collection[str] = ()) -> list[str]:
        """Return the names of all objects below a prefix, relative to it.

        :param folders: below the prefix; only theirs.
        """
        found = list[str]()
        for below in folders or ("",):
            top = self._key("/".join(filter(None, (prefix, below))))
            base = self._key(prefix)
            with suppress(FileNotFoundError):
                found += [str(path).removeprefix(f"{base}/") for path in self._fs.find(top)]
        return found

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of each object below a prefix, by its name relative to it."""
        top = self._key(prefix)
        try:
            found = self._fs.find(top, detail=True)
        except FileNotFoundError:
            return {}
        return {path.removeprefix(f"{top}/"): int(info["size"]) for path, info in found.items()}

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        return bool(self._fs.exists(self._key(name)))

    def text(self, name: str) -> bytes | None:
        """Return a whole object; None where there is none."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def read(self, name: str, first: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of an object, or those from `first` to before `end`. :raises FileNotFoundError: there is none."""
        data: bytes = self._fs.cat_file(self._key(name), start=first, end=end)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        with self._written(name) as part:
            self._fs.pipe_file(part, data)

    def send(self, path: str, name: str) -> None:
        """Write an object with the bytes of a file of this machine."""
        with self._written(name) as part:
            self._fs.put_file(path, part)

    def send_changed(self, path: str, name: str, *, before: str, stretches: Iterable[Stretch]) -> int | None:
        """Write an object with the bytes of a file of this machine, those that another object holds by a copy within the store.

        :param before: the name of that object. `stretches`: of the file, and where that object holds the same.
        :returns: how many bytes were sent; None where that spares little, or the store cannot: nothing was written.
        """
        found = parts(stretches)
        size, travels = sum(each.size for each in found), sent(found)
        if 2 * travels > size or len(found) > MOST_PARTS:
            return None
        try:
            patch(self._fs, self._key(name), before=self._key(before), path=path, found=found)
        except Exception:  # stores that speak S3 do not all know these calls, and what is away says so of the whole file, too
            return None
        return travels

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file whose bytes become the object; it is not there where the block raises."""
        with self._written(name) as part:
            try:
                with self._fs.open(part, "wb", block_size=PIECE_BYTES) as file:
                    yield file
            except BaseException:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(part)
                raise

    def copy(self, source: str, target: str) -> bool:
        """Make one object of another, by a link in a folder; whether that one was there."""
        if self.folder is not None:
            with suppress(OSError):
                make_folders(Path(self._key(target)).parent)
                os.link(self._key(source), self._key(target))
                return True
        # In a folder beside its place: what is there may be a link to another version's file.
        with suppress(FileNotFoundError), self._written(target) as part:
            self._fs.cp_file(self._key(source), part)
            return True
        return False

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._key(name))

    def remove_below(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._key(prefix), recursive=True)

    def tidy(self, prefix: str) -> None:
        """Delete what killed writers left of files below a prefix, once it is older than any file that is being written."""
        if self.folder is None:
            return
        before = time.time() - LEFT_SECONDS
        for path in Path(self._key(prefix)).rglob(".new-*"):
            with suppress(FileNotFoundError):  # another run does the same
                if _PART.match(path.name) and path.lstat().st_mtime < before:
                    path.unlink()

    def sync(self) -> None:
        """Have what was written survive a loss of power, where this is a disk of this machine."""
        if self.folder is not None and is_local(self.folder):
            sync_all(self.folder)

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turn an error of the file system into one that names the place; each package has errors of its own."""
        try:
            yield
        except MusterError:
            raise
        except Exception as error:  # fsspec's packages raise what they like
            said = (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
            raise StoreError(
                f"could not {what} at {self.where}: {said}; nothing half-done is visible there, and the same again goes on "
                "where this ended, once that is mended"
            ) from error

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _written(self, name: str) -> Iterator[str]:
        """Yield the key to write to, beside its place where the store does not write whole objects."""
        key = self._key(name)
        if self._puts_whole:
            yield key
            return
        above = key.rpartition("/")[0]
        part = f"{above}/{_NEW}{os.urandom(8).hex()}"
        self._fs.makedirs(above, exist_ok=True)
        try:
            yield part
            self._fs.mv(part, key)
        except BaseException:  # a kill of the command, too: no part of a file is left
            with suppress(Exception):  # what is raised is the reason
                self._fs.rm_file(part)
            raise


LEAST_PART_BYTES = 5 << 20
SENT_PART_BYTES, COPIED_PART_BYTES = 16 << 20, 128 << 20
MOST_PARTS = 10_000
LEAST_PATCHED_BYTES = 16 * LEAST_PART_BYTES
"""Smaller files travel whole: what is asked for costs more than it spares."""


def parts(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of an object, in order: each has at least 5 MiB, but for the last one."""
    found = list[Stretch]()
    for each in stretches:
        last = found[-1] if found and found[-1].first is None else None
        lacking = 0 if last is None else max(0, LEAST_PART_BYTES - last.size)
        if each.first is not None and each.size >= lacking + LEAST_PART_BYTES:
            if last is not None:  # it is filled up from what follows
                found[-1] = replace(last, size=last.size + lacking)
            found.append(Stretch(each.at + lacking, each.size - lacking, each.first + lacking))
        elif last is not None:
            found[-1] = replace(last, size=last.size + each.size)
        else:
            found.append(replace(each, first=None))
    return [part for each in found for part in _evenly(each)]


def sent(found: Iterable[Stretch]) -> int:
    """Return the bytes that travel."""
    return sum(each.size for each in found if each.first is None)


def _evenly(whole: Stretch) -> Iterator[Stretch]:
    most = SENT_PART_BYTES if whole.first is None else COPIED_PART_BYTES
    count = -(-whole.size // most)
    cuts = [whole.size * number // count for number in range(count + 1)]
    for begin, end in pairwise(cuts):
        yield Stretch(whole.at + begin, end - begin, None if whole.first is None else whole.first + begin)


def patch(store: Any, key: str, *, before: str, path: str, found: Iterable[Stretch]) -> None:
    """Make an object of the parts of another one and of a file of this machine; it is there whole, or not at all.

    :param store: a file system of s3fs. `before`: the other object's key. `path`: the file's.
    """
    bucket, name, _ = store.split_path(key)
    place = {"Bucket": bucket, "Key": name}
    other, rest, _ = store.split_path(before)
    upload = store.call_s3("create_multipart_upload", **place)["UploadId"]
    done = list[dict[str, Any]]()
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - text
            for number, each in enumerate(found, start=1):
                about = {**place, "UploadId": upload, "PartNumber": number}
                if each.first is None:
                    file.seek(each.at)
                    answer = store.call_s3("upload_part", Body=file.read(each.size), **about)
                else:
                    answer = store.call_s3(
                        "upload_part_copy",
                        CopySource={"Bucket": other, "Key": rest},
                        CopySourceRange=f"bytes={each.first}-{each.first + each.size - 1}",
                        **about,
                    )["CopyPartResult"]
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
        store.call_s3("complete_multipart_upload", MultipartUpload={"Parts": done}, UploadId=upload, **place)
    except BaseException:
        with suppress(Exception):  # what is raised is the reason
            store.call_s3("abort_multipart_upload", UploadId=upload, **place)
        raise
