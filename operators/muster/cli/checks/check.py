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


def bad(name: str, error: MusterError, advice: str) -> Check:
    """Return a failed check for an error."""
    return Check(name=name, state="bad", found=str(error), advice=advice)
