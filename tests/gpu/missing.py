"""What a machine lacks for the tests of GPUs, and what to do about it; with the standard library alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

INTERPRETER = "MUSTER_TEST_INTERPRETER"
OLDEST = (3, 10)
NEEDED = (
    "pytest",
    "blake3",
)  # all that backend, store and worker need on one machine, and what runs the tests
SECONDS = 120.0  # a first import of torch reads gigabytes
_ASK = (
    "import torch\n"
    "assert torch.version.cuda, f'torch {torch.__version__} is built for CPUs'\n"
    "assert torch.cuda.is_available(), f'torch {torch.__version__} for CUDA {torch.version.cuda} sees no card'\n"
)


class Lacking(Exception):
    """Something is not there; the message says what, and what to do."""


def cards() -> tuple[str, ...]:
    """Return the cards that may be used, as CUDA_VISIBLE_DEVICES names them. :raises Lacking: there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise Lacking("no nvidia-smi on PATH: NVIDIA's driver comes with it; use a machine that has a card")
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Lacking(f"nvidia-smi does not answer ({error}): see to the driver") from error
    found = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    if not found:
        said = (listed.stdout + listed.stderr).strip().splitlines()
        raise Lacking(
            f"nvidia-smi lists no card ({said[-1] if said else 'it says nothing'}): see to the driver"
        )
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(str(number) for number in range(len(found)))
    names = tuple(name for name in (part.strip() for part in chosen.split(",")) if name and name != "-1")
    if not names:
        raise Lacking(f"CUDA_VISIBLE_DEVICES is {chosen!r}, which leaves no card: unset it")
    return names


def interpreter() -> Path:
    """Return the Python whose torch sees a card. :raises Lacking: there is none; each that was tried is named."""
    named = os.environ.get(INTERPRETER)
    tried = []
    for python in [Path(named).absolute()] if named else list(_on_path()):
        why = _why_not(python)
        if not why:
            return python
        tried.append(f"{python} ({why})")
    raise Lacking(
        f"no Python with torch that sees a card: {'; '.join(tried) or 'no python3 on PATH'}; set {INTERPRETER} to one"
    )


def missing(needed: Sequence[str] = NEEDED) -> Iterator[str]:
    """Yield what is missing, a line each."""
    if sys.version_info < OLDEST:
        yield f"this is Python {sys.version.split()[0]}, need 3.10 or newer: make test-gpu PYTHON=…"
    for look in (cards, interpreter):
        try:
            look()
        except Lacking as error:
            yield str(error)
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if lacking:
        yield (
            f"{sys.executable} lacks {' and '.join(lacking)}: {sys.executable} -m pip install {' '.join(lacking)} "
            "(without a network: from wheels that you bring, --no-index --find-links FOLDER)"
        )


def _on_path() -> Iterator[Path]:
    seen = set()
    for folder in os.get_exec_path():
        python = Path(folder) / "python3"
        if os.access(python, os.X_OK) and python.resolve() not in seen:
            seen.add(python.resolve())
            yield python


def _why_not(python: Path) -> str:
    """Why a Python is of no use here; empty where it is."""
    try:
        asked = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = asked.stderr.strip().splitlines()
    return "" if asked.returncode == 0 else (said[-1] if said else f"exit code {asked.returncode}")
