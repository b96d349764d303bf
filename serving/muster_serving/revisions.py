"""The revisions of one deployment that are loaded in this process, and the shares of traffic of all of them.

Loading is done in a thread; a change of shares is one assignment, so that every request is answered
whole by one revision. A revision that is unloaded goes when the last request that holds it is answered.
A revision that is loaded in another process of this machine has its share by way of
:mod:`muster_serving.elsewhere`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import random

from muster_serving.answer import Headers, which
from muster_serving.elsewhere import Elsewhere
from muster_serving.errors import ModelError
from muster_serving.metrics import RevisionMetrics
from muster_serving.predictor import Predictor


@dataclass(frozen=True)
class Loaded:
    """One revision, ready to answer.

    :param headers: of each of its answers: which version it is.
    """

    revision: str
    predictor: Predictor
    metrics: RevisionMetrics
    headers: Headers


class Revisions:
    """The revisions of one deployment.

    :ivar serving: the one with the greatest share; None where none has any.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.serving: Loaded | Elsewhere | None = None
        self._loaded: dict[str, Loaded] = {}
        self._elsewhere: dict[str, Elsewhere] = {}
        self._sharing: dict[str, Loaded | Elsewhere] = {}
        self._table: tuple[Loaded | Elsewhere, ...] = ()

    def load(self, revision: str, folder: Path, *, model: str | None = None) -> None:
        """Load a version's folder beside the others; it takes no traffic yet. Idempotent.

        :param model: the version's address, for those who ask which version answered.
        :raises ModelError: it cannot be served, or another folder is loaded under that name.
        """
        there = self._loaded.get(revision)
        if there and there.predictor.folder != folder:
            raise ModelError(f"revision {revision} is loaded already from {there.predictor.folder}")
        if not there:
            self._loaded[revision] = Loaded(
                revision, Predictor(folder), RevisionMetrics(self.name, revision), which(revision, model)
            )

    def share(self, shares: Mapping[str, int], ports: Mapping[str, int]) -> None:
        """Share the traffic out from the next request on.

        :param shares: percent by revision, in sum 100.
        :param ports: of those that are loaded in another process, the private port of 127.0.0.1.
        :raises ModelError: one is neither loaded here nor there, or they are not 100 in sum.
        """
        if sum(shares.values()) != 100:
            raise ModelError(f"shares {dict(shares)}: need percents, in sum 100")
        sharing = {
            name: self._one(name, ports)
            for name, percent in sorted(shares.items(), key=lambda each: -each[1])
            if percent
        }
        self._table = tuple(one for name, one in sharing.items() for _ in range(shares[name]))
        self._sharing = sharing
        self.serving = self._table[0]

    def _one(self, revision: str, ports: Mapping[str, int]) -> Loaded | Elsewhere:
        port = ports.get(revision)
        if revision in self._loaded or port is None:
            return self.find(revision)
        there = self._elsewhere.get(revision)
        if there is None or there.port != port:
            there = Elsewhere(revision, port, RevisionMetrics(self.name, revision))
            self._elsewhere[revision] = there
        return there

    def promote(self, revision: str) -> None:
        """Give a loaded revision all traffic from the next request on. :raises ModelError: not loaded."""
        self.share({revision: 100}, {})

    def unload(self, revision: str) -> None:
        """Forget a revision. Idempotent. :raises ModelError: it has a share."""
        if revision in self._sharing:
            raise ModelError(f"revision {revision} serves: give its share to another before it is unloaded")
        gone = [self._loaded.pop(revision, None), self._elsewhere.pop(revision, None)]
        if any(gone):
            RevisionMetrics(self.name, revision).forget()

    def pick(self) -> Loaded | Elsewhere | None:
        """Return which revision is to answer a request, by chance and the shares; None where none serves."""
        table = self._table
        return table[int(random() * 100)] if table else None  # noqa: S311 guessing it gains nothing

    def find(self, revision: str) -> Loaded:
        """Return a loaded revision. :raises ModelError: it is not loaded."""
        if revision not in self._loaded:
            loaded = ", ".join(self._loaded) or "none"
            raise ModelError(f"revision {revision!r:.60} of {self.name} is not loaded; loaded: {loaded}")
        return self._loaded[revision]

    @property
    def sharing(self) -> Mapping[str, Loaded | Elsewhere]:
        """Those that have a share, the greatest first."""
        return self._sharing

    @property
    def names(self) -> list[str]:
        """The loaded revisions, oldest first."""
        return list(self._loaded)
