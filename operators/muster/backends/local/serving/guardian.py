"""The guardian of a deployment's keeper: it waits until the keeper dies, and has it started again.

The platform runs this file by its path, as the process that is to become the keeper: it forks the guardian, and then
becomes the keeper, so a keeper has its guardian from its first moment. A guardian is a child of the keeper that it
guards; when that dies, it forks the next guardian and becomes the next keeper. A guardian that dies is replaced by its
keeper (``kept.Guardian``), which also ends it when there is nothing left to keep. It knows the names of home, cache
and deployment, and holds open what outlives a keeper (``kept.KeptNumbers``): users who connect meanwhile wait or are answered.

Of the standard library it imports little, because each deployment has one such process.
"""

from __future__ import annotations

import os
import select
import sys
import time

# By its path and without site-packages: it takes 3 MB of memory so, a keeper 13.
COMMAND = (sys.executable, "-I", "-S", __file__)
_KEEPER = "muster.backends.local.serving.keeper"
_ENDS_AT_ONCE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 60.0
LOOK_SECONDS = 0.2


def main() -> None:
    """Keep a deployment and guard it, as ``HOME CACHE NAME keep FD…`` says, or guard who does: ``… guard PID FD…``."""
    home, cache, name, what, *numbers = sys.argv[1:]
    state = os.path.join(home, "deployments", name, "state.json")  # noqa: PTH118 pathlib takes 2 MB
    if what == "guard":
        keeper = int(numbers.pop(0))
    elif os.fork():  # the keeper must outlive who started it and not be its zombie
        return
    else:
        keeper = _become_keeper([home, cache, name], numbers)
    pause = 0.0
    while True:
        begun = time.monotonic()
        await_end(keeper)
        pause = next_pause(pause, lived=time.monotonic() - begun)
        due, before = time.monotonic() + pause, written(state)
        while (left := due - time.monotonic()) > 0 and written(state) == before:
            time.sleep(min(left, LOOK_SECONDS))
        if not written(state):
            return
        say("the keeper is gone; it is started again")
        keeper = _become_keeper([home, cache, name], numbers)


def _become_keeper(names: list[str], numbers: list[str]) -> int:
    """Fork a guardian, and become the keeper; return, in the guardian, the keeper's pid.

    :param numbers: of the open files that both have.
    """
    keeper = os.getpid()
    try:
        guardian = os.fork()
    except OSError:
        guardian = -1  # the keeper tries again
    if guardian:
        words = [*names, str(guardian), *numbers]
        os.execv(sys.executable, [sys.executable, "-P", "-m", _KEEPER, *words])  # noqa: S606 no shell is wanted
    return keeper


def written(state: str) -> int:
    """Return when a state was last written; 0 where there is none. What is written ends a pause: it is to be looked at."""
    try:
        return os.stat(state).st_mtime_ns  # noqa: PTH116 pathlib takes 2 MB
    except OSError:
        return 0


def next_pause(pause: float, *, lived: float) -> float:
    """Return how many seconds to wait before the keeper is started again: more where it dies at once again and again."""
    if lived > _ENDS_AT_ONCE_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)


def await_end(keeper: int) -> None:
    """Return when the parent of this process has ended."""
    try:
        handle = os.pidfd_open(keeper)
    except ProcessLookupError:
        return
    try:
        if os.getppid() == keeper:  # asked after the handle was opened, so the handle is that of the parent
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll()
    finally:
        os.close(handle)


def say(line: str) -> None:
    """Say it in the keeper's log."""
    try:
        os.write(sys.stderr.fileno(), f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n".encode())
    except OSError:
        return  # the disk may be full


if __name__ == "__main__":
    main()
