"""A message wakes a Dag: AssetWatcher, TopicTrigger, a real broker and the whole Airflow of ``muster up``."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.ingest.broker import Broker
from tests.ingest.conftest import python  # noqa: F401 - a fixture
from tests.site import Site
from tests.waiting import until

from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data]

ROOT = Path(__file__).parents[2]
DAG = """
from datetime import datetime

from airflow.sdk import Asset, AssetWatcher, dag
from muster.airflow import IngestOperator, TopicTrigger

TOPIC = "kafka://broker/clicks"


@dag(
    schedule=[Asset("clicks", watchers=[AssetWatcher(name="clicks", trigger=TopicTrigger(TOPIC))])],
    start_date=datetime(2024, 1, 1), max_active_runs=1,
)
def woken():
    IngestOperator(task_id="raw", source=TOPIC, volume="raw/clicks")


woken()
"""
BAR_SECONDS = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def client(tmp_path: Path, python: Path) -> Path:  # noqa: F811
    """A folder to import with the Kafka client of the image, which ``muster[kafka]`` would have installed beside Airflow."""
    folder = tmp_path / "client"
    folder.mkdir()
    for packages in (python.parent.parent / "lib").glob("python3*/site-packages"):
        for each in packages.glob("confluent_kafka*"):
            (folder / each.name).symlink_to(each)
    return folder


def put(python: Path, broker: Broker, *steps: object) -> None:  # noqa: F811
    subprocess.run(
        [python, ROOT / "tests" / "ingest" / "topic.py", broker.url, json.dumps(steps)],
        check=True,
        timeout=120,
    )


def holds(site: Site, wanted: int) -> bool:
    """Whether the last version holds so many messages."""
    if not (site.home / "store").is_dir():
        return False
    store = FolderStore(site.home / "store")
    if not store.count("raw/clicks"):
        return False
    (version,) = store.resolve("raw/clicks@latest")
    head = json.loads((store.path(version.address) / ".muster-ingest.jsonl").read_text().partition("\n")[0])
    return bool(head["stream"]["rows"] == wanted)


def test_a_message_wakes_a_dag(tmp_path: Path, broker: Broker, client: Path, python: Path) -> None:  # noqa: F811
    put(python, broker, ["create", ["clicks", 2], {}])
    connection = {"conn_type": "kafka", "extra": broker.connection}
    with Site(tmp_path / "site", AIRFLOW_CONN_BROKER=json.dumps(connection), PYTHONPATH=str(client)) as site:
        site.write("woken", DAG)
        site.up(seconds=400)
        took = []
        for number in range(3):
            put(python, broker, ["put", ["clicks", [[n % 2, None, '{"n": 1}'] for n in range(10)]], {}])
            began = time.monotonic()
            wanted = 10 * (number + 1)
            assert until(partial(holds, site, wanted), seconds=300), site.log.read_text()[-3000:]
            took.append(time.monotonic() - began)
            if number == 1:
                broker.stop()
                broker.start()
        print(f"from message to version: {', '.join(f'{each:.1f} s' for each in took)}")
        assert min(took[1:]) < BAR_SECONDS, took
        assert FolderStore(site.home / "store").count("raw/clicks") <= 6, "one event for all that came"
