"""Opens what metrics are read from, as the settings say: the store, the capacity, the deployments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar

from muster.backends import choose
from muster.backends.metrics import looks
from muster.backends.metrics.collector import MusterCollector
from muster.backends.metrics.jobs import Jobs
from muster.backends.metrics.samples import Sample
from muster.backends.metrics.table import MetricsPart
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.capacity import Capacity
    from muster.backends.releases.deployments import Deployments
    from muster.volumes.protocols import Store

T = TypeVar("T")


def collector_of(settings: Settings) -> MusterCollector:
    """Return the metrics of the place that the settings name; nothing is asked yet.

    What could not be read is opened anew for the next look: a token may have been renewed.
    """
    stores: dict[MetricsPart, _Opened[Store]] = {
        part: _Opened(lambda stack: _store(settings, stack)) for part in (MetricsPart.STORE, MetricsPart.JOBS)
    }
    capacities: dict[MetricsPart, _Opened[Capacity]] = {
        part: _Opened(lambda _: choose.choose_capacity(settings))
        for part in (MetricsPart.QUEUES, MetricsPart.GPUS)
    }
    deployments: _Opened[Deployments] = _Opened(
        lambda stack: stack.enter_context(
            choose.open_deployments(settings, patience_seconds=choose.LOOK_SECONDS)
        )
    )
    opened: dict[MetricsPart, _Opened[Store] | _Opened[Capacity] | _Opened[Deployments]] = {
        **stores,
        **capacities,
        MetricsPart.DEPLOYMENTS: deployments,
    }
    lines = _Lines()
    jobs = Jobs(lambda: lines.names)
    return MusterCollector(
        {
            MetricsPart.STORE: lambda: looks.of_store(stores[MetricsPart.STORE].now()),
            MetricsPart.JOBS: lambda: jobs.look(stores[MetricsPart.JOBS].now().ledger),
            MetricsPart.QUEUES: lambda: lines.look(capacities[MetricsPart.QUEUES].now()),
            MetricsPart.GPUS: lambda: looks.of_gpus(capacities[MetricsPart.GPUS].now().gpus()),
            MetricsPart.DEPLOYMENTS: lambda: looks.of_deployments(deployments.now()),
        },
        place="machine" if settings.cluster is None else "cluster",
        failed=lambda part: opened[part].forget(),
    )


class _Lines:
    """The queues, and their names for the jobs that stood in them."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()

    def look(self, capacity: Capacity) -> Iterable[Sample]:
        found = capacity.queues()
        self.names = tuple(line.name for line in found.lines)
        return looks.of_queues(found)


class _Opened(Generic[T]):
    """One source, opened when it is needed and again after it failed."""

    def __init__(self, open_: Callable[[ExitStack], T]) -> None:
        self._open = open_
        self._lock = threading.Lock()
        self._now: tuple[T, ExitStack] | None = None

    def now(self) -> T:
        with self._lock:
            if self._now is None:
                stack = ExitStack()
                self._now = (self._open(stack), stack)
            return self._now[0]

    def forget(self) -> None:
        with self._lock:
            before, self._now = self._now, None
        if before is not None:
            before[1].close()


def _store(settings: Settings, stack: ExitStack) -> Store:
    store = choose.choose_store(settings, patience_seconds=choose.LOOK_SECONDS)
    stack.callback(store.close)
    return store
