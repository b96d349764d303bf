"""Finds what jobs have left on the cluster, by its labels, and what has ended with nobody looking."""

from __future__ import annotations

import logging

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.lifecycle.jobs import Jobs
from muster.backends.kubernetes.state.roots import delete_root
from muster.backends.kubernetes.state.sight import Sight
from muster.core.errors import MusterError, Unreachable

log = logging.getLogger(__name__)


def sweep(client: Client, *, sight: Sight, jobs: Jobs) -> tuple[str, ...]:
    """Delete the objects of jobs that have ended, and end those that came to their end; return the jobs.

    Any number of us may do it at once. Where the cluster does not answer, the next round goes on. Objects of jobs that the ledger does not know are left alone.
    """
    roots: dict[str, list[Document]] = {}
    for document in sight.roots():
        roots.setdefault(document["metadata"]["labels"][JOB_LABEL], []).append(document)
    swept = []
    for job_id, status in jobs.statuses(sorted(roots)).items():
        if not status.state.ended:
            continue
        try:
            begun = [delete_root(client, root) for root in roots[job_id]]
            if any(begun):
                swept.append(job_id)
        except Unreachable as error:
            log.warning("job %s and those after it are swept in the next round: %s", job_id, error)
            break
        except MusterError as error:  # the others are swept all the same
            log.warning("job %s cannot be swept: %s", job_id, error)
    return tuple(swept)
