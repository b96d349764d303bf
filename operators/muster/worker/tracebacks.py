"""Describes an exception in the few lines that end a log."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

from muster.worker.code import folders

LINES = 15
_OWN = os.path.dirname(__file__) + os.sep
_SAID = re.compile(r'File "([^"]+)", line (\d+)')
"""A frame in an error's text: Ray and Spark have no other form for what their workers raised."""


def describe(error: BaseException, *, code: str | None) -> dict[str, Any]:
    """Return message, type, traceback (at most :data:`LINES` lines), place and advice of an exception.

    Frames of the worker and of the import system are left out, and paths are relative to the code
    folder. Where the lines do not suffice, frames of libraries are left out before the author's.
    A class of muster's own programs says by `muster_advice` what to do about its errors: their code is not the author's to mend,
    and no traceback tells of it.
    """
    advice = str(getattr(type(error), "muster_advice", ""))
    chain = [] if advice else _chain(error)
    lines = [line for each in chain for line in _frames(each, code, own_only=False) + _last_words(each)]
    if len(lines) > LINES:
        lines = _frames(error, code, own_only=True) + _last_words(error)
    if len(lines) > LINES:
        lines = ["…", *lines[1 - LINES :]]
    return {
        "message": message(error),
        "type": type(error).__name__,
        "traceback": lines,
        "where": _where(error, code),
        "advice": advice,
    }


def message(error: BaseException) -> str:
    """The exception's type and text, as in the last line of Python's traceback."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> list[BaseException]:
    chain, seen = [error], {id(error)}
    while True:
        first = chain[0]
        before = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        if before is None or id(before) in seen:
            return chain
        chain.insert(0, before)
        seen.add(id(before))


def _frames(error: BaseException, code: str | None, *, own_only: bool) -> list[str]:
    kept = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OWN, "<frozen "))
        and (not own_only or code is None or folders(code).match(frame.filename))
    ]
    for frame in kept:
        frame.filename = shorten(frame.filename, code)
    lines = [line for text in traceback.format_list(kept) for line in text.rstrip("\n").split("\n")]
    return ["Traceback (most recent call last):", *lines] if lines else []


def _last_words(error: BaseException) -> list[str]:
    text = "".join(traceback.format_exception_only(type(error), error))
    return [line[:400] for line in text.rstrip("\n").split("\n")[:6]]


def _where(error: BaseException, code: str | None) -> str:
    """The innermost line of the author's: a syntax error's own, else of what a worker raised, else of the stack."""
    if code is None:
        return ""
    stack = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(error.filename or "", error.lineno)] if isinstance(error, SyntaxError) else []
    for path, line in reversed([*stack, *_SAID.findall(str(error)), *own]):
        if folders(code).match(path):
            return f"{shorten(path, code)}:{line}"
    return ""


def shorten(path: str, code: str | None) -> str:
    """Return a path relative to the code folder, if it lies in it or in another replica's."""
    begins = folders(code).match(path) if code else None
    return path[begins.end() :] if begins else path
