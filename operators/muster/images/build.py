"""Builds one venv from an image's lock with uv."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from muster.core.errors import ImageError
from muster.images.lock import LOCK, RECIPE, entries, index_hint, normal, package
from muster.images.uv import Uv

Progress = Callable[[str], None]

_CURE = f"Mend the image's {LOCK}, or the network or disk that uv speaks of, and run again: what was downloaded is kept. "


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What an image says about how it is built.

    :param against: what those without isolation are built against; all others of the lock where it names none.
    """

    no_isolation: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Build:
    """One venv in the making.

    :param uv_cache: where uv keeps what it downloaded.
    """

    def __init__(self, name: str, lock_folder: Path, home: Path, uv_cache: Path, progress: Progress) -> None:
        self._name = name
        self._lock = lock_folder / LOCK
        self._recipe = _read_recipe(name, lock_folder / RECIPE)
        self._home = home
        self._uv_cache = uv_cache
        self._progress = progress
        extra = {key: text.replace("{image}", str(home)) for key, text in self._recipe.env.items()}
        self._variables = {"VIRTUAL_ENV": str(home)} | extra

    def run(self) -> None:
        """Make the venv and install the whole lock into it."""
        try:
            lock = self._lock.read_text(encoding="utf-8")
        except OSError as error:
            raise ImageError(f"image {self._name}: its lock {self._lock} cannot be read ({error})") from error
        locked = entries(lock)
        self._run(
            "venv", "--python", _base_python(), "--no-project", str(self._home), doing="making its venv"
        )
        if not locked:
            return
        first = [entry for entry in locked if package(entry) not in self._recipe.no_isolation]
        self._progress(f"image {self._name}: installing {_count(locked)}")
        if len(first) < len(locked):
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as part:
                part.write("".join(first))
                part.flush()
                self._sync(Path(part.name), doing=f"installing {_count(first)}")
            apart = ", ".join(self._recipe.no_isolation)
            self._sync(
                self._lock,
                "--no-build-isolation",
                doing=f"building {apart}",
                cache=self._built_against(first),
            )
        else:
            self._sync(self._lock, doing=f"installing {_count(locked)}")

    def _built_against(self, first: Sequence[str]) -> Path:
        """Return a cache of uv's for wheels that were built against this: uv itself looks at their source alone."""
        against = [
            each for each in first if not self._recipe.against or package(each) in self._recipe.against
        ]
        key = repr((sys.version_info[:2], sorted(against), sorted(self._recipe.env.items())))
        return self._uv_cache / "against" / hashlib.sha256(key.encode()).hexdigest()[:16]

    def _sync(self, lock: Path, *options: str, doing: str, cache: Path | None = None) -> None:
        self._run("pip", "sync", "--require-hashes", *options, str(lock), doing=doing, cache=cache)

    def _run(self, *words: str, doing: str, cache: Path | None = None) -> None:
        Uv(self._name, self._lock.parent, cache or self._uv_cache, self._variables).run(
            *words,
            failed=f"failed while {doing}",
            cure=_CURE + index_hint(),
            beat=lambda seconds: self._progress(f"image {self._name}: {doing}, {seconds:.0f} s"),
        )


def _read_recipe(name: str, path: Path) -> _Recipe:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _Recipe()
    except (ValueError, OSError) as error:
        raise ImageError(f"image {name}: {RECIPE} cannot be read ({error})") from error
    build = document.get("build", {})
    if not isinstance(build, dict):
        build = {"build": build}  # no key that is known
    apart, against, env = build.get("no_isolation", []), build.get("against", []), build.get("env", {})
    known = {*document} <= {"build"} and {*build} <= {"no_isolation", "against", "env"}
    if not known or not _texts(apart, list) or not _texts(against, list) or not _texts(env, dict):
        raise ImageError(
            f"image {name}: {RECIPE} may hold [build] with no_isolation and against, lists of packages, and "
            f"[build.env] with texts by name; found {document!r:.200}"
        )
    return _Recipe(no_isolation=tuple(map(normal, apart)), against=tuple(map(normal, against)), env=env)


def _texts(values: Any, kind: type) -> bool:
    inner = values.values() if isinstance(values, dict) else values
    return isinstance(values, kind) and all(isinstance(value, str) for value in inner)


def _count(entries: list[str]) -> str:
    return f"{len(entries)} package{'s' * (len(entries) != 1)}"


def _base_python() -> str:
    return getattr(sys, "_base_executable", "") or sys.executable
