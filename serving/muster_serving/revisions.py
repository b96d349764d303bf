"""The revisions of one deployment that are loaded in this process, and which of them serves.

Loading is done in a thread; the switch is one assignment, so that every request is answered whole
by one revision. A revision that is unloaded goes when the last request that holds it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster_serving.errors import ModelError
from muster_serving.metrics import RevisionMetrics
from muster_serving.predictor import Predictor


@dataclass(frozen=True)
class Loaded:
    """One revision, ready to answer."""

    revision: str
    predictor: Predictor
    metrics: RevisionMetrics


class Revisions:
    """The loaded revisions of one deployment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.serving: Loaded | None = None
        self._loaded: dict[str, Loaded] = {}

    def load(self, revision: str, folder: Path) -> None:
        """Load a version's folder beside the others; it takes no traffic yet. Idempotent.

        :raises ModelError: it cannot be served, or another folder is loaded under that name.
        """
        there = self._loaded.get(revision)
        if there and there.predictor.folder != folder:
            raise ModelError(f"revision {revision} is loaded already from {there.predictor.folder}")
        if not there:
            self._loaded[revision] = Loaded(revision, Predictor(folder), RevisionMetrics(self.name, revision))

    def promote(self, revision: str) -> None:
        """Give a loaded revision all traffic from the next request on. :raises ModelError: not loaded."""
        self.serving = self.find(revision)

    def unload(self, revision: str) -> None:
        """Forget a revision. Idempotent. :raises ModelError: it serves."""
        if self.serving and self.serving.revision == revision:
            raise ModelError(f"revision {revision} serves: promote another one before it is unloaded")
        gone = self._loaded.pop(revision, None)
        if gone:
            gone.metrics.forget()

    def find(self, revision: str) -> Loaded:
        """Return a loaded revision. :raises ModelError: it is not loaded."""
        if revision not in self._loaded:
            loaded = ", ".join(self._loaded) or "none"
            raise ModelError(f"revision {revision!r:.60} of {self.name} is not loaded; loaded: {loaded}")
        return self._loaded[revision]

    @property
    def names(self) -> list[str]:
        """The loaded revisions, oldest first."""
        return list(self._loaded)
