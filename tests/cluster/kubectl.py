"""kubectl as the cluster's administrator, run by a thread that is in its network namespace."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.cluster.layout import Layout

from muster.core.errors import BackendError

_LOOK_SECONDS = 0.1
_LONGEST_MESSAGE = 2000


def run(layout: Layout, *words: str, stdin: str | None = None) -> str:
    """Run kubectl and return what it prints.

    :raises BackendError: it failed; with what it said.
    """
    done = _run(layout, words, stdin)
    if done.returncode:
        raise BackendError(f"kubectl {' '.join(words)[:200]}: {done.stderr.strip()[:_LONGEST_MESSAGE]}")
    return done.stdout


def ask(layout: Layout, *words: str) -> str:
    """Return what kubectl prints, without white space around it; nothing where it fails."""
    return _run(layout, words, None).stdout.strip()


def get(layout: Layout, *words: str) -> dict[str, Any]:
    """Return an object, or a list of them."""
    found: dict[str, Any] = json.loads(run(layout, "get", "--output=json", *words))
    return found


def apply(layout: Layout, documents: Sequence[dict[str, Any]]) -> None:
    """Create objects, or make them what they should be; of none, which kubectl refuses, nothing is done."""
    if not documents:
        return
    whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    words = ("apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-")
    run(layout, *words, stdin=json.dumps(whole))


def delete(layout: Layout, documents: Sequence[dict[str, Any]]) -> None:
    """Delete objects, those that are not there too, and return when they and what they own are gone: the pods of a Deployment."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    words = (
        "delete",
        "--ignore-not-found",
        "--cascade=foreground",
        "--wait",
        "--timeout=60s",
        "--filename=-",
    )
    run(layout, *words, stdin=json.dumps(whole))


def until(what: str, condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Return when a condition holds.

    :raises BackendError: it does not in time.
    """
    deadline, began = time.monotonic() + seconds, time.monotonic()
    while not condition():
        if time.monotonic() > deadline:
            raise BackendError(f"after {seconds:.0f} s it is still not so that {what}")
        time.sleep(max(_LOOK_SECONDS, 2 * (time.monotonic() - began)))  # a look may cost what is waited for
        began = time.monotonic()


def _run(layout: Layout, words: Sequence[str], stdin: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(layout.programs / "kubectl"), f"--kubeconfig={layout.kubeconfig}", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(layout.root), "KUBECACHEDIR": str(layout.root / "kubectl"), "PATH": "/usr/bin:/bin"},
    )
