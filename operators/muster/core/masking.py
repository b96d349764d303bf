"""Removes the values of secrets from logs, statuses and verdicts, in every form that programs write them, also where a cut leaves a part.

:func:`forms` says in which forms a value is looked for, :func:`readings` what a text says where it is in one of them.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape, unescape
from itertools import takewhile
from operator import eq
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"

_SHORTEST = 4  # shorter values would be found in every other line
_LONG = 16  # half of such a secret gives it away; half of a shorter one may be a common word
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_ENCODED = 8  # characters in base64, hex or capitals: fewer may be a word
_PERCENT = re.compile("%[0-9A-F]{2}")
_WORDS_OF_SHELL = re.compile(r"[^\w@%+=:,./-]", re.ASCII)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){4,}")
_LEVELS = 2  # a value may be encoded twice, as in a URL's base64
# How a cut line ends: in a verdict or a follower's line, and in a rank's line that was too long.
_CUT = re.compile("^(.*)(…| … \\(\\d+ bytes left out\\))$", re.MULTILINE)
_CUT_MARK = "…".encode()


class Masking:
    """The texts to mask: each secret in all its forms, each half of a long one, and shorter heads where a line was cut.

    :param shown: names that the job itself shows everywhere. A secret that is one of them is not masked there: the mask would hide
        the name, and say which name is the secret.
    """

    def __init__(self, secrets: Iterable[str], *, shown: Collection[str] = ()) -> None:
        self.texts = _texts(secret for secret in secrets if secret.strip() not in shown)
        self._heads = [_head(text).encode("utf-8", "surrogateescape") for text in self.texts]

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        for secret in self.texts:
            text = _without(text, secret, self.texts)
        return _CUT.sub(lambda line: self._end_masked(line[1]) + line[2], text)

    def log(self, lines: bytes) -> bytes:
        """Return lines of a log without secrets, otherwise unchanged."""
        if not self.texts or (_CUT_MARK not in lines and not any(head in lines for head in self._heads)):
            return lines
        return self.text(lines.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _end_masked(self, line: str) -> str:
        for secret in self.texts:
            for length in range(len(secret) - 1, _SHORTEST - 1, -1):
                if line.endswith(secret[:length]):
                    return line[:-length] + MASK
        return line


def forms(secret: str) -> set[str]:
    """Return a value as it is, and as Python, JSON, shells, URLs and HTML quote it; in capitals, hex and base64, also inside a longer base64.

    Airflow calls this for each secret that it masks, where ``[logging] secret_mask_adapter`` is ``muster.core.masking.forms``.
    """
    found = {
        secret,
        repr(secret)[1:-1],
        *((secret.upper(), secret.lower()) if len(secret) >= _ENCODED else ()),
    }
    found |= {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    found |= {escape(secret), escape(secret, quote=False), escape(secret).replace("&#x27;", "&#39;")}
    found |= {
        _WORDS_OF_SHELL.sub(r"\\\g<0>", secret),
        secret.replace("'", "'\"'\"'"),
        secret.replace("'", "'\\''"),
    }
    data = secret.encode("utf-8", "surrogateescape")
    quoted = {quote(data), quote(data, safe=""), quote_plus(data)}
    found |= quoted | {_PERCENT.sub(lambda code: code[0].lower(), text) for text in quoted}
    return found | {text for text in _encoded(data) if len(text) >= _ENCODED}


def _encoded(data: bytes) -> Iterator[str]:
    yield from (data.hex(), data.hex().upper())
    # Three bytes are four characters: inside other data it begins at one of three places.
    for before in range(3):
        whole = b64encode(bytes(before) + data).decode()
        ends = len(whole) - (0, 3, 2)[(before + len(data)) % 3]
        for text in {whole[(0, 2, 3)[before] : ends], *([] if before else [whole, whole.rstrip("=")])}:
            yield from (text, text.replace("+", "-").replace("/", "_"))


def readings(text: str, *, levels: int = _LEVELS) -> set[str]:
    """Return a text, and what it says where it is quoted, encoded or broken into lines: in there a secret is as it is."""
    found = {text}
    for _ in range(levels):
        found |= {reading for each in found for reading in _read(each)}
    return found


def _read(text: str) -> Iterator[str]:
    yield from (unquote(text), unquote_plus(text), unescape(text), "".join(text.split()))
    yield _ESCAPE.sub(lambda it: chr(int(it[1] or it[2], 16)) if it[1] or it[2] else it[3], text)
    yield text.replace("'\"'\"'", "'").replace("'\\''", "'")
    for run in _HEX.findall(text):
        yield bytes.fromhex(run).decode("utf-8", "replace")
    for run in _BASE64.findall(text.replace("+", "-").replace("/", "_")):
        for start in range(4):
            whole = run[start : len(run) - (len(run) - start) % 4] or run[start:]
            rest = run[start:] + "=" * (-(len(run) - start) % 4)
            for each in {whole, rest}:
                with suppress(ValueError):
                    yield b64decode(each, altchars=b"-_").decode("utf-8", "replace")


def _texts(secrets: Iterable[str]) -> list[str]:
    """Each line of each secret in all forms, each half of those that are long, longest first."""
    parts = {part.strip() for text in secrets for part in _CONTROL.split(text)}
    found = {text for part in parts if len(part) >= _SHORTEST for text in forms(part)}
    found |= {text[len(_head(text)) :] for text in parts if len(text) >= _LONG}
    return sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True)


def _head(secret: str) -> str:
    return secret if len(secret) < _LONG else secret[: (len(secret) + 1) // 2]


def _without(text: str, secret: str, forms: Sequence[str]) -> str:
    """Mask every occurrence of the secret's head, with as much as follows of any form: several begin with the same characters."""
    head, parts, end = _head(secret), [], 0
    while (at := text.find(head, end)) >= 0:
        parts += [text[end:at], MASK]
        end = at + max(_alike(form, text[at : at + len(form)]) for form in forms)
    return "".join([*parts, text[end:]])


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return len(list(takewhile(bool, map(eq, one, other))))
