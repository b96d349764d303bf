"""The environments that the tests' jobs run in, built before the cluster is: it has no way out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.runtime import ENVIRONMENTS

from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import image_digest

NAMES = (
    "airflow",
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
        python = made.ensure(name, folder, image_digest(folder), lambda line: print(line, file=sys.stderr))
        if name == "airflow":  # as its image does: a pod's root is read-only, and each would compile it again
            subprocess.run([python, "-m", "compileall", "-qq", python.parents[1] / "lib"], check=False)


def programs(name: str) -> Path:
    """Where containers see the programs of an environment that is built."""
    found = Environments(Settings.load().cache).find(name, image_digest(shipped("images") / name))
    assert found is not None, f"image {name} is not built: python -m tests.cluster build"
    return ENVIRONMENTS / found.parents[1].name / "bin"


def has_compiler() -> bool:
    """Whether a C++ compiler is here, by the names that the Makefile looks for."""
    named = os.environ.get("CXX")
    return any(map(shutil.which, [named] if named else ["c++", "g++", "clang++"]))
