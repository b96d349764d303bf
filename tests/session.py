"""``python -m tests.session ARGUMENT…``: pytest, as ``make`` runs it, of which nothing is left however it ends.

Keepers, guardians and servers outlive the commands that start them, so a test that is cut off leaves them. Here they become
children of this process, which ends them after pytest. All temporary files are below one folder, which is deleted, too; it is
kept where tests failed, until the next run.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from muster.core.linux import adopt_orphans, die_with
from muster.volumes.tree import remove, unlock

PREFIX = "mt"
"""Of the folder's name, which is short: a Unix socket's path has at most 107 bytes."""
ENDS_SECONDS = 60
"""How long pytest has for its fixtures after SIGTERM."""
_INTERRUPTED = 2


def main() -> int:
    """Run pytest with the arguments of the command line; return its exit status."""
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
    for earlier in folder.parent.glob(f"{PREFIX}*"):
        if (
            re.fullmatch(rf"{PREFIX}\d+", earlier.name)
            and not Path("/proc", earlier.name[len(PREFIX) :]).exists()
        ):
            _delete(earlier)
    folder.mkdir(mode=0o711)  # a server that does not run as root has a folder of its own in it
    command = [sys.executable, "-m", "pytest", f"--basetemp={folder / 't'}", *sys.argv[1:]]
    status = run(command, folder=folder)
    if status in (0, _INTERRUPTED) or status > 128:
        _delete(folder)
    else:
        print(f"what the tests wrote is in {folder} until the next run", file=sys.stderr)
    return status


def run(command: Sequence[str], *, folder: Path) -> int:
    """Run a program with its temporary files in `folder`, and end all that is left of it; return its exit status."""
    adopt_orphans()
    parent = os.getpid()
    if (child := os.fork()) == 0:
        die_with(parent)
        os.execvpe(command[0], command, {**os.environ, "TMPDIR": str(folder)})

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        signal.alarm(ENDS_SECONDS)

    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to pytest, too
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    while (ended := os.waitpid(-1, 0))[0] != child:  # an orphan that ended is no zombie of ours
        continue
    signal.alarm(0)
    code = os.waitstatus_to_exitcode(ended[1])
    while left := _below(parent):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
    return code if code >= 0 else 128 - code


def _below(pid: int) -> list[int]:
    """Return all processes below one."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    return found


def _delete(folder: Path) -> None:
    with suppress(OSError):  # another user's
        unlock(folder)
        remove(folder)


if __name__ == "__main__":
    sys.exit(main())
