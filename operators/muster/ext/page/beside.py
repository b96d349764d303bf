"""What people read about a version and is another version: its card, its validation, the jobs that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from muster.airflow.links import DOCUMENTS
from muster.core.errors import MusterError
from muster.ext.page.described import row
from muster.ext.page.uses import Use, Uses
from muster.volumes.base import Record
from muster.volumes.protocols import Store

MOST_DOCUMENTS = 8
MOST_INPUTS = 24
_MOST_USES = 50


def used_by(uses: Uses, address: str) -> list[dict[str, Any]]:
    """Return the jobs that read a version, the newest first: a line each, with the input's name."""
    return [{**row(use.job), "input": use.name} for use in uses.of(address)[:_MOST_USES]]


def documents(
    store: Store, uses: Uses, address: str, record: Record, *, readable: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """Return the documents that jobs made of a version, and the validations of its inputs.

    :param readable: whether the user may read the files of a Dag's versions, by its id.
    :return: each with ``title``, the ``address`` of its version, its ``path`` there, and ``says``.
    """
    found = (
        each
        for use in _relevant(uses, address, record)
        if readable(use.line.dag_id)
        for each in _of(store, use)
    )
    return list(islice(found, MOST_DOCUMENTS))


def _relevant(uses: Uses, address: str, record: Record) -> Iterator[Use]:
    """Yield the jobs that made something of the version, then those that validated one of its inputs; each once."""
    yield from uses.of(address)
    inputs = [version.address for versions in record.inputs.values() for version in versions]
    seen: set[str] = set()
    for each in inputs[-MOST_INPUTS:]:
        for use in uses.of(each):
            if use.line.validates and use.line.job_id not in seen:
                seen.add(use.line.job_id)
                yield use


def _of(store: Store, use: Use) -> Iterator[dict[str, Any]]:
    for made in use.made:
        path = _document(store, made)
        if path:
            said = use.job.failed_expectations
            title = (
                "Data Docs" if use.line.validates else (use.job.spec.origin.task_id if use.job.spec else made)
            )
            yield {"title": title, "address": made, "path": path, "says": said, "job_id": use.job.job_id}
            return


def _document(store: Store, address: str) -> str:
    try:
        held = store.manifest(address)
        return next((name for name in DOCUMENTS if name in held), "")
    except MusterError:  # it is damaged, which its own page says
        return ""
