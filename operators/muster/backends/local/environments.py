"""Images on one machine: a venv made from an image's lock by uv, once, and kept by the lock's digest.

An image is a folder: ``requirements.txt`` (the lock, with hashes) and perhaps ``image.toml``::

    [build]
    no_isolation = ["horovod"]  # built against what the rest of the lock installed
    [build.env]
    CMAKE_PREFIX_PATH = "{image}/lib"  # {image} is the venv's folder

The folder travels as a snapshot in the store, so a job finds its lock wherever it runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

from muster.backends.local.places import locked, locked_if_free
from muster.core.errors import ImageError, SpecError
from muster.core.names import check_label
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.base import Store

LOCK = "requirements.txt"
RECIPE = "image.toml"

Progress = Callable[[str], None]

_COMPLETE = ".muster-complete"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")
_LAST_LINES = 12
_BEAT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One venv in the cache. `size_bytes` counts a file that is linked from uv's cache as its own."""

    name: str
    digest: str
    path: Path
    complete: bool
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What an image says about how it is built."""

    no_isolation: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def image_folders(settings: Settings, *roots: Path) -> tuple[Path, ...]:
    """Return where images are looked for: below each of `roots` (the Dag's folder, the bundle), then more."""
    return (*(root / "images" for root in roots), *settings.images, shipped("images"))


def find_image(name: str, folders: Iterable[Path]) -> Path:
    """Return the folder of the image `name`, the first in `folders`.

    :raises SpecError: none is called so, or it has no lock; the message names those that are there.
    """
    check_label("image", name)
    searched = list(dict.fromkeys(folders))
    for folder in searched:
        if (folder / name / LOCK).is_file():
            return folder / name
        if (folder / name).is_dir():
            raise SpecError(
                f"image {name!r}: {folder / name} has no {LOCK}; lock its requirements.in with "
                f"`uv pip compile --universal --generate-hashes requirements.in -o {LOCK}`"
            )
    known = sorted({path.parent.name for folder in searched for path in folder.glob(f"*/{LOCK}")})
    raise SpecError(
        f"image {name!r} is in none of {', '.join(map(str, searched))}; known are: "
        f"{', '.join(known) or 'none'}. Add a folder {name}/ with a {LOCK}, or name more folders in MUSTER_IMAGES"
    )


def put_image(store: Store, folder: Path) -> str:
    """Keep an image's lock and recipe in the store and return the digest that a spec carries."""
    return store.put(folder, [name for name in (LOCK, RECIPE) if (folder / name).is_file()])


class Environments:
    """The venvs below one cache folder."""

    def __init__(self, cache: Path) -> None:
        self._root = cache / "images"
        self._uv_cache = cache / "uv"

    def ensure(
        self,
        name: str,
        lock_folder: Path,
        digest: str,
        progress: Progress = lambda _line: None,
    ) -> Path:
        """Return the Python of the image's venv, built now if it is not there yet.

        Two that ask together build it once. What a crash left half-built is built again.

        :param lock_folder: holds the lock and perhaps the recipe.
        :param digest: of that folder, from :func:`put_image`.
        :param progress: is told what happens, a line every few seconds; an exception from it ends the build.
        :raises ImageError: uv could not build it; the message holds uv's last lines.
        """
        home = self._home(name, digest)
        if _is_complete(home):
            return _python(home)
        lock = home.with_name(f".{home.name}.lock")
        with locked_if_free(lock) as mine:
            if mine:
                return self._ensure(name, lock_folder, home, progress)
        progress(f"image {name}: waiting for another job that builds it")
        with locked(lock):
            return self._ensure(name, lock_folder, home, progress)

    def ls(self) -> list[Environment]:
        """Return every venv of the cache, by name."""
        if not self._root.is_dir():
            return []
        return [
            Environment(
                name=path.name.rpartition("-")[0].rpartition("-")[0],
                digest=path.name.split("-")[-2],
                path=path,
                complete=_is_complete(path),
                size_bytes=_size(path),
            )
            for path in sorted(self._root.iterdir())
            if path.is_dir()
        ]

    def _home(self, name: str, digest: str) -> Path:
        python = f"py{sys.version_info.major}{sys.version_info.minor}"
        return self._root / f"{name}-{digest.removeprefix('b3:')[:12]}-{python}"

    def _ensure(self, name: str, lock_folder: Path, home: Path, progress: Progress) -> Path:
        if not _is_complete(home):
            shutil.rmtree(home, ignore_errors=True)
            _Build(name, lock_folder, home, self._uv_cache, progress).run()
            (home / _COMPLETE).touch()
        return _python(home)


class _Build:
    """One venv in the making."""

    def __init__(
        self,
        name: str,
        lock_folder: Path,
        home: Path,
        uv_cache: Path,
        progress: Progress,
    ) -> None:
        self._name = name
        self._lock = lock_folder / LOCK
        self._recipe = _read_recipe(name, lock_folder / RECIPE)
        self._home = home
        self._progress = progress
        extra = {key: text.replace("{image}", str(home)) for key, text in self._recipe.env.items()}
        self._env = {
            **os.environ,
            "UV_CACHE_DIR": str(uv_cache),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",
            "VIRTUAL_ENV": str(home),
            **extra,
        }

    def run(self) -> None:
        """Make the venv and install the whole lock into it."""
        try:
            lock = self._lock.read_text(encoding="utf-8")
        except OSError as error:
            raise ImageError(f"image {self._name}: its lock {self._lock} cannot be read ({error})") from error
        entries = _entries(lock)
        self._uv("venv", "--python", _base_python(), "--no-project", str(self._home), doing="making its venv")
        if not entries:
            return
        first = [entry for entry in entries if _package(entry) not in self._recipe.no_isolation]
        self._progress(f"image {self._name}: installing {len(entries)} packages")
        if len(first) < len(entries):
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as part:
                part.write("".join(first))
                part.flush()
                self._sync(Path(part.name), doing=f"installing {len(first)} packages")
        self._sync(self._lock, doing=f"installing {len(entries)} packages")

    def _sync(self, lock: Path, *, doing: str) -> None:
        apart = [
            word
            for package in self._recipe.no_isolation
            for word in ("--no-build-isolation-package", package)
        ]
        self._uv("pip", "sync", "--require-hashes", *apart, str(lock), doing=doing)

    def _uv(self, *arguments: str, doing: str) -> None:
        began = beat = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = subprocess.Popen(
                [_uv_program(), "--color", "never", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                while not _ended(process):
                    if time.monotonic() - beat >= _BEAT_SECONDS:
                        beat = time.monotonic()
                        self._progress(f"image {self._name}: {doing}, {beat - began:.0f} s")
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                said.seek(0)
                raise ImageError(_failure(self._name, doing, process.returncode, said.read()))


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def _failure(name: str, doing: str, code: int, said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()][-_LAST_LINES:]
    shown = "\n".join(f"  {line}" for line in lines)
    return (
        f"image {name}: uv failed while {doing} (exit code {code})\n{shown}\n"
        f"Mend the image's {LOCK}, or the network or disk that uv speaks of, and run again: "
        "what was downloaded is kept"
    )


def _read_recipe(name: str, path: Path) -> _Recipe:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _Recipe()
    except (ValueError, OSError) as error:
        raise ImageError(f"image {name}: {RECIPE} cannot be read ({error})") from error
    build = document.get("build", {})
    unknown = {*document} - {"build"} or {*build} - {"no_isolation", "env"}
    packages, env = build.get("no_isolation", []), build.get("env", {})
    if unknown or not isinstance(packages, list) or not all(isinstance(v, str) for v in env.values()):
        raise ImageError(
            f"image {name}: {RECIPE} may hold [build] with no_isolation, a list of packages, and "
            f"[build.env] with texts; found {', '.join(sorted(unknown)) or build}"
        )
    return _Recipe(no_isolation=tuple(map(_normal, packages)), env=env)


def _entries(lock: str) -> list[str]:
    """Cut a lock into its requirements, each with the lines of hashes that belong to it."""
    joined = re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n?", lock)
    return [entry for entry in joined if _NAME.match(entry)]


def _package(entry: str) -> str:
    match = _NAME.match(entry)
    return _normal(match[1]) if match else ""


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _uv_program() -> str:
    from uv import find_uv_bin  # only a build needs it

    return find_uv_bin()


def _base_python() -> str:
    return getattr(sys, "_base_executable", "") or sys.executable


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _is_complete(home: Path) -> bool:
    return (home / _COMPLETE).exists() and os.access(_python(home), os.X_OK)


def _size(root: Path) -> int:
    return sum(
        entry.stat(follow_symlinks=False).st_size
        for folder, _, names in os.walk(root)
        for entry in map(Path(folder).joinpath, names)
    )
