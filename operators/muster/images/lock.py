"""An image's lock: what it holds, whether it is what ``requirements.in`` asks for, and how it is made.

``requirements.in`` is resolved into ``requirements.txt``, with hashes, for every platform and Python that muster runs
on. A package of the author's own lies in the image's folder: ``./NAME`` in ``requirements.in``, or a wheel,
``./wheels/FILE.whl``. A folder is built into ``wheels/``, and the lock names the wheel and its hash.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.errors import ImageError, SpecError
from muster.images.uv import Uv
from muster.volumes.durability import write_whole
from muster.volumes.snapshot import collect, digest

LOCK = "requirements.txt"
WANTED = "requirements.in"
RECIPE = "image.toml"
_OLDEST_PYTHON = "3.11"

_BUILT_FROM = re.compile(
    r"# (?P<source>\./\S+) is (?P<wheel>\./\S+), built from (?P<digest>b3:[0-9a-f]{64})\Z"
)
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")
_WHEEL = re.compile(r"(?P<path>\./\S+\.whl)(\s|\Z)")
_COMMENT = re.compile(r"(^|\s)#.*")
_WHEELS = "wheels"
_OLDEST_ZIP = "315532800"  # 1980-01-01
_INDEX = re.compile(r"(-i|--index-url|--extra-index-url|-f|--find-links)\b")
_CHOICES = re.compile(r"--(only-binary|no-binary|prefer-binary|pre|require-hashes)\b")
_ELSEWHERE = re.compile(r"(-e\b|--editable\b|\.\./|/|file:|.*@\s*file:)")


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


def _wanted_lines(text: str) -> list[str]:
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
        if conda := next(
            (each for each in ("environment.yml", "environment.yaml") if (folder / each).is_file()), None
        ):
            return f"it holds {conda}, which is conda's and not read: write its packages, as pip names them, into {WANTED}, and {cure}"
        return (
            f"{folder} has neither {WANTED} nor {LOCK}: write the packages it needs into {WANTED}, and {cure}"
        )
    text = lock.read_text(encoding="utf-8")
    option = next((each for each in map(str.strip, entries(text)) if _is_foreign_option(each)), None)
    if option is not None:
        return f"{LOCK} holds {option!r:.80}, and a lock holds no address and no other file: take the line out; {index_hint()}"
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
    for line in _wanted_lines(wanted.read_text(encoding="utf-8")):
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
    built = {match["source"]: match for match in map(_BUILT_FROM.match, lock.splitlines()) if match}
    for line in _wanted_lines((folder / WANTED).read_text(encoding="utf-8")):
        source = folder / line
        if not line.startswith("./") or not source.is_dir():
            continue
        if line not in built:
            yield f"{WANTED} names {line}, which the lock does not hold"
        elif built[line]["digest"] != _source_digest(source):
            yield f"{line} has changed since its wheel was built"


def names_in(lock: str) -> set[str]:
    """Return the names of all packages of a lock, as PyPI normalizes them."""
    return {name for name in map(package, entries(lock)) if name}


def _source_digest(source: Path) -> str:
    """The digest of a package's files, without what building it or running it leaves there."""
    return digest(source, [name for name in collect(source) if not _made(name)])


def _made(name: str) -> bool:
    parts = name.split("/")
    return parts[0] in ("build", "dist") or any(part.endswith(".egg-info") for part in parts)


def _version(entry: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+==([^\s;\\]+)", entry)
    return match[1] if match else ""


def _is_hashed(entry: str) -> bool:
    return "--hash=" in entry or _CHOICES.match(entry.lstrip()) is not None


def _is_foreign_option(entry: str) -> bool:
    """Whether an entry is an option that says where packages come from, or names another file."""
    return entry.startswith("-") and _CHOICES.match(entry) is None


def _first(entry: str) -> str:
    return entry.split("\\", 1)[0].strip()


def lock_image(name: str, folder: Path, uv_cache: Path) -> Path:
    """Resolve ``requirements.in`` of an image's folder into ``requirements.txt``, and return that.

    What the lock holds already keeps its version where it still can: delete the lock to renew all.
    The lock holds no address, so that it is the same one wherever packages come from.

    :raises ImageError: it cannot be resolved, or no hash can be had of a package; the lock is as it was.
    """
    with _as_it_was(folder / _WHEELS):
        _lock(name, folder, _uv(name, folder, uv_cache))
    left = trouble(folder)
    if left:
        raise ImageError(f"image {name}: {left}")
    return folder / LOCK


@contextmanager
def _as_it_was(wheels: Path) -> Iterator[None]:
    """Bring the wheels back where no lock can be made of the new ones: the lock that is there names these."""
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(scratch) / _WHEELS
        if wheels.is_dir():
            shutil.copytree(wheels, before)
        try:
            yield
        except BaseException:
            shutil.rmtree(wheels, ignore_errors=True)
            if before.is_dir():
                shutil.copytree(before, wheels)
            raise


def _lock(name: str, folder: Path, uv: Uv) -> None:
    lines, built = [], []
    for line in _wanted_lines((folder / WANTED).read_text(encoding="utf-8")):
        if _INDEX.match(line):
            raise ImageError(
                f"image {name}: {WANTED} holds {line!r:.120}, and a lock holds no address: take the line out, and name the index "
                "in UV_INDEX, in the environment of every command that locks or builds"
            )
        if _ELSEWHERE.match(line):
            raise ImageError(
                f"image {name}: {WANTED} names {line!r:.120}, which does not travel with the image: put the package's "
                f"folder or wheel into {folder}, and write its path there, such as ./mylib"
            )
        if line.startswith("./") and (folder / line).is_dir():
            wheel = _wheel(uv, folder, line)
            built.append(f"# {line} is {wheel}, built from {_source_digest(folder / line)}\n")
            line = wheel
        lines.append(line)
    lock = _resolved(uv, folder, lines)
    unhashed = [entry.strip() for entry in entries(lock) if "--hash=" not in entry]
    if unhashed:
        raise ImageError(
            f"image {name}: no hash can be had of {unhashed[0]!r:.120}, so it could never be built: name a release of an "
            f"index, or put the package's folder or wheel into {folder} and write its path, such as ./mylib"
        )
    write_whole(folder / LOCK, "".join(built) + lock)


def index_hint() -> str:
    """Say how a package index of one's own is named, and what of pip's is set here and not read."""
    unread = [name for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if os.environ.get(name)]
    hint = "A package index of your own is named in UV_INDEX"
    return f"{hint}; {' and '.join(unread)} is not read" if unread else hint


def _uv(name: str, folder: Path, cache: Path) -> Uv:
    return Uv(name, folder, cache, {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", _OLDEST_ZIP)})


def _resolved(uv: Uv, folder: Path, lines: list[str]) -> str:
    """Return the lock of some requirements, with the versions of the lock that is there where they still can be."""
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / LOCK
        if (folder / LOCK).is_file():
            shutil.copyfile(folder / LOCK, lock)
        uv.run(
            *("pip", "compile", "--quiet", "--universal", "--python-version", _OLDEST_PYTHON),
            *("--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"),
            *("-", "-o", str(lock)),
            given="".join(f"{line}\n" for line in lines),
            failed=f"could not resolve {folder / WANTED}",
            cure=f"Mend {WANTED}, or the network that uv speaks of; the lock is as it was. {index_hint()}",
        )
        return lock.read_text(encoding="utf-8")


def _wheel(uv: Uv, folder: Path, source: str) -> str:
    """Build a package's folder into a wheel beside the lock, in place of what was built from it before."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "source"  # setuptools leaves a folder build/ behind
        shutil.copytree(folder / source, copy, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
        uv.run(
            *("build", "--quiet", "--wheel", "--out-dir", f"{scratch}/made", str(copy)),
            failed=f"could not build {source}",
            cure=f"Mend its pyproject.toml; {LOCK} is as it was",
        )
        (made,) = Path(scratch, "made").glob("*.whl")
        target = folder / _WHEELS
        target.mkdir(exist_ok=True)
        for old in target.glob(f"{made.name.partition('-')[0]}-*.whl"):
            old.unlink()
        shutil.move(made, target / made.name)
    return f"./{_WHEELS}/{made.name}"
