"""Reads what an image wants (``requirements.in``) and what its lock (``requirements.txt``) holds, and compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from muster.core.errors import SpecError

LOCK = "requirements.txt"
WANTED = "requirements.in"
RECIPE = "image.toml"
BUILT_FROM = re.compile(
    r"# (?P<source>\./\S+) is (?P<wheel>\./\S+), built from (?P<digest>b3:[0-9a-f]{64})\Z"
)

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")
_WHEEL = re.compile(r"(?P<path>\./\S+\.whl)(\s|\Z)")
_COMMENT = re.compile(r"(^|\s)#.*")


def entries(lock: str) -> list[str]:
    """Cut a lock into its requirements, each with the lines of hashes that belong to it."""
    joined = re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n?", lock)
    return [entry for entry in joined if entry.strip() and not entry.lstrip().startswith("#")]


def package(entry: str) -> str:
    """Return the package that an entry of a lock is of, as an index would spell it."""
    wheel = _WHEEL.match(entry)
    match = _NAME.match(wheel["path"].rpartition("/")[2].partition("-")[0] if wheel else entry)
    return normal(match[1]) if match else ""


def normal(name: str) -> str:
    """Spell a package's name as an index does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(lock: str) -> list[str]:
    """Return the paths of the wheels beside the lock that it names."""
    return [match["path"].removeprefix("./") for match in map(_WHEEL.match, entries(lock)) if match]


def wanted_lines(text: str) -> list[str]:
    """Return the lines of a ``requirements.in`` without comments and empty ones."""
    return [line for line in (_COMMENT.sub("", each).strip() for each in text.splitlines()) if line]


def trouble(folder: Path) -> str | None:
    """Say why the image in `folder` cannot be built, or would not be what its ``requirements.in`` says; None if it can.

    The text names what is wrong and the command that mends it.
    """
    name, lock = folder.name, folder / LOCK
    cure = f"run `muster images lock {name}`"
    if not lock.is_file():
        if (folder / WANTED).is_file():
            return f"it is not locked: {cure}"
        return (
            f"{folder} has neither {WANTED} nor {LOCK}: write the packages it needs into {WANTED}, and {cure}"
        )
    text = lock.read_text(encoding="utf-8")
    unhashed = next((entry for entry in entries(text) if not _is_hashed(entry)), None)
    if unhashed is not None:
        if (folder / WANTED).is_file():
            return f"{LOCK} holds {_first(unhashed)!r:.80} without a hash, so it is no lock: {cure}"
        return f"{LOCK} holds {_first(unhashed)!r:.80} without a hash, so it is no lock: rename it to {WANTED}, and {cure}"
    missing = next((path for path in wheels(text) if not (folder / path).is_file()), None)
    if missing is not None:
        return f"{LOCK} names {missing}, which is not there: {cure}, or bring the file back"
    changed = next(_changed(folder, text), None)
    return changed and f"{changed}: {cure}"


def check(folder: Path) -> None:
    """Refuse an image that cannot be built, or whose lock is out of date. :raises SpecError: it says what to run."""
    found = trouble(folder)
    if found:
        raise SpecError(f"image {folder.name!r}: {found}")


def _changed(folder: Path, lock: str) -> Iterator[str]:
    """Yield what ``requirements.in`` asks for and the lock does not hold."""
    wanted = folder / WANTED
    if not wanted.is_file():
        return
    locked: dict[str, set[str]] = {}
    for entry in entries(lock):
        locked.setdefault(package(entry), set()).add(_version(entry))
    for line in wanted_lines(wanted.read_text(encoding="utf-8")):
        yield from _missing(line, locked)
    yield from _sources(folder, lock)


def _missing(line: str, locked: dict[str, set[str]]) -> Iterator[str]:
    from packaging.requirements import (  # only an image that is looked at needs it
        InvalidRequirement,
        Requirement,
    )

    try:
        asked = Requirement(line)
    except InvalidRequirement:
        return  # an option, a path or another file: uv's to understand
    versions = locked.get(normal(asked.name))
    if versions is None:
        if asked.marker is None:  # what no platform wants is in no lock
            yield f"{WANTED} names {asked.name}, which the lock does not hold"
        return
    # The version of a wheel beside the lock, or of an address, is the author's own choice.
    fits = (asked.specifier.contains(each, prereleases=True) for each in versions if each)
    if asked.url is None and versions != {""} and not any(fits):
        yield f"{WANTED} asks for {line}, and the lock holds {', '.join(sorted(versions))}"


def _sources(folder: Path, lock: str) -> Iterator[str]:
    """Compare the packages of one's own that stand beside the lock with what their wheels were built from."""
    built = {match["source"]: match for match in map(BUILT_FROM.match, lock.splitlines()) if match}
    for line in wanted_lines((folder / WANTED).read_text(encoding="utf-8")):
        source = folder / line
        if not line.startswith("./") or not source.is_dir():
            continue
        if line not in built:
            yield f"{WANTED} names {line}, which the lock does not hold"
        elif built[line]["digest"] != source_digest(source):
            yield f"{line} has changed since its wheel was built"


def source_digest(source: Path) -> str:
    """The digest of a package's files, without what building it or running it leaves there."""
    from muster.volumes.snapshot import collect, digest

    return digest(source, [name for name in collect(source) if not _made(name)])


def _made(name: str) -> bool:
    parts = name.split("/")
    return parts[0] in ("build", "dist") or any(part.endswith(".egg-info") for part in parts)


def _version(entry: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+==([^\s;\\]+)", entry)
    return match[1] if match else ""


def _is_hashed(entry: str) -> bool:
    return "--hash=" in entry or entry.startswith("--")  # an option, such as another index


def _first(entry: str) -> str:
    return entry.split("\\", 1)[0].strip()
