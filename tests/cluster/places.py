"""Where the pods of jobs ran, as the API server tells it while they do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

from muster.backends.kubernetes.labels import JOB


@contextmanager
def places(here: Layout, into: Path) -> Iterator[Path]:
    """Write down, as the API tells it, on which node each of our pods ran."""
    columns = "custom-columns=JOB:.metadata.labels.muster\\.dev/job,POD:.metadata.name,NODE:.spec.nodeName"
    words = ["get", "pods", "--watch", "--no-headers", f"--namespace={NAMESPACE}", f"--selector={JOB}"]
    with into.open("w") as file:
        kubectl_of = [str(here.programs / "kubectl"), f"--kubeconfig={here.kubeconfig}"]
        process = subprocess.Popen([*kubectl_of, *words, f"--output={columns}"], stdout=file)
        try:
            yield into
        finally:
            process.terminate()
            process.wait()


def ran(into: Path) -> dict[str, set[str]]:
    """The nodes of each job that were written down."""
    found: dict[str, set[str]] = {}
    for line in into.read_text().splitlines():
        job_id, _, node = line.split()
        if node != "<none>":
            found.setdefault(job_id, set()).add(node)
    return found
