"""A store service whose pod goes fails none of those who use it, its clients and a replica's lines, and they say so.

How many seconds it costs them is measured by ``python -m benchmarks.cluster``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster import store
from tests.cluster.asking import kills
from tests.cluster.inside import layout

from muster.volumes.service.client import ServiceStore

# test_gangs.py kills one under a gang.
pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

KILLS = 10


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ServiceStore]:
    of = layout()
    store.deploy(of, folder="kills")
    with ServiceStore(store.URL, token=store.operator_token(of), cache=tmp_path) as made:
        yield made


def test_ten_kills_fail_nobody_who_uses_it(
    client: ServiceStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    with caplog.at_level(logging.WARNING):
        found = kills(layout(), client, tmp_path, count=KILLS)
    for each in found:
        record_property(
            "a store that was killed: ready again after, and its users served after that",
            f"{each.away:.1f} s, {each.later:.2f} s",
        )
    said = [record.getMessage() for record in caplog.records]
    assert any("does not answer" in each for each in said), said
    assert any("answers again, after" in each for each in said), said
