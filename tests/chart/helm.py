"""helm and kubeconform on the chart: what it renders, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.programs import TOOLS, build

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "muster"
RELEASE, NAMESPACE = "muster", "muster-jobs"

Document = dict[str, Any]


@cache
def programs() -> Path:
    """The folder that holds helm and kubeconform, built the first time."""
    return build(programs=TOOLS)


def run(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm, which sees no settings of this machine's."""
    home = Path(os.environ.get("TMPDIR", "/tmp"))  # helm writes nothing there
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "KUBECONFIG": "/nowhere"}
    command = [str(programs() / "helm"), *words]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, env=environment, cwd=home
    )


def text(values: Document | Path, *words: str, release: str = RELEASE, namespace: str = NAMESPACE) -> str:
    """Render the chart, as text. :raises AssertionError: it was refused."""
    done = _template(values, *words, release=release, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Document | Path, *words: str, **place: str) -> list[Document]:
    """Render the chart."""
    return [found for found in yaml.safe_load_all(text(values, *words, **place)) if found]


def refused(values: Document | Path, *words: str, **place: str) -> str:
    """Return with which words the chart refuses values."""
    done = _template(values, *words, **place)
    assert done.returncode != 0, "it was taken"
    return done.stderr


def named(documents: list[Document], kind: str, name: str) -> Document:
    """Return one object."""
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def _template(
    values: Document | Path, *words: str, release: str = RELEASE, namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    given, stdin = (str(values), None) if isinstance(values, Path) else ("-", yaml.safe_dump(values))
    return run(
        "template", release, str(CHART), f"--namespace={namespace}", f"--values={given}", *words, stdin=stdin
    )
