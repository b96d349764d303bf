"""A Python that is on this machine already and runs an image's jobs, in place of an environment made from its lock.

It is asked for its version and its packages, which a job's record holds: nothing else tells what such a job ran with.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from muster.core.errors import ImageError, SpecError
from muster.core.job import Interpreter
from muster.core.linux import die_with
from muster.core.settings import INTERPRETER, variable_name
from muster.volumes.manifest import digest_of

OLDEST = (3, 10)  # for which the worker is written
ANSWER_SECONDS = 30.0
_CARDS_SECONDS = 120.0  # a first import of torch reads gigabytes
_LONGEST_BYTES = 1 << 22
MARK = "muster-interpreter:"

# Both run in the interpreter, which may be any Python 3, and see the packages that a job sees.
_ASK = f"""
import json, platform, sys
sys.path = [path for path in sys.path if path]
found = {{}}
if sys.version_info >= (3, 8):
    from importlib import metadata
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), each.version or "")
packages = sorted("==".join(pair) for pair in found.items())
print("{MARK}" + json.dumps(
    {{"numbers": list(sys.version_info[:2]), "version": platform.python_version(), "packages": packages}}
))
"""
_ASK_FOR_CARDS = f"""
import json, torch
cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("{MARK}" + json.dumps({{"torch": torch.__version__, "cuda": torch.version.cuda or "", "cards": cards}}))
"""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What torch says in an interpreter. :param cuda: the version that it is built for; empty where for none."""

    torch: str
    cuda: str
    cards: int


def look_at(image: str, path: Path) -> Interpreter:
    """Ask the Python that is to run an image's jobs what it is; this takes as long as a Python's start.

    :raises SpecError: it is no Python of use; the message says what is there, and how to set another.
    """
    if not os.path.lexists(path):
        raise SpecError(f"{_called(image, path)} is not there: {_cure(image)}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SpecError(f"{_called(image, path)} is no file that may be run: {_cure(image)}")
    found = _ask(image, path, _ASK, seconds=ANSWER_SECONDS)
    numbers = tuple(found["numbers"])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SpecError(
            f"{_called(image, path)} is Python {found['version']}, need {oldest} or newer: {_cure(image)}"
        )
    packages = found["packages"]
    return Interpreter(
        path=str(path),
        version=found["version"],
        digest=digest_of("\n".join(packages).encode()),
        packages=len(packages),
    )


def look_again(image: str, recorded: Interpreter) -> Path:
    """Return the Python that is to run a job, if it is still what the job's record says.

    :raises ImageError: it is gone, or other packages are in it now.
    """
    try:
        found = look_at(image, Path(recorded.path))
    except SpecError as error:
        raise ImageError(str(error)) from error
    if found != recorded:
        raise ImageError(
            f"the interpreter of image {image}, {recorded.path}, was {recorded} when the job was submitted, and is "
            f"{found} now: run the job again, so that its record says what it ran with"
        )
    return Path(recorded.path)


def torch_of(image: str, path: Path) -> Torch | None:
    """Import torch in an interpreter and return what it says of cards; None where torch is not there.

    :raises SpecError: it cannot be imported.
    """
    packages = _ask(image, path, _ASK, seconds=ANSWER_SECONDS)["packages"]
    if not any(each.startswith("torch==") for each in packages):
        return None
    return Torch(**_ask(image, path, _ASK_FOR_CARDS, seconds=_CARDS_SECONDS))


def _ask(image: str, path: Path, program: str, *, seconds: float) -> dict[str, Any]:
    """Run a program in an interpreter and return the JSON that it prints. :raises SpecError: it does not answer so."""
    with tempfile.TemporaryFile("w+b") as said:
        try:
            process = subprocess.Popen(
                [path, "-c", program],
                cwd="/",
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
        except OSError as error:
            raise SpecError(
                f"{_called(image, path)} cannot be run ({error.strerror}): {_cure(image)}"
            ) from error
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise SpecError(
                f"{_called(image, path)} does not answer within {seconds:g} s: see what `{path} -V` does, or {_cure(image)}"
            ) from error
        finally:
            _end(process)
        said.seek(0)
        text = said.read(_LONGEST_BYTES).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    answer = next((line for line in lines if line.startswith(MARK)), None)
    if code or answer is None:
        last = f"; its last line: {lines[-1].strip()[:200]}" if lines else ""
        raise SpecError(
            f"{_called(image, path)} does not answer as Python does (exit code {code}{last}): {_cure(image)}"
        )
    return dict(json.loads(answer.removeprefix(MARK)))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of it: a script may have started others that hold nothing of ours but go on."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Our variables without those that tell a Python where to look: a job does not have them either."""
    left_out = re.compile(r"PYTHON|VIRTUAL_ENV\Z")
    return {name: text for name, text in ours.items() if not left_out.match(name)}


def _called(image: str, path: Path) -> str:
    return f"the interpreter of image {image}, {path},"


def _cure(image: str) -> str:
    variable = f"{INTERPRETER}{variable_name(image)}"
    return (
        f"set {variable} (or `interpreter.{image}` under [muster]) to the whole path of a Python, as "
        "`python3 -c 'import sys; print(sys.executable)'` prints it, or to nothing to run with the image's lock"
    )
