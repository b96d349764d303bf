"""Removes the values of secrets from logs, statuses and verdicts, also values that a cut leaves in part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = "***"

_SHORTEST = 4  # shorter values would be found in every other line
_LONG = 16  # half of such a secret gives it away; half of a shorter one may be a common word
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
# How a cut line ends: in a verdict or a follower's line, and in a rank's line that was too long.
_CUT = re.compile("^(.*)(…| … \\(\\d+ bytes left out\\))$", re.MULTILINE)
_CUT_MARK = "…".encode()


class Masking:
    """The texts to mask: each secret, the first half of a long one, and shorter heads where a line was cut."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.texts = _texts(secrets)
        self._heads = [_head(text).encode("utf-8", "surrogateescape") for text in self.texts]

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        for secret in self.texts:
            text = _without(text, secret)
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


def _texts(secrets: Iterable[str]) -> list[str]:
    """Each line of each secret, plain and as Python and JSON quote it, longest first."""
    parts = {part.strip() for text in secrets for part in _CONTROL.split(text)}
    parts |= {quote(part)[1:-1] for part in parts for quote in (repr, json.dumps)}
    return sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True)


def _head(secret: str) -> str:
    return secret if len(secret) < _LONG else secret[: (len(secret) + 1) // 2]


def _without(text: str, secret: str) -> str:
    """Mask every occurrence of the secret's head, with as much of the secret as follows."""
    head, parts, end = _head(secret), [], 0
    while (at := text.find(head, end)) >= 0:
        parts += [text[end:at], MASK]
        end = at + len(head)
        while end - at < len(secret) and text[end : end + 1] == secret[end - at]:
            end += 1
    return "".join([*parts, text[end:]])
