"""The folders and switches of muster, read from the environment alone.

=====================  ======================================================  =======================
``MUSTER_HOME``        store, jobs, deployments: what must not be lost         the nearest ``.muster``
``MUSTER_CACHE``       environments and downloads: may be deleted at any time  ``~/.cache/muster``
``MUSTER_IMAGES``      more folders of images, ``:`` between them              none
``MUSTER_REQUIRE_GPUS`` ``1``: a gang never falls back to CPUs                 ``0``
``MUSTER_CLUSTER``     a file that says which cluster jobs go to               this machine
``MUSTER_COMPARE``     ``1``: a commit reads each file that it shares again    ``0``
``MUSTER_MIRROR``      where versions are read from that the store lacks       nowhere
=====================  ======================================================  =======================

``MUSTER_INTERPRETER_NAME`` is the path of a Python that runs the jobs of the image ``name`` on this machine, in place of
an environment made from its lock. The name is in upper case, with ``_`` for ``-`` and ``.``.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from muster.core.errors import SpecError

_HOME_NAME = ".muster"
INTERPRETER = "MUSTER_INTERPRETER_"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The folders and switches of this process. All paths are absolute.

    :param cluster: the file that says which cluster jobs go to; None is this machine.
    :param compare: whether a commit reads each file that it shares with the version before, though the file
        seems unchanged: this finds bits that flipped on the disk.
    :param mirror: where versions are read from that the store lacks, as ``muster volumes mirror`` names it; empty: nowhere.
    :param interpreters: paths by :func:`variable_name` of an image, in order; see :meth:`interpreter`.
    """

    home: Path
    cache: Path
    images: tuple[Path, ...] = field(default=())
    require_gpus: bool = False
    cluster: Path | None = None
    compare: bool = False
    mirror: str = ""
    interpreters: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, *, start: Path | None = None) -> Settings:
        """Read the settings; `start` (the working folder) is where the search for ``.muster`` begins.

        :raises SpecError: a variable has a value that is not allowed, or another user made the ``.muster`` that was found, or
            may write into it.
        """
        env = os.environ if environment is None else environment
        here = (start or Path.cwd()).absolute()
        home = _path(env, "MUSTER_HOME") or _found(here) or here / _HOME_NAME
        cache = _path(env, "MUSTER_CACHE") or _cache(env) / "muster"
        folders = [Path(part).absolute() for part in env.get("MUSTER_IMAGES", "").split(":") if part]
        return cls(
            home=home,
            cache=cache.expanduser().absolute(),
            images=tuple(folders),
            require_gpus=_switch(env, "MUSTER_REQUIRE_GPUS"),
            compare=_switch(env, "MUSTER_COMPARE"),
            mirror=env.get("MUSTER_MIRROR", ""),
            cluster=_path(env, "MUSTER_CLUSTER"),
            interpreters=tuple(
                (name.removeprefix(INTERPRETER), Path(text).expanduser().absolute())
                for name, text in sorted(env.items())
                if name.startswith(INTERPRETER) and text
            ),
        )

    def interpreter(self, image: str) -> Path | None:
        """Return the Python that runs an image's jobs on this machine in place of its lock; None where none is set.

        A cluster's backend does not look at it: there an image is a container.
        """
        return dict(self.interpreters).get(variable_name(image))

    def make_home(self) -> None:
        """Create the home folder where there is none, for its owner alone, and have git ignore it.

        One of another name may be a folder in which git has something.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.home.name == _HOME_NAME:
            # It is there; the disk is full.
            with suppress(OSError), (self.home / ".gitignore").open("x") as file:
                file.write("*\n")

    @property
    def variables(self) -> dict[str, str]:
        """The variables that lead another process to the same place."""
        found = {"MUSTER_HOME": self.home, "MUSTER_CACHE": self.cache, "MUSTER_CLUSTER": self.cluster}
        return {name: str(path) for name, path in found.items() if path is not None}

    @property
    def store(self) -> Path:
        """The folder that holds the volumes."""
        return self.home / "store"


def project_folder(start: Path | None = None) -> Path:
    """Return the folder with ``dags/`` and ``images/``: the working folder where it has one, else the nearest that has ``.muster``.

    :raises SpecError: another user made that ``.muster``, or may write into it.
    """
    here = (start or Path.cwd()).absolute()
    if any((here / name).is_dir() for name in ("dags", "images")):
        return here
    home = _found(here)
    return here if home is None else home.parent


def variable_name(image: str) -> str:
    """Return how an image is called in the name of a variable: ``TRAIN_2`` for ``train-2``."""
    return image.replace("-", "_").replace(".", "_").upper()


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]).expanduser().absolute() if env.get(name) else None


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "0")
    if value not in ("0", "1"):
        raise SpecError(f"{name} is {value!r:.40}: expected 0 or 1")
    return value == "1"


def _cache(env: Mapping[str, str]) -> Path:
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"])
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # in a container
        raise SpecError(f"{user_name(os.geteuid())} has no home folder: set HOME, or MUSTER_CACHE") from None


def _found(here: Path) -> Path | None:
    """Return the nearest ``.muster``. Airflow runs code of a home, so one that no setting names must be the user's own."""
    for folder in (here, *here.parents):
        home = folder / _HOME_NAME
        if not home.is_dir():
            continue
        own = quote(str(here / _HOME_NAME)) if here != folder else f"~/{_HOME_NAME}"
        named = (
            f"MUSTER_HOME={quote(str(home))} says that you trust all who can write there; "
            f"MUSTER_HOME={own} begins a home of your own"
        )
        for stat in (home.lstat(), home.stat()):
            if stat.st_uid != os.geteuid():
                raise SpecError(
                    f"{home} belongs to {user_name(stat.st_uid)}, and you are {user_name(os.geteuid())}: muster would run what that "
                    f"user put there, as you. {named}"
                )
        if stat.st_mode & 0o022:
            raise SpecError(
                f"other users may write into {home} (mode {stat.st_mode & 0o777:o}): muster would run what they put there, as "
                f"you. Run `chmod go-w {quote(str(home))}`. {named}"
            )
        return home
    return None


def user_name(uid: int) -> str:
    """Return what a user of this machine is called."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may have no such user
        return f"user {uid}"


def whose(error: OSError) -> str:
    """Say after a semicolon that another user owns what an error denies; empty where that is not why.

    Of a path that cannot be looked at it names the nearest folder above that can.
    """
    me, path = os.geteuid(), Path(str(error.filename or ""))
    for each in (path, *path.parents) if isinstance(error, PermissionError) and error.filename else ():
        try:
            owner = each.lstat().st_uid
        except OSError:
            continue
        told = f"; {each} belongs to {user_name(owner)}, and you are {user_name(me)}"
        return "" if owner == me else told
    return ""
