"""What the pods' init container asks for is what the store service answers: each against the other, for real."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.volumes.service.gang import WORKER, Gang, make_spec
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import Service, until
from tests.waiting import GUARD_SECONDS

from muster.backends.kubernetes.manifests import bootstrap
from muster.core.replica import Replica
from muster.core.wire import dumps
from muster.volumes import attempts
from muster.volumes.service import starts
from muster.volumes.tree import copy_tree


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def gang(service, tmp_path):
    code = tmp_path / "in"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "train.py").write_text("x = 1\n")
    digest = service.client().put(code, ["pkg/train.py"])
    with Gang(service, f"train-{os.urandom(4).hex()}", make_spec(replicas=2, code=digest)) as gang:
        yield gang


def start(gang, folder, *, index=0, restart="0", pod="pod-0", seconds=5.0):
    """Run the init container's program as a pod would; return its exit code."""
    folder.mkdir(exist_ok=True)
    token = gang.pods.headers["authorization"].removeprefix("Bearer ")
    orders = Replica(
        job_id=gang.job_id,
        spec=gang.spec,
        attempt=gang.submitted,
        role="main",
        index=0,
        code="/muster/code",
        inputs={},
        staging={"out": "/mnt/out"},
        checkpoints="/mnt/checkpoints",
        scratch="/mnt/scratch",
        sealed="/mnt/gang/main-0.json",
        report="/mnt/scratch/report.json",
    )
    (folder / "token").write_text(token)
    (folder / "orders.json").write_text(dumps(orders))
    (folder / "bundle").mkdir(exist_ok=True)
    asked = f"attempt={gang.submitted}&restart={restart}&role=main&index={index}&pod={pod}"
    return bootstrap.main(
        {
            "url": f"{gang.service.url}/v1/jobs/{gang.job_id}/bundle?{asked}",
            "token": str(folder / "token"),
            "orders": str(folder / "orders.json"),
            "role": "main",
            "index": str(index),
            "sealed": f"/mnt/gang/main-{index}.json",
            "gpus": 0,
            "folder": str(folder / "bundle"),
            "patience_seconds": seconds,
        }
    )


def test_a_pod_gets_its_worker_code_and_orders(gang, tmp_path):
    assert start(gang, tmp_path / "0", index=1) == 0
    bundle = tmp_path / "0" / "bundle"
    assert (bundle / "worker.pyz").read_bytes() == WORKER
    assert (bundle / "code" / "pkg" / "train.py").read_text() == "x = 1\n"
    orders = json.loads((bundle / "replica.json").read_text())
    assert (orders["attempt"], orders["index"], orders["role"]) == (1, 1, "main")


def test_each_start_of_the_gang_is_an_attempt_of_its_own(gang, tmp_path):
    assert start(gang, tmp_path / "0") == 0
    assert start(gang, tmp_path / "1", restart="1", pod="pod-1") == 0
    assert json.loads((tmp_path / "1" / "bundle" / "replica.json").read_text())["attempt"] == 2


def test_a_pod_of_a_start_that_is_over_stops(gang, tmp_path, capsys):
    assert start(gang, tmp_path / "1", restart="1", pod="pod-1") == 0
    assert start(gang, tmp_path / "0", index=1) == bootstrap.STOPPED
    assert "this start of the gang is over (HTTP 409)" in capsys.readouterr().out


def test_a_token_that_does_not_count_is_no_reason_to_ask_again(gang, tmp_path, capsys):
    gang.pods.headers["authorization"] = "Bearer x.y"
    assert start(gang, tmp_path / "0") == bootstrap.SPEC_ERROR
    assert "refuses this job's token (HTTP 401)" in capsys.readouterr().out


def test_checkpoints_that_take_longer_to_copy_than_it_is_patient_are_waited_for(tmp_path, monkeypatch):
    asked, go_on = [], threading.Event()
    monkeypatch.setattr(starts, "PATIENCE_SECONDS", 0.0)

    def copy(source, target):
        assert go_on.wait(GUARD_SECONDS)
        copy_tree(source, target)

    monkeypatch.setattr(attempts, "copy_tree", copy)
    with Inside(tmp_path) as service, Gang(service, "train-1", make_spec(replicas=2)) as gang:
        gang.bundle().raise_for_status()
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(gang.bundle, restart="1")
            fetch = bootstrap.fetch

            def counted(*args):
                asked.append(time.monotonic())
                if asked[-1] > asked[0] + 0.5:  # that is how patient it is
                    go_on.set()
                return fetch(*args)

            monkeypatch.setattr(bootstrap, "fetch", counted)
            until(lambda: list((service.root / "staging").glob("train-1/2")), bool)
            assert start(gang, tmp_path / "1", restart="1", index=1, pod="pod-1", seconds=0.5) == 0
            assert first.result().is_success
    assert len(asked) > 2


def test_a_service_that_comes_back_is_asked_again(gang, tmp_path):
    gang.service.kill()
    gang.service.start()
    assert start(gang, tmp_path / "0", seconds=30.0) == 0
