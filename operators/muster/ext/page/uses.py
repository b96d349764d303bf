"""Which jobs read a version, and what was made of it: lineage forward, from the jobs of the ledger.

A record names the versions that its version was made from, so lineage back is in the store. Forward it is
nowhere; but each job's spec names its inputs and each status its outputs, and the board has both. Jobs that gc
deleted (30 days after their end) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from muster.airflow.links import DOCUMENTS
from muster.core.errors import MusterError
from muster.ext.page.board import Board, Job, JobLine
from muster.ext.page.described import row
from muster.volumes.base import Record
from muster.volumes.protocols import Store

MOST_DOCUMENTS = 8
MOST_INPUTS = 24
_MOST_USES = 50


def used_by(uses: Uses, address: str) -> list[dict[str, Any]]:
    """Return the jobs that read a version, the newest first: a line each, with the input's name."""
    return [{**row(use.job), "input": use.name} for use in uses.of(address)[:_MOST_USES]]


def documents_of(
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


@dataclass(frozen=True)
class Use:
    """A job that read a version, and the name of the input. Its documents are read when they are asked for."""

    line: JobLine
    name: str
    board: Board

    @cached_property
    def job(self) -> Job:
        """The job with its documents; only with its id where gc deleted it just now."""
        return next(iter(self.board.jobs([self.line])), Job(job_id=self.line.job_id))

    @property
    def made(self) -> tuple[str, ...]:
        """The addresses of the versions that the job made."""
        return self.job.status.addresses if self.job.status else ()


@dataclass(frozen=True, kw_only=True)
class Descendant:
    """One version that was made from another, directly or not.

    :param depth: 1 for what was made from the first version itself.
    :param parent: the version that it was made from, which its job read as `name`.
    """

    address: str
    depth: int
    parent: str
    name: str
    job: Job


class Uses:
    """The uses of every version by the jobs of these Dags."""

    def __init__(self, board: Board, dags: Collection[str]) -> None:
        self._board, self._dags = board, dags

    def of(self, address: str) -> list[Use]:
        """Return the uses of one version, the newest job first."""
        found = self._board.readers(address)
        return [Use(line, name, self._board) for line, name in found if line.dag_id in self._dags]

    def descendants(self, address: str) -> Iterator[Descendant]:
        """Walk forward from a version, nearest first.

        A version that was made from several of those found comes once for each of them.
        """
        waiting, seen = [(address, 0)], {address}
        while waiting:
            parent, depth = waiting.pop(0)
            for use in self.of(parent):
                for made in use.made:
                    yield Descendant(address=made, depth=depth + 1, parent=parent, name=use.name, job=use.job)
                    if made not in seen:
                        seen.add(made)
                        waiting.append((made, depth + 1))
