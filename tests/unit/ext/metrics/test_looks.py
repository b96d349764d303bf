"""The store, queues, GPUs and deployments as metrics, from the answers that they give."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.platform_in_memory import MemoryPlatform
from tests.unit.ext.metrics.conftest import Scrapes, values
from tests.unit.ext.usage.test_table import line
from tests.unit.volumes.service.process import Service

from muster.backends.capacity import Cards, Gpus, Line, Queues, Share, WaitingJob
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.figures import DeploymentSample
from muster.core.data import Pinned
from muster.core.deployment import DeploymentStatus, Release, Revision, RevisionState
from muster.core.errors import BackendError, SpecError
from muster.core.room import Room
from muster.core.tally import month_of
from muster.ext.metrics import sources
from muster.ext.metrics.sources import MOST_VOLUMES, Drifts, line_of, of_airflow, of_keepers
from muster.ext.metrics.table import METRICS, MOST_LABELS, MetricsPart
from muster.ext.usage import log
from muster.volumes.folder import FolderStore

WAITS = WaitingJob(name="w", queue="team-a", priority=1, since=50.0, why="full", needs={})


def told(scrapes: Scrapes, part: MetricsPart, samples: Any) -> dict[tuple[str, ...], float]:
    """Return the part's metrics as a page tells them."""
    scrape = scrapes.of({part: lambda: samples() if callable(samples) else samples})
    names = {metric.name for metric in METRICS if metric.part is part}
    return {key: number for key, number in values(scrape()).items() if key[0] in names}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_a_store_tells_its_room_its_volumes_and_its_upkeep(
    store: FolderStore, tmp_path: Path, scrapes: Scrapes
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("1\n")
    for _ in range(2):
        newest = store.add("raw/rows", tmp_path / "rows")
    store.check()
    found = told(scrapes, MetricsPart.STORE, lambda: sources.of_store(store))
    assert found["muster_volumes",] == 1
    assert found["muster_volume_versions", "raw/rows"] == 2
    assert found["muster_volume_newest_timestamp_seconds", "raw/rows"] == pytest.approx(newest.created)
    assert 0 < found["muster_store_free_bytes",] <= found["muster_store_bytes",]
    assert found["muster_store_last_fsck_timestamp_seconds", "quick"] == pytest.approx(time.time(), abs=60)
    assert found["muster_store_last_fsck_timestamp_seconds", "deep"] == 0
    assert found["muster_store_damaged_versions", "quick"] == 0
    assert ("muster_store_damaged_versions", "deep") not in found
    assert (found["muster_last_gc_timestamp_seconds",], found["muster_last_sweep_timestamp_seconds",]) == (
        0,
        0,
    )


def test_a_store_service_tells_the_same(tmp_path: Path, scrapes: Scrapes) -> None:
    """What a cluster's metrics are read from: its service, over HTTP."""
    with Service(tmp_path) as service:
        client = service.client()
        (tmp_path / "a.csv").write_text("1\n")
        client.add("raw/rows", tmp_path / "a.csv")
        client.note_sweep()
        found = told(scrapes, MetricsPart.STORE, lambda: sources.of_store(client))
        behind = told(scrapes, MetricsPart.STORE, lambda: sources.of_store(FolderStore(service.root)))
    assert found.keys() == behind.keys()
    changing = ("muster_store_answer_seconds", "muster_store_free_bytes", "muster_store_free_files")
    same = [key for key in found if key[0] not in changing]
    assert {key: found[key] for key in same} == {key: behind[key] for key in same}
    assert found["muster_last_sweep_timestamp_seconds",] == pytest.approx(time.time(), abs=60)


class Large:
    """A store of many volumes that counts its questions."""

    def __init__(self, volumes: int) -> None:
        self._volumes = [f"v{number:05}" for number in range(volumes)]
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return {
            "room": lambda: Room(disk="d", free_bytes=1, total_bytes=2),
            "volumes": lambda: self._volumes,
            "count": lambda _: 3,
            "newest": lambda _, limit: [],
            "upkept": list,
        }[name]


def test_the_cost_of_a_look_does_not_grow_beyond_its_volumes(scrapes: Scrapes) -> None:
    large = Large(10_000)
    found = told(scrapes, MetricsPart.STORE, lambda: sources.of_store(large))  # type: ignore[arg-type]
    assert large.asked == 3 + 2 * MOST_VOLUMES
    assert found["muster_volumes",] == 10_000
    assert sum(key[0] == "muster_volume_versions" for key in found) == MOST_VOLUMES
    assert ("muster_store_free_files",) not in found


@pytest.mark.slow
def test_of_a_volume_of_ten_thousand_versions_only_the_newest_is_read(
    store: FolderStore, tmp_path: Path, scrapes: Scrapes
) -> None:
    """The others have nothing that could be read: a look that read them would not count them."""
    for number in range(1, 10_000):
        (store.layout.version("raw/rows", number) / "data").mkdir(parents=True)
    (tmp_path / "a.csv").write_text("1\n")
    newest = store.add("raw/rows", tmp_path / "a.csv")
    found = told(scrapes, MetricsPart.STORE, lambda: sources.of_store(store))
    assert found["muster_volume_versions", "raw/rows"] == newest.number == 10_000
    assert found["muster_volume_newest_timestamp_seconds", "raw/rows"] == pytest.approx(newest.created)


def test_queues_tell_who_waits_longest(scrapes: Scrapes) -> None:
    found = Queues(
        lines=(
            Line(name="team-a", waiting=2, running=1),
            Line(name="team-b", waiting=0, running=0, stopped="held"),
        ),
        waiting=(WAITS, replace(WAITS, since=40.0), replace(WAITS, queue="elsewhere", since=1.0)),
    )
    assert told(scrapes, MetricsPart.QUEUES, sources.of_queues(found)) == {
        ("muster_queue_jobs", "team-a", "waiting"): 2,
        ("muster_queue_jobs", "team-a", "running"): 1,
        ("muster_queue_jobs", "team-b", "waiting"): 0,
        ("muster_queue_jobs", "team-b", "running"): 0,
        ("muster_queue_stopped", "team-a"): 0,
        ("muster_queue_stopped", "team-b"): 1,
        ("muster_queue_oldest_timestamp_seconds", "team-a"): 40,
    }


@pytest.mark.parametrize(
    ("named", "lines", "line"),
    [
        ("team-a", ("team-a", "team-b"), "team-a"),
        ("team-a", ("local",), "local"),
        (None, ("local",), "local"),
        (None, ("team-a", "team-b"), "-"),
        ("team-c", ("team-a", "team-b"), "team-c"),
        (None, (), "-"),
    ],
)
def test_a_job_stands_in_the_queue_that_it_names_or_in_the_only_one(
    named: str | None, lines: tuple[str, ...], line: str
) -> None:
    assert line_of(named, lines) == line


def test_gpus_tell_what_is_used_free_and_on_nodes_that_take_no_jobs(scrapes: Scrapes) -> None:
    found = Gpus(
        by_class=(Cards(name="a100", total=16, used=5),),
        by_node=(
            Cards(name="n1", gpu_class="a100", total=8, used=5),
            Cards(name="n2", gpu_class="a100", total=8, why_not="cordoned"),
        ),
        shares=(
            Share(team="t", flavor="f1", gpu_class="a100", quota=4, used=3, borrowed=0),
            Share(team="t", flavor="f2", gpu_class="a100", quota=4, used=2, borrowed=1),
        ),
    )
    assert told(scrapes, MetricsPart.GPUS, sources.of_gpus(found)) == {
        ("muster_gpus", "a100", "used"): 5,
        ("muster_gpus", "a100", "free"): 3,
        ("muster_gpus", "a100", "unavailable"): 8,
        ("muster_team_gpus", "a100", "quota", "t"): 8,
        ("muster_team_gpus", "a100", "used", "t"): 5,
        ("muster_team_gpus", "a100", "borrowed", "t"): 1,
    }


MODEL = Pinned(address="volume://flights/model@7", digest="b3:" + "0" * 64)
SERVING = Revision(name="r1", model=MODEL, state=RevisionState.SERVING, percent=90, ready=2, wanted=2)
STATUS = DeploymentStatus(
    name="flights",
    url="u",
    ready=True,
    token="t",
    revisions=(
        Revision(
            name="r2", model=MODEL, state=RevisionState.READY, percent=10, wanted=2, ready=1, restarts=3
        ),
        SERVING,
        Revision(name="r0", model=MODEL, state=RevisionState.RETIRED),
    ),
    release=Release(revision="r2", champion="r1", by="me", since=1_000.0),
    drift="its route was edited",
)


def of_status(scrapes: Scrapes, status: DeploymentStatus) -> dict[tuple[str, ...], float]:
    return told(
        scrapes, MetricsPart.DEPLOYMENTS, lambda: sources.of_deployments([DeploymentSample(status=status)])
    )


def test_a_deployment_tells_how_it_stands(scrapes: Scrapes) -> None:
    found = of_status(scrapes, STATUS)
    assert found["muster_deployment_ready", "flights"] == 1
    assert found["muster_deployment_drifted", "flights"] == 1
    traffic = {key[2:]: n for key, n in found.items() if key[0] == "muster_revision_traffic_percent"}
    assert traffic == {("flights/model@7", "r1"): 90, ("flights/model@7", "r2"): 10}
    assert found["muster_revision_replicas", "flights", "r2", "wanted"] == 2
    assert found["muster_revision_replicas", "flights", "r2", "ready"] == 1
    assert found["muster_revision_restarts", "flights", "r2"] == 3
    assert found["muster_release_step_started_timestamp_seconds", "flights", "forward"] == 1_000


@pytest.mark.parametrize(
    ("release", "state"), [({"held": True}, "held"), ({"failed": "too slow", "held": True}, "back")]
)
def test_a_release_says_which_way_it_goes(release: dict[str, Any], state: str, scrapes: Scrapes) -> None:
    assert STATUS.release is not None
    found = of_status(scrapes, replace(STATUS, release=replace(STATUS.release, **release)))
    assert ("muster_release_step_started_timestamp_seconds", "flights", state) in found


def test_a_deployment_whose_book_cannot_be_read_is_told_as_not_ready(scrapes: Scrapes) -> None:
    status = DeploymentStatus(name="flights", url="", ready=False, token="", reason="cannot be read")
    assert of_status(scrapes, status) == {
        ("muster_deployment_ready", "flights"): 0,
        ("muster_deployment_drifted", "flights"): 0,
    }


def test_model_servers_are_not_asked_for_counts() -> None:
    asked: list[bool] = []

    class Counting(MemoryPlatform):
        def observe(self, books: Any, *, counts: bool = False) -> Any:
            asked.append(counts)
            return super().observe(books, counts=counts)

    platform: Any = Counting(lambda _, columns: columns)
    assert list(Drifts().look(Deployments(platform, lambda: None))) == []  # type: ignore[arg-type, return-value]
    assert asked == [False]


def test_each_drift_is_announced_once_and_nothing_that_is_measured_depends_on_it() -> None:
    now, announced = [STATUS], list[str]()

    def announce(name: str, message: str) -> None:
        announced.append(message)
        raise SpecError("may not create events")

    some: Any = SimpleNamespace(
        look_at=lambda counts: [DeploymentSample(status=status) for status in now],
        platform=SimpleNamespace(announce=announce),
    )
    drifts, repaired = Drifts(), replace(STATUS, drift="")
    for status in (STATUS, STATUS, repaired, replace(STATUS, drift="r1 is gone")):
        now[:] = [status]
        assert list(drifts.look(some)) == list(sources.of_deployments([DeploymentSample(status=status)]))
    puts_back = "`muster deployments repair flights` puts it back: "
    assert announced == [f"{puts_back}its route was edited", f"{puts_back}r1 is gone"]


def test_extensions_tell_what_they_measure_with_as_many_labels_as_others(
    store: FolderStore, scrapes: Scrapes
) -> None:
    now = time.time()
    begins = month_of(now)[0]
    held = [(begins - 3600.0, begins, 9, 9), (now - 3600.0, now, 1, 2)]
    few = max(0.0, min(3600.0, now - begins)) / 3600.0  # of the hour, at the begin of a month
    for n in range(MOST_LABELS + 2):
        log.append(store.layout.root, line(job_id=f"j{n}", team=f"team-{n:03}", ended=now, held=held))
    log.append(
        store.layout.root,
        line(job_id="c", gpu_class="", team="team-000", ended=now, held=[(now - 3600.0, now, 1, 0)]),
    )
    found = told(scrapes, MetricsPart.EXTENSIONS, lambda: sources.of_extensions(store))
    name = "muster_usage_hours"
    kinds = ("held", "used", "wasted", "unmeasured")
    assert [found[name, "a100", kind, "team-000"] / few for kind in kinds] == pytest.approx([2, 1.5, 0.5, 0])
    assert [found[name, "cpu", kind, "team-000"] / few for kind in kinds] == pytest.approx([8, 2, 6, 0])
    assert [found[name, "a100", kind, "other"] / few for kind in kinds] == pytest.approx([4, 3, 1, 0])
    assert len({key[3] for key in found}) == MOST_LABELS + 1


@pytest.fixture
def answers() -> Iterator[tuple[dict[str, Any], str]]:
    """What a server says at each path, and its address; it answers 503 at others."""
    said: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in said else 503)
            self.end_headers()
            self.wfile.write(json.dumps(said.get(self.path)).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield said, f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_airflow_tells_its_heartbeats_its_database_and_its_broken_dags(
    answers: tuple[dict[str, Any], str], scrapes: Scrapes
) -> None:
    said, address = answers
    health = said["/api/v2/monitor/health"] = {
        "metadatabase": {"status": "healthy"},
        "scheduler": {"latest_scheduler_heartbeat": "2026-11-30T00:00:01+00:00"},
        "triggerer": {"latest_triggerer_heartbeat": "2026-11-30T00:00:02+00:00"},
        "dag_processor": {"latest_dag_processor_heartbeat": None},
    }
    said["/muster/health"] = {"broken_dags": 3}
    beat, at = "muster_airflow_heartbeat_timestamp_seconds", 1_795_996_800.0
    found = told(scrapes, MetricsPart.AIRFLOW, of_airflow(f"http://{address}"))
    assert found["muster_airflow_database",] == 1
    assert [found[beat, each] for each in ("scheduler", "triggerer", "dag_processor")] == [at + 1, at + 2, 0]
    assert found["muster_airflow_broken_dags",] == 3
    health["metadatabase"]["status"] = "unhealthy"  # it knows no heartbeat then
    found = told(scrapes, MetricsPart.AIRFLOW, of_airflow(f"http://{address}"))
    assert found["muster_airflow_database",] == 0
    assert not [each for each in found if each[0] == beat]
    said.clear()
    with pytest.raises(BackendError, match="monitor/health does not answer as it should: HTTP Error 503"):
        list(of_airflow(f"http://{address}"))


def test_keepers_tell_when_they_looked_and_one_that_hangs_is_none(
    answers: tuple[dict[str, Any], str], scrapes: Scrapes
) -> None:
    said, address = answers
    host, _, port = address.rpartition(":")
    said["/healthz"] = {"looked": 5.0, "failing": 2}
    found = told(scrapes, MetricsPart.KEEPERS, of_keepers(host, int(port)))
    assert [found[f"muster_keeper{each}",] for each in ("s", "_last_look_timestamp_seconds", "_failing")] == [
        1,
        5,
        2,
    ]
    del said["/healthz"]
    for name in (host, "no-such-host.invalid"):
        found = told(scrapes, MetricsPart.KEEPERS, of_keepers(name, int(port)))
        assert (found["muster_keepers",], found["muster_keeper_last_look_timestamp_seconds",]) == (0, 0)
