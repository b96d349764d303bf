"""Blanks secrets in what leaves this machine: values that are known here, and what looks like one. Pure but for :func:`known`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.masking import MASK, Masking
from muster.core.settings import Settings

_NAMES = r"(?:pass(?:wd|word|phrase)?(?!ed|es|ing)|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|fernet|credential|authorization|conn(?:ection)?|dsn|cookie|signature)"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
# What only says where a secret is: secretName, secretKeyRef, imagePullSecrets, the secrets of a job.
_REFERENCE = re.compile(r"secret\w*(?:ref|name)", re.IGNORECASE)
_FLAG = rf"--?[\w-]*(?:{_NAMES}|key)[\w-]*"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# A name that sounds like a secret, and its value: in JSON, YAML, an INI file, a URL's query, a command line.
_ASSIGNED = re.compile(
    rf"""({_NAMES}[\w.-]{{0,60}}\\*["']?\s*[=:]\s*|(?<!\S){_FLAG}\s+)(?:(?:bearer|basic|token)\s+)?"""
    r"""(?:(?P<quote>\\*["'])(?:(?!(?P=quote))(?:\\.|.))*|[^\s"'&]+)""",
    re.IGNORECASE,
)
_SHAPES = (
    (
        re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,30}://)[^\s/@:\"']*(?::(?:(?!://)[^\s\"'])*)?@"),
        rf"\g<1>{MASK}@",
    ),
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
    """Whether a setting of that name has a secret value."""
    return bool(_SECRET_NAME.search(name))


def known(
    settings: Settings, environment: Mapping[str, str] | None = None, *, also: Iterable[str] = ()
) -> Masking:
    """Return what masks every secret that this process can find: of its environment, what muster up keeps, and what is given."""
    env = os.environ if environment is None else environment
    found = set(also) | {
        value for name, value in env.items() if is_secret(name) or name.startswith("AIRFLOW_VAR_")
    }
    found -= {env.get("PWD", ""), env.get("OLDPWD", "")}  # folders
    for text in list(found):  # a connection: its password alone, too
        found |= set(re.findall(r"://[^\s/@:]*:(\S+)@", text))
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
    return _ASSIGNED.sub(rf"\g<1>\g<quote>{MASK}", text)


def without_values(document: Any, masking: Masking, *, secret: bool = False) -> Any:
    """Return a document of JSON without secrets: no variable of an environment has a value, and nothing under a name that sounds like a secret.

    :param secret: whether it stands under such a name: yes, no and nothing alone are left.
    """
    if isinstance(document, Mapping):
        secret = secret and not document.keys() <= {"name", "source"}
        told = is_secret(str(document.get("name")))  # {"name": "DB_PASSWORD", "value": …}
        return {
            masking.text(str(name)): _cleaned(
                str(name), value, masking, secret=secret or (told and name == "value")
            )
            for name, value in document.items()
        }
    if isinstance(document, list | tuple):
        before = ("", *document)  # ["--api-key", …]
        return [
            without_values(each, masking, secret=secret or (_is_flag(flag) and not _is_flag(each)))
            for flag, each in zip(before, document, strict=False)
        ]
    if document is None or isinstance(document, bool):
        return document
    if isinstance(document, str) and document[:1] in ("{", "["):
        with suppress(ValueError):  # an annotation
            return json.dumps(without_values(json.loads(document), masking, secret=secret))
    return MASK if secret else blanked(document, masking) if isinstance(document, str) else document


def _is_flag(word: Any) -> bool:
    return isinstance(word, str) and re.fullmatch(_FLAG, word, re.IGNORECASE) is not None


def _cleaned(name: str, value: Any, masking: Masking, *, secret: bool) -> Any:
    if name == _APPLIED:
        return MASK
    if name == "env" and isinstance(value, list):
        value = [{**each, "value": MASK} if "value" in each else each for each in value]
    elif name == "env" and isinstance(value, Mapping):
        return dict.fromkeys(value, MASK)
    of_model = name == "signature" and not isinstance(value, str)
    secret = (secret or (is_secret(name) and not of_model)) and not _REFERENCE.fullmatch(name)
    return without_values(value, masking, secret=secret)
