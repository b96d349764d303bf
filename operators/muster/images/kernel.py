"""Links packages of the image `notebook`, and muster, for a Jupyter kernel that runs in another image.

The kernel runs in that image's Python and looks into the folder of links last, so the image's own packages win.
The folder has no other packages: a cell cannot import what a job in the image could not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import muster

IMAGE = "notebook"
_NEEDS = ("ipykernel", "fsspec", "blake3", "httpx", "pathspec")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def link(folder: Path, site: Path) -> None:
    """Fill `folder` with links to the packages that a kernel needs.

    :param site: where the packages of the image `notebook` are.
    """
    for each in _with_all_they_need(_NEEDS, site):
        _link(folder, each, _tops(each))
    (folder / "muster").symlink_to(Path(muster.__file__).parent, target_is_directory=True)
    mine = distribution("airflow-provider-muster")  # by its entry point fsspec finds volume://
    _link(folder, mine, {name for name in _tops(mine) if name.endswith(".dist-info")})


def _link(folder: Path, package: Distribution, names: Iterable[str]) -> None:
    for name in names:
        target = Path(str(package.locate_file(name))).resolve()
        if target.exists() and not (folder / name).is_symlink():  # two packages may share a folder
            (folder / name).symlink_to(target, target_is_directory=target.is_dir())


def _tops(package: Distribution) -> set[str]:
    """Return what a package installed at the top of site-packages: its modules and its metadata."""
    tops = {path.parts[0] for path in package.files or ()}
    return {name for name in tops if name not in ("..", "__pycache__") and not name.endswith(".pth")}


def _with_all_they_need(names: Sequence[str], site: Path) -> Iterator[Distribution]:
    known = {_plain(each.name): each for each in distributions(path=[str(site)])}
    waiting, seen = [_plain(name) for name in names], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        yield known[name]
        waiting += [_plain(text) for text in known[name].requires or () if "extra ==" not in text]


def _plain(requirement: str) -> str:
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
