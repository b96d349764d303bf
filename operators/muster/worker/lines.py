"""Turns a rank's output, which may be any bytes, into lines that are safe to log."""

from __future__ import annotations

import re

from muster.core.text import as_shown

LINE_BYTES = 64 * 1024
_RAISED = re.compile(rb"[\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Warning)\b[^\r]{0,20}: ")
_RAISED_BYTES = 256
_RAISED_RETURNS = 16
"""More carriage returns than that no exception's text has: the line is a progress bar, whatever it begins with."""


class LineBuffer:
    """Cuts one rank's output into lines of at most :data:`LINE_BYTES`, keeping no more than that."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._left_out = 0
        self._returns = 0

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes, and return the lines that are now complete."""
        *whole, rest = data.split(b"\n")
        lines = []
        for part in whole:
            self._hold(part)
            lines.append(self._take())
        self._hold(rest)
        return lines

    def bar(self) -> list[str]:
        """Return the state of a progress bar that has no newline yet; it stays held."""
        state = bytes(self._held).rstrip(b"\r").rpartition(b"\r")[2]
        return [clean(state)] if self._returns and state.strip() else []

    def close(self) -> list[str]:
        """Return the last line where it had no newline."""
        return [self._take()] if self._held else []

    def _hold(self, part: bytes) -> None:
        self._returns += part.count(b"\r")
        raised = self._returns <= _RAISED_RETURNS and _RAISED.match(bytes(self._held) + part[:_RAISED_BYTES])
        start_over = 0 if raised else part.rfind(b"\r", 0, -1) + 1
        if start_over:
            self._held.clear()
            self._left_out = 0
        room = LINE_BYTES - len(self._held)
        self._held += part[start_over : start_over + room]
        self._left_out += max(0, len(part) - start_over - room)

    def _take(self) -> str:
        text = clean(bytes(self._held))
        if self._left_out:
            text += f" … ({self._left_out} bytes left out)"
        self._held.clear()
        self._left_out = self._returns = 0
        return text


def clean(line: bytes) -> str:
    """Decode one line as a terminal would leave it: no escape sequences, no control characters.

    A carriage return starts the line over, so a progress bar leaves its last state; not in an exception's own text.
    """
    whole = line.rstrip(b"\r")
    raised = whole.count(b"\r") <= _RAISED_RETURNS and _RAISED.match(whole)
    last = whole.replace(b"\r", b" ") if raised else whole.rpartition(b"\r")[2]
    return as_shown(last.decode("utf-8", "replace"))
