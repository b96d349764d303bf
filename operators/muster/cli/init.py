"""``muster init``: writes a new Dag that runs, with its image and its test, as a start for the user's own."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from muster.cli.screen import safe, say
from muster.core.errors import SpecError
from muster.core.shipped import shipped

_STARTER = "starter"
_NAME = re.compile(r"[a-z][a-z0-9]{0,29}", re.ASCII)

NEXT = (
    ("muster run {name}{option}", "from rows to a model that answers"),
    ("{folder}/work.py", "the functions of the stages: put your own data and model there"),
    ("{folder}/dag.py", "the stages, and the versions that they pass on"),
    ("{images}muster images lock {name}", "after a change of its requirements.in"),
    ("python -m pytest {test}", "its test; pip install pytest first"),
)


def init(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The Dag's id, also the name of its image, deployment and volumes."
        ),
    ],
    *,
    dags: Annotated[Path, typer.Option("--dags", help="The folder of Dags; created if missing.")] = Path(
        "dags"
    ),
) -> None:
    """Write a Dag that runs, with its image and its test.

    DAGS/NAME holds the Dag, its functions, and its image with the lock; tests/test_NAME.py, beside that folder,
    runs it. Existing files are never overwritten.
    """
    _check_name(name)
    folder, test = dags / name, dags.absolute().parent / "tests" / f"test_{name}.py"
    for path in (folder, test):
        if path.exists():
            raise SpecError(f"{path} already exists: choose another name, or move it away")
    made = shipped(_STARTER)
    try:
        test.parent.mkdir(parents=True, exist_ok=True)
        _write(made / "tests" / f"test_{_STARTER}.py", test, name, dags=dags.absolute().name)
        _write_folder(made / "dags" / _STARTER, folder, name)
    except OSError as error:
        with suppress(OSError):
            test.unlink()  # write all or nothing
        raise SpecError(f"{folder} and {test} cannot be written: {error}") from error
    for path in (*sorted(path for path in folder.absolute().rglob("*") if path.is_file()), test):
        say(safe(_shown(path)))
    say("\nNext:")
    usual = dags == Path("dags")
    words = {
        "name": name,
        "option": "" if usual else f" --dags {quote(str(dags))}",
        "folder": quote(str(folder)),
        "images": "" if usual else f"MUSTER_IMAGES={quote(str(folder / 'images'))} ",
        "test": quote(str(_shown(test))),
    }
    steps = [(safe(what.format_map(words)), why) for what, why in NEXT]
    wide = max(len(what) for what, _ in steps)
    for what, why in steps:
        say(f"  {what.ljust(wide)}  {why}")


def _shown(path: Path) -> Path:
    """Return a path relative to the working folder, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _check_name(name: str) -> None:
    """Refuse a name that is not valid for a Dag, a package, an image and a deployment."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"name {name!r:.60}: use lower-case letters and digits, first a letter, at most 30, such as flats2"
        )
    if name == "images":
        raise SpecError(f"name {name!r}: the folder of that name holds images for all Dags: choose another")
    if iskeyword(name):
        raise SpecError(f"name {name!r}: it is a keyword of Python: choose another")
    if name in sys.stdlib_module_names or find_spec(name) is not None or name in _imported_in_images():
        raise SpecError(
            f"name {name!r}: a Python package has that name, and the Dag's folder would hide it: choose another"
        )


def _imported_in_images() -> set[str]:
    """Return what the packages of the shipped images are imported as; of few that is another name than the package's."""
    from muster.images.lock import LOCK, entries, package

    locks = [path.read_text(encoding="utf-8") for path in shipped("images").glob(f"*/{LOCK}")]
    packages = {package(entry) for lock in locks for entry in entries(lock)}
    return {"azure", "google", "grpc", "mlflow", "opentelemetry", "sklearn", *packages}


def _write_folder(source: Path, target: Path, name: str) -> None:
    """Copy a folder under another name, all or nothing."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        for file in source.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                _write(file, part / str(file.relative_to(source)).replace(_STARTER, name), name)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(source: Path, target: Path, name: str, *, dags: str = "dags") -> None:
    text = source.read_text(encoding="utf-8").replace(_STARTER, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace('PROJECT / "dags"', f'PROJECT / "{dags}"'), encoding="utf-8")
