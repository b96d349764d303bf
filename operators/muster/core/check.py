"""One check of ``muster doctor``: a state, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.errors import MusterError


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor's report.

    :param state: ``ok``, ``warn`` (it works, less well) or ``bad`` (it will not work).
    :param advice: what to do; empty if nothing is wrong.
    """

    name: str
    state: str
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, state="ok", found=found)


def warn(name: str, found: str, advice: str) -> Check:
    """Return a check that warns: it works, less well."""
    return Check(name=name, state="warn", found=found, advice=advice)


def bad(name: str, found: str | MusterError, advice: str) -> Check:
    """Return a failed check. :param found: what was found, or the error."""
    return Check(name=name, state="bad", found=str(found), advice=advice)
