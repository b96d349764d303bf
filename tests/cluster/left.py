"""What is there of jobs on the cluster: after their end, nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tests.cluster import groups, kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

from muster.backends.kubernetes.labels import JOB

_LABELLED = "jobsets,jobs.batch,pods,secrets,services"
_KINDS = f"{_LABELLED},podgroups,workloads.kueue.x-k8s.io"


def of_anybody(of: Layout) -> list[str]:
    """Return the objects of any kind that belong to any job."""
    words = (f"--namespace={NAMESPACE}", f"--selector={JOB}", "--output=name", "--ignore-not-found")
    return kubectl.run(of, "get", _LABELLED, *words).split()


def objects(of: Layout, job_ids: Collection[str]) -> list[str]:
    """Return the objects of any kind that are called after one of these jobs."""
    words = ("get", _KINDS, f"--namespace={NAMESPACE}", "--output=name", "--ignore-not-found")
    return [name for name in kubectl.run(of, *words).split() if any(each in name for each in job_ids)]


def processes(of: Layout, words: bytes) -> list[str]:
    """Return the processes on any node that have `words` in their command line."""
    return [f"process {pid}" for pid in groups.pids(of.group()) if words in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
