"""The one way in which muster starts a Python: nothing is imported from the folder that it is started in."""

from __future__ import annotations

import sys
from pathlib import Path


def python_command(*words: str, of: str | Path = sys.executable, isolated: bool = False) -> list[str]:
    """Return the command ``python *words``.

    :param of: the interpreter; that of this process by default.
    :param isolated: PYTHONPATH and the packages of the user's own folder are left out, too. A Python 3.10, which an image
        may have, knows this option alone.
    """
    return [str(of), "-I" if isolated else "-P", *words]
