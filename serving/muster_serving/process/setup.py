"""How the workers of one revision are to run: what the keeper, or a pod's command, says beside the version's folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster_serving.errors import ModelError


@dataclass(frozen=True)
class Setup:
    """The workers of one revision.

    :param python: the interpreter of the author's environment.
    :param socket: of the host that starts workers in another container; empty where they are started from here.
    :param most: the most rows that are computed together; 0 computes each request alone.
    :param wait_ms: how long a request waits for others.
    :param request_seconds: how long a call of the predictor may take, and how long a request waits for a worker; of a
        predictor that streams, how long each part may take, and all parts together.
    :param load_seconds: how long a worker may take to load the version.
    :param memory_gib: of all workers together.
    :param cpus: of all workers together.
    :param trusted: what may be loaded though it can run code.
    :param stream: whether the predictor yields its answers in parts.
    :param max_requests: after so many answered requests a worker is replaced; 0: never.
    """

    python: str = sys.executable
    socket: str = ""
    workers: int = 1
    most: int = 0
    wait_ms: float = 0.0
    request_seconds: float = 30.0
    load_seconds: float = 120.0
    memory_gib: float = 2.0
    cpus: float = 1.0
    trusted: tuple[str, ...] = ()
    stream: bool = False
    max_requests: int = 0

    def __post_init__(self) -> None:
        if self.stream and self.most:
            raise ModelError("a model that streams computes each request alone: leave batch out")

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Setup:
        """Read it from parsed JSON. :raises TypeError: an unknown key. :raises ModelError: it cannot be."""
        setup = cls(**document)
        return replace(setup, trusted=tuple(setup.trusted))

    @property
    def worker_gib(self) -> float:
        """What one worker may take."""
        return self.memory_gib / self.workers

    @property
    def threads(self) -> int:
        """How many threads the libraries of one worker may start."""
        return max(1, int(self.cpus / self.workers))
