"""What a version keeps of a folder that a job wrote: files and folders. A link within the folder becomes the file or folder that it names.

Links are followed once, before the commit, so that no version, mirror or reader ever meets one (docs/adr/past/0068-what-a-version-keeps.md).
Their text is resolved here, name by name and from the folder on: the kernel follows none of them, since the job that wrote the folder
may still write it.
"""

# ruff: noqa: PTH101, PTH102, PTH105, PTH108, PTH112, PTH114, PTH115, PTH120, PTH211 - paths of open folders are text

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from muster.core.holding import held, held_entries, swap
from muster.core.text import has_control

MOST_LINKED = 100_000
"""Files that may come into a version by links to folders."""

_LONGEST_PATH = 3_000  # bytes: with the store's own folders before it a path stays below PATH_MAX, 4096
_NEW = ".muster-link-"
_LONGEST_NAME = 255 - len(_NEW)  # NAME_MAX
_MOST_HOPS = 40  # as the kernel's
_COPY = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OUT, _NOWHERE, _CIRCLE = "a link out of it", "a link to nothing", "a link in a circle"

Rename = Callable[[str, str], None]


@dataclass(frozen=True, order=True)
class Odd:
    """Something that no version keeps: its path below the folder, and what it is.

    :param passing: it may be mended by a file that is written later.
    """

    path: str
    what: str
    passing: bool = False


@dataclass(frozen=True)
class _Named:
    """What a link names: a path below the folder."""

    path: str
    is_folder: bool


def refusal(holder: str, odd: Sequence[Odd]) -> str:
    """Say what a folder holds that no version keeps. :param holder: such as ``output 'model'``. :param odd: one or more."""
    more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
    return (
        f"{holder} holds {odd[0].what}, {odd[0].path!r:.200}{more}: a version keeps files, folders, and links within it as the "
        "files that they name; delete it, or write a file in its place"
    )


def look(folder: str, *, most: int | None = None) -> Iterator[Odd]:
    """Yield what no version keeps of a folder, which may be written meanwhile. :param most: look at so many entries."""
    for count, (path, entry) in enumerate(held_entries(folder)):
        if most is not None and count >= most:
            return
        found = _looked_at(folder, path, entry)
        if isinstance(found, Odd):
            yield found


def follow(folder: str, *, rename: Rename = os.replace) -> list[Odd]:
    """Put what they name in the place of all links below a folder: files by hard links, or as copies where there are none.

    It can be called again after a crash, and no link is lost by that. Where anything is odd the folder stays as it is, but for
    what an earlier link led to.

    :param rename: rename(2), for a file system that needs more than one call.
    :return: what no version keeps, sorted by path.
    """
    found, cut_off = _found(folder)
    if cut_off:
        for path in reversed(cut_off):  # what is within another one comes first
            _end_cut_off(folder, path, rename)
        return follow(folder, rename=rename)
    if odd := sorted(each for each in found.values() if isinstance(each, Odd)):
        return odd
    links = {path: each for path, each in found.items() if isinstance(each, _Named)}
    left = MOST_LINKED
    while links:
        # A folder is whole once it holds no link any more.
        ready = [
            path
            for path, named in links.items()
            if not (named.is_folder and any(each.startswith(f"{named.path}/") for each in links))
        ]
        if not ready:
            return sorted(Odd(path, _CIRCLE) for path in links)
        for path in ready:
            left -= _replace(folder, path, links.pop(path), rename, left=left)
            if left < 0:
                return [Odd(path, f"links to more than {MOST_LINKED} files in folders")]
    return []


def _found(folder: str) -> tuple[dict[str, Odd | _Named], list[str]]:
    """Return what is neither a file nor a folder, by its path, and the paths of what a crash left."""
    found, cut_off = dict[str, Odd | _Named](), list[str]()
    for path, entry in held_entries(folder):
        if entry.name.startswith(_NEW):
            cut_off.append(path)
        elif (each := _looked_at(folder, path, entry)) is not None:
            long = isinstance(each, _Named) and each.is_folder and len(entry.name.encode()) > _LONGEST_NAME
            said = f"a link to a folder that has a name of more than {_LONGEST_NAME} bytes"
            found[path] = Odd(path, said) if long else each
    return found, cut_off


def make_relative(folder: str) -> None:
    """Make the absolute links below a folder that lead into it relative: elsewhere the folder has another path.

    Others may write the folder meanwhile.
    """
    for path, entry in held_entries(folder):
        if not entry.is_symlink():
            continue
        try:
            text = os.readlink(entry.path)
            if (better := relative(folder, os.path.dirname(path), text)) != text:
                new = f"{os.path.dirname(entry.path)}/{_NEW}{os.getpid()}"
                os.symlink(better, new)
                os.replace(new, entry.path)
        except OSError:  # its writer has replaced it; what stays absolute is refused at the commit
            continue


def relative(folder: str, inner: str, text: str) -> str:
    """Return the text of a link in `inner` below a folder: where it is absolute and leads into the folder, a relative one."""
    below = _inside(folder, text)
    return text if below is None else os.path.relpath(below, inner or ".")


def _looked_at(folder: str, path: str, entry: os.DirEntry[str]) -> Odd | _Named | None:
    """Return what a link names, and what is odd; None for a file or folder."""
    if has_control(entry.name):
        odd = any("\ud800" <= char <= "\udfff" for char in entry.name)
        return Odd(path, "a name that is not UTF-8" if odd else "a name with a control character")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return Odd(path, f"a path of more than {_LONGEST_PATH:,} bytes")
    try:
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):  # without a call
            return None
        kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
        return _named(folder, path) if kind == stat.S_IFLNK else Odd(path, _KINDS.get(kind, "something else"))
    except FileNotFoundError:  # it was deleted meanwhile
        return None


def _named(folder: str, link: str) -> Odd | _Named:
    """Follow a link name by name."""
    done, left, hops, is_folder = list[str](), deque(_names(link)), 0, True
    while left:
        name = left.popleft()
        if name == "..":
            if not done:
                return Odd(link, _OUT)
            done.pop()
            continue
        found = _at(folder, done, name) if is_folder else None
        if found is None:
            return Odd(link, _NOWHERE, passing=True)
        text, is_folder = found
        if text is None:
            done.append(name)
            continue
        hops += 1
        if hops > _MOST_HOPS:
            return Odd(link, _CIRCLE, passing=True)
        if text.startswith("/"):
            below = _inside(folder, text)
            if below is None:
                return Odd(link, _OUT)
            done, text = [], below
        left.extendleft(reversed(_names(text)))
    path = "/".join(done)
    if is_folder and (not path or link.startswith(f"{path}/")):
        return Odd(link, _CIRCLE)
    return _Named(path, is_folder)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _at(folder: str, above: Sequence[str], name: str) -> tuple[str | None, bool] | None:
    """Return the text of a link, and whether what is there may hold more names; None where nothing is."""
    try:
        with held(folder, "/".join(above)) as here:
            text = _text(f"{here}/{name}")
            return text, text is not None or os.path.isdir(f"{here}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def _inside(folder: str, text: str) -> str | None:
    """Return the part of an absolute path below the folder; None where it leads elsewhere, or is relative."""
    for top in (folder, os.path.realpath(folder)):
        if text == top or text.startswith(f"{top}/"):
            return text[len(top) + 1 :] or "."
    return None


def _end_cut_off(folder: str, path: str, rename: Rename) -> None:
    """Put a tree whose link was taken away before a crash in that link's place: it is whole. Anything else is made anew."""
    above, _, name = path.rpartition("/")
    with held(folder, above) as here:
        new, link = f"{here}/{name}", f"{here}/{name.removeprefix(_NEW)}"
        if os.path.isdir(new) and not os.path.islink(new) and not os.path.lexists(link):
            rename(new, link)
        else:
            _remove(new)


def _replace(folder: str, path: str, named: _Named, rename: Rename, *, left: int) -> int:
    """Put what a link names in its place; return how many files a folder brought."""
    above, _, name = path.rpartition("/")
    with held(folder, above) as here:
        if not os.access(here, os.W_OK):  # it is a copy of an input's
            os.chmod(here, 0o700)
        new = f"{here}/{_NEW}{name if named.is_folder else ''}"
        if not named.is_folder:
            _link(folder, named.path, new)
            rename(new, f"{here}/{name}")
            return 0
        count = _link_tree(folder, named.path, new, left=left)
        if count <= left and not swap(new, f"{here}/{name}"):
            os.unlink(f"{here}/{name}")
            rename(new, f"{here}/{name}")
        _remove(new)
        return count


def _link_tree(folder: str, target: str, new: str, *, left: int) -> int:
    os.mkdir(new)
    count = 0
    for path, entry in held_entries(folder, target):
        below = f"{new}{path[len(target) :]}"
        if entry.is_dir(follow_symlinks=False):
            os.mkdir(below)
        elif count < left:
            _link(folder, path, below)
            count += 1
        else:
            return left + 1
    return count


def _link(folder: str, target: str, new: str) -> None:
    above, _, name = target.rpartition("/")
    with held(folder, above) as there:
        source = f"{there}/{name}"
        try:
            os.link(source, new, follow_symlinks=False)
        except FileExistsError:  # a reply was lost, and it was asked for twice
            if not os.path.samestat(os.lstat(source), os.lstat(new)):
                raise
        except OSError as error:
            if error.errno not in _COPY:
                raise
            shutil.copy(source, new, follow_symlinks=False)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
