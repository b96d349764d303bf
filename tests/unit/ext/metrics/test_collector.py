"""A page of metrics: whole or saying what it lacks, and at a bounded cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

import httpx
import pytest
from tests.unit.ext.metrics.conftest import Scrapes, values
from tests.waiting import GUARD_SECONDS

from muster.core.errors import SpecError, StoreError
from muster.ext.metrics.collector import CONTENT_TYPE, EVERY_SECONDS, MusterCollector, listening
from muster.ext.metrics.table import METRICS, NAMED, MetricKind, MetricsPart, Sample

VOLUMES = Sample(metric="muster_volumes", value=2)
JOBS = Sample(metric="muster_jobs", value=1, labels={"state": "running"})


class Store:
    """A part that can be away."""

    def __init__(self) -> None:
        self.away: Exception | None = None
        self.asked = 0

    def __call__(self) -> Iterable[Sample]:
        self.asked += 1
        yield VOLUMES
        if self.away is not None:
            raise self.away  # in the middle: what it said before does not count
        yield Sample(metric="muster_store_bytes", value=9)


def test_a_part_that_cannot_be_read_has_no_metric_and_the_page_says_why(
    scrapes: Scrapes, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    scrape = scrapes.of({MetricsPart.STORE: store, MetricsPart.JOBS: lambda: [JOBS]})
    assert values(scrape())["muster_volumes",] == 2
    store.away = StoreError("the store service at muster-store\nis away")
    with caplog.at_level(logging.INFO):
        text = scrape()
        scrape()
    found = values(text)
    assert text.startswith("# muster: the store cannot be read: the store service at muster-store is away\n")
    assert found["muster_scrape_success", "store"] == 0
    assert not [key for key in found if NAMED.get(key[0]) and NAMED[key[0]].part is MetricsPart.STORE]
    assert found["muster_jobs", "running"] == found["muster_scrape_success", "jobs"] == 1
    assert scrapes.failed == [MetricsPart.STORE, MetricsPart.STORE], "it is opened anew for the next look"
    store.away = None
    with caplog.at_level(logging.INFO):
        assert values(scrape())["muster_volumes",] == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert said[1] == "the store can be read again"


def test_a_defect_of_one_part_leaves_the_others(scrapes: Scrapes) -> None:
    store = Store()
    store.away = KeyError("x")
    scrape = scrapes.of({MetricsPart.STORE: store, MetricsPart.JOBS: lambda: [JOBS]})
    text = scrape()
    assert "the store cannot be read: a defect of muster's own" in text
    assert values(text)["muster_jobs", "running"] == 1


def test_however_often_it_is_scraped_a_part_is_asked_once_in_its_interval(scrapes: Scrapes) -> None:
    store = Store()
    scrape = scrapes.of({MetricsPart.STORE: store})
    first = scrape()
    for _ in range(5):
        scrapes.clock.now -= 61 - EVERY_SECONDS[MetricsPart.STORE] / 10
        assert values(scrape())["muster_volumes",] == values(first)["muster_volumes",]
    assert store.asked == 1


def test_a_part_that_does_not_answer_delays_no_page_for_ever_and_is_not_asked_twice(
    scrapes: Scrapes,
) -> None:
    go, asked = threading.Event(), []

    def slow() -> Iterable[Sample]:
        asked.append(1)
        go.wait(GUARD_SECONDS)
        return [VOLUMES]

    scrape = scrapes.of({MetricsPart.STORE: slow, MetricsPart.JOBS: lambda: [JOBS]}, most_seconds=0.05)
    for _ in range(3):
        text = scrape()
    assert "the store cannot be read: it has not answered for 122 s" in text
    assert values(text)["muster_jobs", "running"] == 1
    assert len(asked) == 1
    go.set()
    while (found := values(scrape()))["muster_scrape_success", "store"] == 0:
        pass
    assert found["muster_volumes",] == 2


def test_labels_that_others_chose_cannot_break_the_page(scrapes: Scrapes) -> None:
    hostile = 'a"} 1\nmuster_jobs{state="queued\\'
    sample = Sample(metric="muster_volume_versions", value=1, labels={"volume": hostile})
    found = values(scrapes.of({MetricsPart.STORE: lambda: [sample]})())
    assert found["muster_volume_versions", hostile] == 1
    assert not [key for key in found if key[0] == "muster_jobs"]


def test_every_metric_follows_prometheus_s_conventions() -> None:  # prometheus.io/docs/practices/naming
    assert len(NAMED) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("muster_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert not set(metric.labels) & {"job", "instance", "le"}, "Prometheus's own labels"
        assert not set(metric.labels) & {"job_id", "run_id"}, "without bound"


@pytest.fixture
def url() -> Iterable[str]:
    collector = MusterCollector({MetricsPart.STORE: lambda: [VOLUMES]}, place="cluster")
    with listening(collector, host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    collector.close()


def test_it_is_served(url: str) -> None:
    answer = httpx.get(f"{url}/metrics?x=1", trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    found = values(answer.text)
    assert found["muster_volumes",] == 2
    assert [key[1] for key in found if key[0] == "muster_build_info"] == ["cluster"]
    assert httpx.get(f"{url}/healthz", trust_env=False).text == "ok\n"
    assert httpx.get(f"{url}/secrets", trust_env=False).status_code == 404
    assert httpx.post(f"{url}/metrics", trust_env=False).status_code == 501


def test_a_port_that_is_taken_is_said(url: str) -> None:
    port = int(url.rpartition(":")[2])
    collector = MusterCollector({MetricsPart.STORE: lambda: [VOLUMES]}, place="cluster")
    with pytest.raises(SpecError, match=rf"port {port} of 127\.0\.0\.1 .*name another"):
        listening(collector, host="127.0.0.1", port=port)
    collector.close()
