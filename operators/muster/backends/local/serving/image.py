"""Has an image's environment built in a process of its own, so that whoever waits can see to other things.

``python -m muster.backends.local.serving.image CACHE NAME LOCK DIGEST`` says how far it is, a line
at a time, and last where the environment's Python is, or why there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

from muster.backends.local.environments import Environments
from muster.backends.local.spawn import die_with
from muster.core.errors import ImageError, MusterError

Say = Callable[[str], None]


def ensure(
    environments: Environments, cache: Path, *, name: str, lock: Path, digest: str, log: Path, say: Say
) -> Generator[None, None, Path]:
    """Return the Python of an image's environment; yield while it is being built.

    :param log: a file for what the build says.
    :raises ImageError: it cannot be built.
    """
    found = environments.find(name, digest)
    if found is not None:
        return found
    words = [sys.executable, "-P", "-m", __name__, str(cache), name, str(lock), digest]
    with log.open("wb") as out:
        build = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            preexec_fn=partial(die_with, os.getpid()),
        )
    try:
        while build.poll() is None:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()
            if said:
                say(said[-1])
            yield
    finally:
        build.kill()
        build.wait()
    if build.returncode or (found := environments.find(name, digest)) is None:
        raise ImageError(log.read_text(encoding="utf-8", errors="replace").strip()[-4000:])
    return found


def main() -> None:
    """Build. Arguments: ``CACHE NAME LOCK DIGEST``."""
    cache, name, lock, digest = sys.argv[1:]
    try:
        Environments(Path(cache)).ensure(name, Path(lock), digest, lambda line: print(line, flush=True))  # noqa: T201
    except (MusterError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
