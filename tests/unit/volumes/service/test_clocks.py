"""Clocks that differ by five minutes: of a store service and its clients, and of two services of one store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.unit.ext.usage.test_log import SPEC
from tests.unit.volumes.service.process import KEY, Service, until

from muster.core.errors import StoreError
from muster.core.status import JobState, JobStatus
from muster.volumes.service import tokens

FIVE = 300.0


@pytest.fixture(params=[FIVE, -FIVE], ids=["fast", "slow"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, fast_seconds=request.param) as made:
        yield made


def test_a_token_counts_by_the_clock_of_the_service_which_says_so(service: Service) -> None:
    fast = service._fast_seconds
    for lifetime, counts in ((3600.0, True), (FIVE + 60, True), (FIVE - 60, fast < 0), (-60.0, fast < 0)):
        store = service.client(token=tokens.operator_token((KEY.encode(),), lifetime_seconds=lifetime))
        if counts:
            assert store.volumes() == []
            continue
        with pytest.raises(StoreError, match=r"expired at .*, by the clock of the store service, which says"):
            store.volumes()


def test_versions_leases_and_jobs_are_kept_whatever_the_clock(service: Service, tmp_path: Path) -> None:
    store = service.client()
    (tmp_path / "rows").write_text("1")
    first, second, third = (store.add("a/rows", tmp_path / "rows") for _ in range(3))
    store.ledger.create("reads", SPEC)
    store.lease([first.address], holder="reads")
    assert [each.number for each in store.collect(keep_last=1).plan.versions] == [second.number]
    assert [each.number for each in store.versions("a/rows")] == [first.number, third.number]
    ended = JobStatus(job_id="reads", state=JobState.FAILED, submitted=time.time(), ended=time.time())
    store.ledger.update(ended)
    assert [each.number for each in store.collect(keep_last=1).plan.versions] == [first.number]
    assert store.ledger.jobs() == ["reads"]  # it has ended five minutes from now, or ago: no thirty days


def test_two_services_ten_minutes_apart_never_serve_both_and_number_on(tmp_path: Path) -> None:
    """Who serves is said by a lock and a term, and no clock."""
    (tmp_path / "rows").write_text("1")
    root = tmp_path / "store"
    with ExitStack() as both:
        one, other = (
            both.enter_context(
                Service(tmp_path / name, "--advertise", "127.0.0.1", root=root, fast_seconds=fast)
            )
            for name, fast in (("fast", FIVE), ("slow", -FIVE))
            if not (tmp_path / name).mkdir()  # type: ignore[func-returns-value]
        )

        def terms() -> list[str]:
            asked = (httpx.get(f"{each.url}/term", trust_env=False).text for each in (one, other))
            return list(dict.fromkeys(asked))

        made, served = [], []
        for turn in range(4):
            (term,) = until(terms, lambda found: len(found) == 1 and found[0] not in served)
            served.append(term)
            stores = [each.client(f"cache-{turn}") for each in (one, other)]
            made += [store.add("a/rows", tmp_path / "rows").number for store in stores]
            leads = (one, other)[turn % 2]
            leads.kill()
            leads.start()
        assert made == list(range(1, 9))
