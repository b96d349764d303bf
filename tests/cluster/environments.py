"""The environments that the tests' jobs run in, built before the cluster is: it has no way out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import image_digest

NAMES = (
    "dask",
    "etl",
    "ingest",
    "keras",
    "notebook",
    "python",
    "ray",
    "report",
    "spark",
    "train",
    "validate",
)
COMPILED = "horovod"
SERVING = ("kserve", "seldon", "serve")


def build(names: Sequence[str] | None = None) -> None:
    """Build what the cache lacks of them, which takes minutes.

    :param names: those of jobs if it is not given, Horovod's where there is a compiler for it.
    :raises ImageError: uv could not build one.
    """
    made = Environments(Settings.load().cache)
    for name in names or ((*NAMES, COMPILED) if has_compiler() else NAMES):
        folder = shipped("images") / name
        made.ensure(name, folder, image_digest(folder), lambda line: print(line, file=sys.stderr))


def has_compiler() -> bool:
    """Whether a C++ compiler is here, by the names that the Makefile looks for."""
    named = os.environ.get("CXX")
    return any(map(shutil.which, [named] if named else ["c++", "g++", "clang++"]))
