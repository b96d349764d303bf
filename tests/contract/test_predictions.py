"""What a deployment with a request log promises: what is kept, when it is there, and what a kill or a full disk costs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.contract.test_deployments import Lines, OnThisMachine, servers, tensor
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.request_log import Predictions
from muster.core.deployment import DeploymentSpec, RequestLog
from muster.core.errors import NotFound
from muster.core.prediction import PredictionId, hour_of, predictions_volume
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import image_digest
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore
from muster.volumes.spool import Spool

pytestmark = [pytest.mark.slow, pytest.mark.data]

Ask = Callable[..., tuple[str, float]]
ALL = RequestLog()
_READ = """
import json, sys, pyarrow.parquet as pq
rows = [row for file in sys.argv[1:] for row in pq.read_table(file).to_pylist()]
print(json.dumps([{**row, "time": row["time"].timestamp()} for row in rows]))
"""


class PredictionsContract(Lines):
    """Each case has a deployment of its own. Give `predictions`, which commits and finds what the platform keeps."""

    @pytest.fixture
    def predictions(self) -> Predictions:
        raise NotImplementedError

    @pytest.fixture
    def served(self, deployments: Any, spec: Any) -> DeploymentSpec:
        """What is deployed, with a log of all its requests."""
        wanted: DeploymentSpec = spec(2, log=ALL)
        self.serve(deployments, wanted)
        return wanted

    @pytest.fixture
    def ask(self, deployments: Any, name: str) -> Ask:
        """Ask for one row; return the prediction's id, empty where it is not kept, and the answer."""

        def ask(x: float, **more: Any) -> tuple[str, float]:
            port, host = self.door(deployments, name)
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)) as connection:
                body = json.dumps(tensor(x) | more)
                connection.request("POST", f"/v2/models/{name}/infer", body, {"Host": host})
                response = connection.getresponse()
                answer = json.loads(response.read())
            return response.getheader("muster-prediction") or "", answer["outputs"][0]["data"][0]

        return ask

    def test_an_id_finds_row_revision_and_model_before_and_after_a_commit(
        self, served: DeploymentSpec, name: str, ask: Ask, predictions: Predictions
    ) -> None:
        began = time.time()
        identity, answered = ask(3, id="mine")
        rows, version = seen(predictions, identity)
        assert version is None
        (made,) = predictions.commit(name)
        assert made.partition in (hour_of(began), hour_of(time.time()))
        assert predictions.commit(name) == ()
        assert find(predictions, identity) == (rows, made)
        (row,) = rows
        assert (row["input_x"], row["output_y"], answered) == (3.0, 6.0, 6.0)
        assert (row["revision"], row["model"], row["row"]) == ("r1", served.model.address, 0)
        assert row["request_id"] == "mine"

    def test_columns_are_left_out_and_hashed_and_a_share_is_kept(
        self, deployments: Any, spec: Any, name: str, ask: Ask, predictions: Predictions
    ) -> None:
        self.serve(deployments, spec(2, log=RequestLog(share=0.5, leave_out=("y",), hashed=("x",))))
        kept = [(x, identity) for x in (3, 4) for _ in range(60) if (identity := ask(x)[0])]
        assert 20 < len(kept) < 100
        seen(predictions, kept[-1][1])
        hashes = set()
        for x, identity in (kept[0], kept[1], kept[-1]):
            (row,), _ = find(predictions, identity)
            assert not {"input_x", "output_y"} & set(row)
            hashes.add((x, row["input_x_hash"]))
        assert len(hashes) == len({hashed for _, hashed in hashes}) == 2

    @pytest.mark.usefixtures("served")
    def test_revisions_that_share_the_traffic_keep_their_own(
        self, deployments: Any, spec: Any, name: str, ask: Ask, predictions: Predictions
    ) -> None:
        second = deployments.prepare(spec(3, log=ALL), by="test")
        eventually(lambda: deployments.deployment(name).called(second.name).ready)
        status = deployments.deployment(name)
        deployments.shift(name, {"r1": 50, second.name: 50}, token=status.token, release=status.release)
        asked = list[tuple[str, float]]()

        def both() -> bool:
            asked.append(ask(3))
            return {answered for _, answered in asked} == {6.0, 9.0}

        eventually(both)
        seen(predictions, asked[-1][0])
        predictions.commit(name)
        for identity, answered in (asked[0], asked[-1]):
            (row,), version = find(predictions, identity)
            assert row["revision"] == {6.0: "r1", 9.0: "r2"}[answered]
            assert version is not None


class TestOnThisMachine(OnThisMachine, PredictionsContract):
    """Spool files beside the servers, and what may happen to them."""

    @pytest.fixture
    def predictions(self, settings: Settings, store: FolderStore) -> Predictions:
        return Predictions(settings, store)

    @pytest.fixture
    def spool(self, settings: Settings, name: str) -> Spool:
        return Spool(settings.home, name)

    @pytest.fixture
    def kept_ids(self, settings: Settings, store: FolderStore, name: str) -> Callable[[], list[str]]:
        """Reads the ids of all committed rows."""

        def read() -> list[str]:
            volume = predictions_volume(name)
            folders = [store.path(each.address) for each in store.resolve(f"volume://{volume}@*")]
            files = [str(file) for folder in folders for file in folder.glob("*.parquet")]
            image = shipped("images") / "serve"
            python = Environments(settings.cache).ensure("serve", image, image_digest(image))
            done = subprocess.run([python, "-c", _READ, *files], capture_output=True, check=True)
            return [row["id"] for row in json.loads(done.stdout)]

        return read

    @pytest.mark.usefixtures("served")
    def test_a_server_that_ends_loses_nothing(
        self, deployments: Any, name: str, ask: Ask, kept_ids: Any, spool: Spool
    ) -> None:
        ids = [ask(3)[0] for _ in range(30)]
        deployments.retire(name)  # a moment after the last answer
        assert_once(ids, kept_ids())
        assert spool.hours() == {}

    @pytest.mark.usefixtures("served")
    def test_a_commit_by_hand_has_what_was_answered_a_moment_before(
        self, name: str, ask: Ask, predictions: Predictions
    ) -> None:
        identity, _ = ask(3)
        (made,) = predictions.commit_answered(name)
        found = find(predictions, identity)
        assert found is not None
        assert found[1] == made

    @pytest.mark.usefixtures("served")
    def test_a_kill_loses_what_is_younger_than_a_second_and_nothing_is_there_twice(
        self, deployments: Any, name: str, ask: Ask, predictions: Predictions, kept_ids: Any, spool: Spool
    ) -> None:
        early = [ask(3)[0] for _ in range(20)]
        seen(predictions, early[-1])
        predictions.commit(name)
        between = [ask(3)[0] for _ in range(10)]
        seen(predictions, between[-1])
        kill_server(name)
        eventually(lambda: deployments.deployment(name).ready)
        late = ask(3)[0]
        seen(predictions, late)
        (files,) = spool.hours().values()
        assert len(files) == 2
        predictions.commit(name)
        assert_once([*early, *between, late], kept_ids())
        (files,) = spool.hours().values()
        assert len(files) == 1  # that of the killed server is not needed any more

    @pytest.mark.usefixtures("served")
    def test_a_commit_that_died_before_it_deleted_the_spool_is_repeated(
        self, name: str, ask: Ask, predictions: Predictions, kept_ids: Any, spool: Spool
    ) -> None:
        seen(predictions, ask(3)[0])
        kill_server(name)
        (file, *_) = sorted(spool.path.glob("*.spool"), key=lambda each: each.stat().st_mtime)
        data = file.read_bytes()
        predictions.commit(name)
        before = kept_ids()
        file.write_bytes(data + b"1 torn")  # and the last write was cut off
        assert predictions.commit(name) == ()
        assert kept_ids() == before
        assert not file.exists()

    @pytest.mark.usefixtures("served")
    def test_a_disk_that_takes_nothing_costs_no_request(
        self, name: str, ask: Ask, predictions: Predictions, spool: Spool, settings: Settings
    ) -> None:
        away = spool.path.with_name("away")
        spool.path.rename(away)
        assert [ask(3)[1] for _ in range(5)] == [6.0] * 5
        said = DeploymentFolder(settings.home, name).path / "server.log"
        eventually(lambda: "requests are not kept" in said.read_text())
        away.rename(spool.path)
        seen(predictions, ask(3)[0])


def kill_server(name: str) -> None:
    """Kill the only model server of a deployment, and wait for the next."""
    (server,) = servers(name)
    os.kill(server, signal.SIGKILL)
    eventually(lambda: servers(name) not in ([], [server]))


def assert_once(ids: list[str], found: list[str]) -> None:
    """See that these are among what was kept, and that nothing is there twice."""
    assert set(ids) <= set(found)
    assert len(found) == len(set(found))


def seen(predictions: Predictions, identity: str) -> tuple[list[dict[str, Any]], Version | None]:
    """Wait until a prediction is kept; return its rows and the version that holds them, if any does by now."""
    found: tuple[list[dict[str, Any]], Version | None] = eventually(lambda: find(predictions, identity))
    return found


def find(predictions: Predictions, identity: str) -> tuple[list[dict[str, Any]], Version | None] | None:
    """The rows of a prediction and the version that holds them; None while they are nowhere."""
    try:
        return predictions.find(PredictionId.parse(identity))
    except NotFound:
        return None
