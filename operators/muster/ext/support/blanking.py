"""Blanks secrets in what leaves this machine: values that are known here, and what looks like one. Pure but for :func:`known`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.masking import MASK, Masking
from muster.core.settings import Settings

_NAMES = r"(?:pass(?:wd|word|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|fernet|credential|authorization|conn(?:ection)?|dsn|cookie|signature)"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
# A name that sounds like a secret, and its value: in JSON, YAML, an INI file, a URL's query, a command line.
_ASSIGNED = re.compile(
    rf"""([\w.-]*{_NAMES}[\w.-]*["']?\s*[=:]\s*["']?|--[\w-]*{_NAMES}[\w-]*\s+)(?:(?:bearer|basic)\s+)?[^\s"',;&}}\]]+""",
    re.IGNORECASE,
)
_SHAPES = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE), rf"\g<1>{MASK}@"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\g<1> {MASK}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\b(?:gh[pousr]|github_pat|hf|glpat|xox[abprs]|sk)[_-][\w-]{16,}"), MASK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), MASK),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]+-----|\Z)"), MASK),
)
_FILES = ("up/passwords.json", "up/own.cfg", "up/airflow.cfg")
_LARGEST_BYTES = 1 << 20
_WORD = re.compile(r"[^\s\"'=:,{}\[\]]{6,}")


def is_secret(name: str) -> bool:
    """Whether a setting of that name has a value that nobody else may see."""
    return bool(_SECRET_NAME.search(name))


def known(
    settings: Settings, environment: Mapping[str, str] | None = None, *, also: Iterable[str] = ()
) -> Masking:
    """Return what masks every secret that this process can find: of its environment, what muster up keeps, and what is given."""
    env = os.environ if environment is None else environment
    found = set(also) | {
        value for name, value in env.items() if is_secret(name) or name.startswith("AIRFLOW_VAR_")
    }
    for text in list(found):  # a connection: its password alone, too
        found |= set(re.findall(r"://[^\s/@:]*:([^\s/@]+)@", text))
    for name in _FILES:
        for line in _read(settings.home / name).splitlines():
            if name.endswith(".json") or is_secret(line.partition("=")[0]):
                found |= set(_WORD.findall(line.partition("=")[2] or line))
    return Masking(value for value in found if len(value) >= 6)


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes()[:_LARGEST_BYTES].decode(errors="replace")
    return ""


def blanked(text: str, masking: Masking) -> str:
    """Return a text without secrets: without the values that are known, and what looks like one."""
    text = masking.text(text)
    for shape, mask in _SHAPES:
        text = shape.sub(mask, text)
    return _ASSIGNED.sub(rf"\g<1>{MASK}", text)


def without_values(document: Any, masking: Masking) -> Any:
    """Return a document of JSON without secrets: no variable of an environment has a value, and no setting that sounds like a secret."""
    if isinstance(document, Mapping):
        return {name: _cleaned(str(name), value, masking) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_values(each, masking) for each in document]
    return blanked(document, masking) if isinstance(document, str) else document


def _cleaned(name: str, value: Any, masking: Masking) -> Any:
    if name == "env" and isinstance(value, list):
        value = [{**each, "value": MASK} if "value" in each else each for each in value]
    elif name == "env" and isinstance(value, Mapping):
        return dict.fromkeys(value, MASK)
    return MASK if isinstance(value, str) and is_secret(name) else without_values(value, masking)
