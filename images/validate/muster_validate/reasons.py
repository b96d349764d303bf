"""Why something could not be done, in one sentence for the author of a suite."""

from __future__ import annotations

import re

_WHERE = re.compile(
    r"\s*(?:\n\s*\n|\n?\s*LINE \d|\n\s*Candidate |\n\s*\[SQL|\[SQL|\(Background on).*", re.DOTALL
)
_KIND = re.compile(r"^\(?_?duckdb\.\w+\)?\s*")
_TRACEBACK = re.compile(r'An SQL execution Exception occurred.*?\w+: "(.*?)"\.\s+Traceback:.*', re.DOTALL)


class SuiteError(ValueError):
    """The suite or the data cannot be used; the message says why."""

    muster_advice = "mend what the message names and run again; earlier stages are kept"


def reason(error: BaseException | str) -> str:
    """Return what an error says, without SQL, positions and the advice that is no use in a job."""
    text = str(error)
    if "Out of Memory Error" in text:
        return "it needs more memory than the task has: give the task more (memory_gib=), or select fewer columns"
    text = _TRACEBACK.sub(r"\1", text)
    text = _KIND.sub("", _WHERE.sub("", text)).removesuffix(" You might need to add explicit type casts.")
    return " ".join(text.split())[:600]
