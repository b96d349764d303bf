"""A page of metrics as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.cli.conftest import home, muster, store

from muster.ext.metrics.collector import Look, MusterCollector, page
from muster.ext.metrics.table import MetricsPart

__all__ = ["home", "muster", "store"]

Values = Mapping[tuple[str, ...], float]
Read = Callable[[MusterCollector], Values]


def values(text: str) -> Values:
    """Return every value by its metric and the values of its labels, in their order."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Clock:
    """The seconds that a test says."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Scrapes:
    """A collector of some parts, and what each scrape of it has."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.failed: list[MetricsPart] = []
        self._collectors: list[MusterCollector] = []

    def of(self, looks: Mapping[MetricsPart, Look], *, most_seconds: float = 60.0) -> Callable[[], str]:
        """Return what scrapes: each a minute after the one before."""
        collector = MusterCollector(
            looks, place="machine", failed=self.failed.append, clock=self.clock, most_seconds=most_seconds
        )
        self._collectors.append(collector)

        def scrape() -> str:
            self.clock.now += 61
            return page(collector).decode()

        return scrape

    def close(self) -> None:
        for each in self._collectors:
            each.close()


@pytest.fixture
def scrapes() -> Iterable[Scrapes]:
    found = Scrapes()
    yield found
    found.close()
