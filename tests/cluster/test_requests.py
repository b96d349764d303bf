"""Requests that are kept on a cluster: pods write on the claim, and the chart's CronJob makes versions of it."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import deploying, furniture, kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.deploying import Served
from tests.cluster.test_deployments import OnTheCluster
from tests.contract.test_deployments import tensor
from tests.waiting import eventually

from muster.backends.request_log import Predictions
from muster.core.deployment import RequestLog
from muster.core.prediction import PredictionId, hour_of, predictions_volume
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.folders import put_image

pytestmark = pytest.mark.cluster

AGO = 7200.0
COLLECT_SECONDS = 300


class TestRequests(OnTheCluster):
    """One deployment of two replicas that keeps all of its requests."""

    @pytest.fixture
    def spool(self, served: Served, name: str) -> Path:
        """The deployment's folder, behind the claim."""
        return served.of.claim / str(served.site.folder) / "predictions" / name

    @pytest.fixture
    def collect(self, served: Served) -> Iterator[Any]:
        """Runs the CronJob's pod once."""
        made = furniture.objects("ConfigMap", "CronJob", name="muster-requests")
        image = served.site.image("serve", put_image(served.store, shipped("images") / "serve"))
        documents = json.loads(json.dumps(made).replace("localhost/serve:1", image))
        kubectl.apply(served.of, documents)

        def run() -> None:
            job = f"requests-{secrets.token_hex(4)}"
            where = f"--namespace={NAMESPACE}"
            kubectl.run(served.of, "create", "job", job, "--from=cronjob/muster-requests", where)
            wait = ("wait", f"job/{job}", "--for=condition=complete", f"--timeout={COLLECT_SECONDS}s", where)
            kubectl.run(served.of, *wait)

        yield run
        kubectl.delete(served.of, documents)

    def ask(self, deployments: Any, name: str) -> str:
        """Ask for one row; return the prediction's id."""
        port, host = self.door(deployments, name)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            body = json.dumps(tensor(3))
            connection.request("POST", f"/v2/models/{name}/infer", body, {"Host": host})
            response = connection.getresponse()
            response.read()
        return response.getheader("muster-prediction") or ""

    def test_what_two_replicas_kept_is_a_version_and_outlives_the_deployment(
        self, served: Served, deployments: Any, spec: Any, name: str, spool: Path, collect: Any
    ) -> None:
        self.serve(deployments, spec(2, replicas=2, log=RequestLog()))
        ids = [self.ask(deployments, name) for _ in range(30)]
        assert all(ids)
        deployments.retire(name)  # a moment after the last answer: its pods end by SIGTERM
        eventually(lambda: deploying.left(served.of) == "")
        then = time.time() - AGO
        for file in spool.glob("*.spool"):
            aged = file.with_name(f"{hour_of(then)}.{file.name.partition('.')[2]}")
            file.rename(aged)
            os.utime(aged, (then, then))
        collect()
        (version,) = served.store.versions(predictions_volume(name))
        assert version.partition == hour_of(then)
        predictions = Predictions(Settings.load(), served.store)
        for identity in ids:
            (row,), held = predictions.find(replace(PredictionId.parse(identity), at=then))
            assert (row["input_x"], row["output_y"], row["revision"], held) == (3.0, 6.0, "r1", version)
        assert not list(spool.glob("*.spool"))
