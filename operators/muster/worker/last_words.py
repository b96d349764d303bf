"""Reads the error of a failed rank: from its outcome, torch's ``@record`` file, or its last lines."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.worker.code import folders
from muster.worker.lines import clean
from muster.worker.ranks import TRACE_START, Rank

_TRACE_LINES = 15
_PARAGRAPH_LINES = 8
_NEAR_THE_END = 60  # the rank logged an older traceback and went on, so that one did not end it

_NO_FRAME = "  <no Python frame>"
_CRASH = "Fatal Python error: "
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)')
_WORKER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = re.compile(rf'  File "(?:{re.escape(_WORKER)}/|<frozen )')
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
# Lines that libraries and the interpreter print after an exception, on their way out.
_AFTER = re.compile(
    r"\[?[EWIF]\d{4} |Exception ignored|During handling|The above exception|terminate called|.*Warning: "
    r"|\(\w+ pid=\d+"  # what Ray's workers print, in their driver's output
    r"|\s+at [\w.$/]+\("  # the frames of a Java exception, in py4j's
)
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|^<")


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The error that one rank reported.

    :param kind: ``spec error`` where the entrypoint was refused before it was called, ``shutdown``
        where the interpreter crashed while it shut down, with no Python code left to run.
    :param at: seconds since the epoch, where it is known.
    :param where: ``train.py:42``, the author's innermost line on the stack.
    :param advice: what to do about it, where the error itself says so.
    :param printed: the rank printed it itself, so it is in the log.
    """

    message: str = ""
    traceback: tuple[str, ...] = ()
    kind: str = ""
    at: float | None = None
    where: str = ""
    advice: str = ""
    printed: bool = False


def last_words(rank: Rank) -> LastWords:
    """Return the error that ended the rank; empty where it was killed before it could report one."""
    for read in (_outcome, _recorded, _printed):
        said = read(rank)
        if said is not None:
            return said
    return LastWords(kind="shutdown") if _silent_crash(rank) else LastWords()


def _silent_crash(rank: Rank) -> bool:
    """Whether Python crashed without faulthandler's dump, which is disabled late in the shutdown."""
    if rank.status not in (-signal.SIGABRT, -signal.SIGSEGV):
        return False
    plan = rank.plan
    if plan.arguments is None:
        return (read_json(plan.outcome) or {}).get("kind") == "done"
    is_python = os.path.basename(plan.arguments[0]).startswith("python")
    return is_python and plan.environment.get("PYTHONFAULTHANDLER") == "1"


def stack(rank: Rank) -> LastWords:
    """Return the stack that faulthandler printed when the rank was aborted."""
    lines = _shortened(rank, rank.tail)
    starts = [i for i, line in enumerate(lines) if line.startswith(("Current thread", _CRASH))]
    return _crash(lines[starts[-1] :]) if starts else LastWords()


def read_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file that a rank wrote, or None where it is missing or torn."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _outcome(rank: Rank) -> LastWords | None:
    outcome = read_json(rank.plan.outcome)
    if outcome is None or outcome.get("kind") == "done":
        return None
    return LastWords(
        kind=outcome["kind"],
        message=_safe(outcome["message"]),
        traceback=tuple(_safe(line) for line in outcome.get("traceback", ())),
        at=outcome["at"],
        where=_safe(outcome.get("where", "")),
        advice=_safe(outcome.get("advice", "")),
    )


def _recorded(rank: Rank) -> LastWords | None:
    told = (read_json(rank.plan.error_file) or {}).get("message")
    if not isinstance(told, dict):
        return None
    called = str((told.get("extraInfo") or {}).get("py_callstack", ""))
    lines = _shortened(rank, map(_safe, called.splitlines()))
    # @record writes whole seconds, too coarse to find the first rank: the time of the printed traceback is
    # better
    return LastWords(
        message=_safe(str(told.get("message", ""))),
        traceback=bounded(lines),
        at=rank.traced,
        where=_place(lines),
        printed=rank.traced is not None,
    )


def _printed(rank: Rank) -> LastWords | None:
    lines = _shortened(rank, list(rank.tail)[-_NEAR_THE_END:])
    starts = [i for i, line in enumerate(lines) if line.startswith((TRACE_START, _CRASH))]
    if starts and starts[-1] == len(lines) - 1 and lines[-1].startswith(TRACE_START):
        lines, starts = lines[:-1], starts[:-1]  # it was ended while it wrote its traceback
    if not starts:
        return _syntax_error(lines)
    if len(starts) > 1 and lines[starts[-1]].startswith(_CRASH) and _NO_FRAME in lines[starts[-1] :]:
        lines, starts = lines[: starts[-1]], starts[:-1]  # it crashed in its shutdown, after an exception
    block = lines[starts[-1] :]
    if block[0].startswith(_CRASH):
        # the message of C++ names the reason, faulthandler only the signal
        whats = [line.split("what():", 1)[1].strip() for line in lines if line.startswith("  what():")]
        what, said = whats[-1] if whats else "", _crash(block)
        if not any(map(_FRAME.match, block)):
            return LastWords(kind="shutdown", message=what)
        return replace(said, message=what or said.message)
    end = next(
        (i for i, line in enumerate(block[1:], 1) if line and not line.startswith(" ")), len(block) - 1
    )
    words = _paragraph(block[end:])
    return LastWords(
        message=" ".join(line.strip() for line in words),
        traceback=bounded([*block[:end], *words]),
        at=rank.traced,
        where=_place([*block[:end], *words]),  # Ray tells in its words where a task raised
        printed=True,
    )


def _paragraph(lines: Sequence[str]) -> list[str]:
    """Return an exception's line and its continuation: all up to the next empty line."""
    said = list(lines[:1])
    for line in lines[1:_PARAGRAPH_LINES]:
        if not line.strip() or line.startswith(TRACE_START) or _AFTER.match(line):
            break
        said.append(line)
    return said


def _syntax_error(lines: Sequence[str]) -> LastWords | None:
    """Parse Python's message for a script with a syntax error, which has a place but no traceback."""
    ends = [i for i, line in enumerate(lines) if _SYNTAX.match(line)]
    places = [i for i, line in enumerate(lines[: ends[-1]]) if _FRAME.match(line)] if ends else []
    if not places:
        return None
    block = lines[places[-1] : ends[-1] + 1]
    return LastWords(message=block[-1], traceback=bounded(block), where=_place(block[:1]), printed=True)


def last_line(rank: Rank) -> str:
    """Return the last line of a rank's output that is not empty."""
    lines = _shortened(rank, reversed(rank.tail))
    folder = f"{rank.plan.code}/" if rank.plan.code else ""
    return next((line.strip().replace(folder, "") for line in lines if line.strip()), "")


def _crash(block: Sequence[str]) -> LastWords:
    """Parse faulthandler's dump, which has the innermost frame first."""
    currents = [i for i, line in enumerate(block) if line.startswith("Current thread")]
    start = currents[0] if currents else 0
    frames = [line for line in block[start:] if line.startswith(("Current", "  File"))]
    while frames and _OURS.match(frames[-1]):  # the outermost frames: the worker's way to the author's code
        frames.pop()
    frames = frames[: _TRACE_LINES - 1]
    return LastWords(message=block[0], traceback=tuple(frames), where=_place(reversed(frames)), printed=True)


def _shortened(rank: Rank, lines: Iterable[str]) -> list[str]:
    """Return the lines with the author's files as paths relative to the code folder."""
    if rank.plan.code is None:
        return list(lines)
    begins = re.compile(f'  File "{folders(rank.plan.code).pattern}')
    return [begins.sub('  File "', line) for line in lines]


def bounded(lines: Sequence[str]) -> tuple[str, ...]:
    """Keep the head and the end of a traceback that is longer than :data:`_TRACE_LINES`."""
    if len(lines) <= _TRACE_LINES:
        return tuple(lines)
    return (*lines[:1], "  …", *lines[2 - _TRACE_LINES :])


def _place(lines: Iterable[str]) -> str:
    """Return the place of the last frame that is not a library's."""
    place = ""
    for line in lines:
        frame = _FRAME.match(line)
        if frame and not _LIBRARY.search(frame[1]):
            place = f"{frame[1]}:{frame[2]}"
    return place


def _safe(text: str) -> str:
    """Return text of an exception as one line: a carriage return in it starts nothing over."""
    return clean(" ".join(re.split("[\r\n]", text)).encode("utf-8", "replace"))
