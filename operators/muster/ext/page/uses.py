"""Which jobs read a version, and what was made of it: lineage forward, from the jobs of the ledger.

A record names the versions that its version was made from, so lineage back is in the store. Forward it is
nowhere; but each job's spec names its inputs and each status its outputs, and the board has both. Jobs that gc
deleted (30 days after their end) are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from muster.ext.page.board import Board, Job, Line


@dataclass(frozen=True)
class Use:
    """A job that read a version, and the name of the input. Its documents are read when they are asked for."""

    line: Line
    name: str
    board: Board

    @cached_property
    def job(self) -> Job:
        """The job with its documents; only with its id where gc deleted it just now."""
        return next(iter(self.board.jobs([self.line])), Job(job_id=self.line.job_id))

    @property
    def made(self) -> tuple[str, ...]:
        """The addresses of the versions that the job made."""
        result = self.job.status.result if self.job.status else None
        return tuple(each for made in result.outputs.values() for each in made) if result else ()


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
