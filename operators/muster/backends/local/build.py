"""Builds one venv from an image's lock with uv."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tomllib

from muster.backends.local.requirements import LOCK, RECIPE, entries, normal, package
from muster.backends.local.spawn import die_with
from muster.core.errors import ImageError

Progress = Callable[[str], None]

_LAST_LINES = 12
_BEAT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What an image says about how it is built."""

    no_isolation: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Build:
    """One venv in the making.

    :param uv_cache: where uv keeps what it downloaded.
    """

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
        locked = entries(lock)
        self._uv("venv", "--python", _base_python(), "--no-project", str(self._home), doing="making its venv")
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
            self._sync(self._lock, "--no-build-isolation", doing=f"building {apart}")
        else:
            self._sync(self._lock, doing=f"installing {_count(locked)}")

    def _sync(self, lock: Path, *options: str, doing: str) -> None:
        self._uv("pip", "sync", "--require-hashes", *options, str(lock), doing=doing)

    def _uv(self, *arguments: str, doing: str) -> None:
        began = beat = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = subprocess.Popen(
                [uv_program(), "--color", "never", *arguments],
                cwd=self._lock.parent,  # where the lock names a wheel, it is beside the lock
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with, os.getpid()),  # whoever builds it next must be alone in the venv
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
    if not isinstance(build, dict):
        build = {"build": build}  # no key that is known
    packages, env = build.get("no_isolation", []), build.get("env", {})
    known = {*document} <= {"build"} and {*build} <= {"no_isolation", "env"}
    if not known or not _texts(packages, list) or not _texts(env, dict):
        raise ImageError(
            f"image {name}: {RECIPE} may hold [build] with no_isolation, a list of packages, and [build.env] "
            f"with texts by name; found {document!r:.200}"
        )
    return _Recipe(no_isolation=tuple(map(normal, packages)), env=env)


def _texts(values: Any, kind: type) -> bool:
    inner = values.values() if isinstance(values, dict) else values
    return isinstance(values, kind) and all(isinstance(value, str) for value in inner)


def _count(entries: list[str]) -> str:
    return f"{len(entries)} package{'s' * (len(entries) != 1)}"


def uv_program() -> str:
    """Return the path of muster's own uv."""
    from uv import find_uv_bin  # only a build needs it

    return find_uv_bin()


def _base_python() -> str:
    return getattr(sys, "_base_executable", "") or sys.executable
