"""The example clicks: real departures go through a real broker, and the model that serves is asked with what the last hours tell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import Seen
from tests.ingest.broker import Broker

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.runner import Wanted, run_dag
from muster.backends.base import Backend
from muster.core.shipped import shipped
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.smoke]

NAME = "clicks"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    with Broker(tmp_path / "kafka") as broker:
        connection = {"conn_type": "kafka", "extra": broker.connection}
        monkeypatch.setenv("AIRFLOW_CONN_CLICKS", json.dumps(connection))
        yield broker


@pytest.fixture
def run(home: EmbeddedHome, backend: Backend, seen: Seen, broker: Broker) -> Iterator[Callable[..., Any]]:
    """Run a Dag of the example; its deployment is retired afterwards."""
    folder = home.dags / NAME
    shutil.copytree(shipped("dags") / NAME, folder)

    def go(dag_id: str, **params: Any) -> Any:
        result = run_dag(dag_id, Wanted(params=params), settings=home.settings, dags=home.dags, listener=seen)
        assert result.succeeded, "\n".join(seen.text[-40:])
        return result

    yield go
    if NAME in backend.deployments.names():
        backend.deployments.retire(NAME)
    shutil.rmtree(folder)


def stream(store: FolderStore) -> dict[str, Any]:
    """What the last version of the topic says of itself."""
    (version,) = store.resolve(f"{NAME}/raw@latest")
    head = json.loads((store.path(version.address) / ".muster-ingest.jsonl").read_text().partition("\n")[0])
    return {"number": version.number, **head["stream"]}


@pytest.mark.nightly  # test_topic.py wakes a Dag, test_watch.py asks what serves, ingest/test_kafka.py reads
def test_the_features_stay_fresh_and_the_model_that_serves_is_asked(
    run: Callable[..., Any], store: FolderStore, backend: Backend
) -> None:
    run("clicks_model")
    model = store.resolve(f"{NAME}/model@latest")[0]
    metrics = store.record(model.address).metrics
    assert metrics["log_loss"] < metrics["log_loss_without"], "the last hours tell something"

    sent = 0.0
    for since, until in ((0, 10), (10, 13)):
        run("clicks_replay", since=since, until=until)
        run("clicks")
        (recent,) = store.resolve(f"{NAME}/recent@latest")
        told = store.record(recent.address).metrics
        assert told["rows"] > 10
        assert (told["now"] - 1) // 60 % 24 == until - 1, "what is told is as of the last message"
        (said,) = store.resolve(f"{NAME}/said@latest")
        record = store.record(said.address)
        assert record.metrics["rows"] == told["rows"]
        assert record.inputs["model"][0].address == model.address
        assert record.inputs["rows"][0].address == recent.address
        assert told["messages"] > sent
        sent = told["messages"]

    before = stream(store)
    assert before["rows"] == sum(before["offsets"].values()) == sent
    run("clicks_compact")
    after = stream(store)
    assert after == {**before, "number": before["number"] + 1}
    assert (
        store.resolve(f"{NAME}/raw@{before['number']}")[0].retired
        == f"replaced by {NAME}/raw@{after['number']}"
    )

    run("clicks")
    assert stream(store) == after, "nothing is new, so there is no version"
    run("clicks_replay", since=13, until=24)
    run("clicks")
    assert stream(store)["rows"] == sum(stream(store)["offsets"].values()) == 911
    assert store.record(store.resolve(f"{NAME}/recent@latest")[0].address).metrics["messages"] == 911
