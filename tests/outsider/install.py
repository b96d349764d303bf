"""Installs the outsider's extension, and others, as pip would: a package and the metadata of its distribution."""

from __future__ import annotations

import shutil
from pathlib import Path

COUNTS = Path(__file__).parent / "counts"


def install(folder: Path, **entries: str) -> Path:
    """Put the package and its metadata into a folder of the import path. :param entries: further extensions, by name."""
    shutil.copytree(COUNTS, folder / "counts", dirs_exist_ok=True)
    return declare(folder, "counts", counts="counts:EXTENSION", **entries)


def declare(folder: Path, distribution: str, **entries: str) -> Path:
    """Write the metadata of a distribution with these extensions, and return the folder."""
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    lines = ["[console_scripts]", "x = x:x", "[muster.extensions]"]
    lines += [f"{name} = {place}" for name, place in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder
