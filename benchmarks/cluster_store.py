"""A store service that is killed: how long its users wait for an answer once the next one is ready.

Three clients ask it without pause, and a replica brings its lines; the figure is that of the slowest of the four.
"""

from __future__ import annotations

from tests.cluster.asking import kills

from benchmarks.cluster_site import Site
from benchmarks.pairs import Ratio, ratio

LATER_SECONDS = 3.0


def measure(site: Site, *, count: int) -> list[Ratio]:
    """Return how long users waited for an answer, beside the promised seconds.

    :param count: how often the service is killed.
    """
    folder = site.folder / "spool"
    folder.mkdir()
    took = [each.later for each in kills(site.layout, site.backend.store, folder, count=count)]
    return [
        ratio("served after it is ready, to 3 s", [LATER_SECONDS] * count, took, unit="s", limit=1.0),
        ratio("the slowest, to 3 s", [LATER_SECONDS], [max(took)], unit="s", limit=1.0),
    ]
