"""The revisions of one deployment that are loaded in this process, and the shares of traffic of all of them.

Loading an ONNX model runs in a thread, any other model in a process of its own. A change of shares is one assignment, so that one revision answers each request whole. An
unloaded revision is freed when the last request that uses it is answered. Requests for a revision in another process
of this machine are passed on by :mod:`muster_serving.elsewhere`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import random

from muster_serving.answer import Headers, which
from muster_serving.elsewhere import RemoteRevision
from muster_serving.errors import ModelError
from muster_serving.histograms import Histograms
from muster_serving.metrics import RevisionMetrics
from muster_serving.predictor import Predictor
from muster_serving.process.predictor import ProcessPredictor
from muster_serving.process.start import Setup
from muster_serving.request_log import LogOrder, RequestLogWriter


@dataclass(frozen=True)
class LoadedRevision:
    """One revision, ready to answer.

    :param headers: headers of each of its answers, which name the version.
    :param log: takes its answered requests; None: they are not kept.
    :param histograms: count its answered requests; None: they are not counted by the bins of the training rows.
    """

    revision: str
    predictor: Predictor | ProcessPredictor
    metrics: RevisionMetrics
    headers: Headers
    log: RequestLogWriter | None = None
    histograms: Histograms | None = None


class Revisions:
    """The revisions of one deployment.

    :param told: is called with a revision, with what is wrong with its workers now, and whether one has just ended.
    :ivar serving: the one with the greatest share; None where none has any.
    """

    def __init__(self, name: str, told: Callable[[str, str, bool], None] = lambda *_: None) -> None:
        self.name = name
        self.told = told
        self.serving: LoadedRevision | RemoteRevision | None = None
        self._loaded: dict[str, LoadedRevision] = {}
        self._elsewhere: dict[str, RemoteRevision] = {}
        self._sharing: dict[str, LoadedRevision | RemoteRevision] = {}
        self._table: tuple[LoadedRevision | RemoteRevision, ...] = ()

    async def load(
        self,
        revision: str,
        folder: Path,
        *,
        model: str | None = None,
        setup: Setup | None = None,
        log: LogOrder | None = None,
        counts_inputs: bool = False,
    ) -> None:
        """Load a version's folder beside the others, without a share. Idempotent.

        :param model: the version's address, for a header of each answer.
        :param setup: how its workers are to run; None for an ONNX model, which runs in this process.
        :param log: what of its requests is kept; None: nothing.
        :param counts_inputs: whether requests are counted by the bins of the training rows.
        :raises ModelError: it cannot be served, or another folder is loaded under that name.
        """
        there = self._loaded.get(revision)
        if there and there.predictor.folder != folder:
            raise ModelError(f"revision {revision} is loaded already from {there.predictor.folder}")
        if not there:
            predictor = await self._predictor(revision, folder, setup)
            histograms = None
            try:
                if counts_inputs:
                    histograms = await asyncio.to_thread(Histograms.load, folder, predictor.signature)
            except BaseException:  # an error or the end of the task: nothing else would end its workers
                _close(predictor)
                raise
            if revision in self._loaded:  # asked twice at once
                _close(predictor)
                return
            self._loaded[revision] = LoadedRevision(
                revision,
                predictor,
                RevisionMetrics(self.name, revision, histograms, predictor.signature.inputs),
                which(revision, model),
                log
                and RequestLogWriter(
                    log, predictor.signature, name=self.name, revision=revision, model=model
                ),
                histograms,
            )

    async def _predictor(
        self, revision: str, folder: Path, setup: Setup | None
    ) -> Predictor | ProcessPredictor:
        if setup is None:
            return await asyncio.to_thread(Predictor, folder)

        def told(what: str, ended: bool) -> None:
            self.told(revision, what, ended)

        predictor = ProcessPredictor(folder, setup, revision=revision, told=told)
        await predictor.start()
        return predictor

    def share(self, shares: Mapping[str, int], ports: Mapping[str, int]) -> None:
        """Divide the traffic, from the next request on.

        :param shares: percent by revision; the sum is 100.
        :param ports: by revision that is loaded in another process, that process's private port of 127.0.0.1.
        :raises ModelError: a revision is loaded neither here nor there, or the sum is not 100.
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

    def _one(self, revision: str, ports: Mapping[str, int]) -> LoadedRevision | RemoteRevision:
        port = ports.get(revision)
        if revision in self._loaded or port is None:
            return self.find(revision)
        there = self._elsewhere.get(revision)
        if there is None or there.port != port:
            there = RemoteRevision(revision, port, RevisionMetrics(self.name, revision))
            self._elsewhere[revision] = there
        return there

    def unload(self, revision: str) -> None:
        """Forget a revision. Idempotent. :raises ModelError: it has a share."""
        if revision in self._sharing:
            raise ModelError(f"revision {revision} serves: give its share to another before it is unloaded")
        loaded, elsewhere = self._loaded.pop(revision, None), self._elsewhere.pop(revision, None)
        if loaded:
            _close(loaded.predictor)
            if loaded.log:
                loaded.log.close()
        if known := loaded or elsewhere:
            known.metrics.forget()

    async def close(self) -> None:
        """End the workers of all revisions, and write what their logs still hold. Call it once no request is under way."""
        for loaded in self._loaded.values():
            _close(loaded.predictor)
            if loaded.log:
                await asyncio.to_thread(loaded.log.close)

    def pick(self) -> LoadedRevision | RemoteRevision | None:
        """Choose the revision for a request at random, weighted by the shares; None where none serves."""
        table = self._table
        return table[int(random() * 100)] if table else None  # noqa: S311 no secret depends on it

    def find(self, revision: str) -> LoadedRevision:
        """Return a loaded revision. :raises ModelError: it is not loaded."""
        if revision not in self._loaded:
            loaded = ", ".join(self._loaded) or "none"
            raise ModelError(f"revision {revision!r:.60} of {self.name} is not loaded; loaded: {loaded}")
        return self._loaded[revision]

    @property
    def sharing(self) -> Mapping[str, LoadedRevision | RemoteRevision]:
        """The revisions with a share, the greatest first."""
        return self._sharing

    @property
    def names(self) -> list[str]:
        """The loaded revisions, oldest first."""
        return list(self._loaded)


def _close(predictor: Predictor | ProcessPredictor) -> None:
    """End what runs for a predictor; a session of ONNX Runtime is freed with its last reference."""
    if isinstance(predictor, ProcessPredictor):
        predictor.close()
