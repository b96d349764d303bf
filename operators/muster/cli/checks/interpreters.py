"""Checks of the interpreters that run images' jobs on this machine in place of their locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from configparser import Error, RawConfigParser
from pathlib import Path

from muster.core.check import Check, bad, ok, warn
from muster.core.errors import SpecError
from muster.core.settings import INTERPRETER, Settings, project_folder, variable_name

_OPTION = "interpreter."


def interpreters(settings: Settings) -> Iterator[Check]:
    """Check each interpreter that a variable or the Airflow of ``muster up`` sets; it is started, and torch in it."""
    from muster.images.folders import known_images, project_folders

    known = {variable_name(name): name for name in known_images(project_folders(settings, project_folder()))}
    for name, path in sorted({**_of_up(settings), **dict(settings.interpreters)}.items()):
        if name in known:
            yield _check(known[name], path)
        else:
            yield warn(
                f"interpreter {name}",
                f"{path}, for an image that is not here",
                f"known are: {', '.join(sorted(known))}; the variable is {INTERPRETER} and one of these",
            )


def _check(image: str, path: Path) -> Check:
    from muster.images.interpreter import look_at, torch_of

    name = f"interpreter of {image}"
    try:
        found, torch = look_at(image, path), torch_of(image, path)
    except SpecError as error:
        return bad(name, error, "jobs of this image are refused until it is set right")
    said = f"Python {found} at {path}"
    if torch is None:
        return ok(name, f"{said}, without torch")
    built = f"built for CUDA {torch.cuda}" if torch.cuda else "built for CPUs"
    if torch.cards:
        return ok(name, f"{said}, torch {torch.torch} {built}: sees {torch.cards} GPUs")
    return ok(name, f"{said}, torch {torch.torch} {built}: sees no GPU")


def _of_up(settings: Settings) -> Mapping[str, Path]:
    """What the Airflow of ``muster up`` sets under ``[muster]``, by the name of the variable that would."""
    parser = RawConfigParser()
    try:
        parser.read(settings.home / "up" / "airflow.cfg", encoding="utf-8")
    except Error:  # `muster up` refuses such a file, and names it
        return {}
    if not parser.has_section("muster"):
        return {}
    return {
        variable_name(option.removeprefix(_OPTION)): Path(text).expanduser().absolute()
        for option, text in parser.items("muster")
        if option.startswith(_OPTION) and text
    }
