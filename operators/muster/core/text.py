"""Text that others wrote, made safe to show: in a log, a verdict, a terminal; text that is too long; durations."""

from __future__ import annotations

import re

LINE_LENGTH = 400

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# control characters, and bytes of a file's name that were no UTF-8 (PEP 383)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_BREAKS = (0x2028, 0x2029)  # what str.splitlines takes for the end of a line, beside control characters
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they show a line in another order than it is in
_UNSAFE = {
    code: "�" for code in (*range(0x20), *range(0x7F, 0xA0), *_BREAKS, *_BIDI) if code not in (0x09, 0x0A)
}


def shortened(text: str, length: int) -> str:
    """Return at most `length` characters of `text`; an ellipsis is the last where some are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def one_line(text: str) -> str:
    """Return `text` as one line for people: no control characters or runs of spaces, at most :data:`LINE_LENGTH` characters."""
    return shortened(" ".join(_CONTROL.sub(" ", text).split()), LINE_LENGTH)


def lasting(seconds: float) -> str:
    """Return a duration for people: ``0.42 s``, ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def has_control(text: str) -> bool:
    """Whether `text` holds a control character, or a byte that was no UTF-8."""
    return _CONTROL.search(text) is not None


def as_shown(text: str) -> str:
    """Return `text` as a terminal would leave it: no escape sequences; ``�`` in place of what else would steer one.

    Tabs and newlines stay.
    """
    return text if text.isprintable() else _ESCAPE_SEQUENCE.sub("", text).translate(_UNSAFE)


def escaped(text: str) -> str:
    r"""Return `text` as one line that a terminal shows as it is: escapes become visible, colours go.

    Whatever Python does not call printable (control, format and bidirectional characters, line
    separators, half of a surrogate pair) is written as its escape, so ``\x1b`` cannot act.
    """
    line = _COLOUR.sub("", text).replace("\t", "    ")
    if line.isprintable():
        return line
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line
    )
