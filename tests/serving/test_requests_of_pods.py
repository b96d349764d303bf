"""The requests that pods of a cluster keep: real servers, the store service, and the two programs of the chart's CronJob."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.conftest import Server
from tests.serving.test_in_a_pod import MODEL, REQUEST
from tests.unit.backends.kubernetes.serving.golden import server as revision, spec
from tests.unit.volumes.service.process import Service
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.kubernetes import collecting
from muster.backends.kubernetes.serving.kinds import inference_service
from muster.backends.kubernetes.serving.server import PORT, PROGRAM, READY, archive
from muster.backends.request_log import Predictions, unread
from muster.core.deployment import RequestLog
from muster.core.prediction import PredictionId, hour_of, predictions_volume
from muster.core.settings import Settings
from muster.volumes.base import Version
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.spools import ServiceSpools
from muster.volumes.spool import Spool

pytestmark = [pytest.mark.slow, pytest.mark.data]

AGO = 7200.0
ALL = RequestLog()
Rows = tuple[list[dict[str, Any]], Version | None]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("cluster"), "--keep-requests") as found:
        yield found


@pytest.fixture(scope="module")
def store(service: Service) -> ServiceStore:
    return service.client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A deployment of each test's own."""
    return f"d{abs(hash(request.node.name)) % 10**8}"


@pytest.fixture
def spool(service: Service, store: ServiceStore, name: str) -> Spool:
    """What its pods see of the claim."""
    ServiceSpools(store.connection).open(name)
    return Spool(service.root, name)


Serve = Callable[..., Any]


@pytest.fixture
def serve(python: Callable[[str], Path], run_server: Any, tmp_path: Path, spool: Spool, name: str) -> Serve:
    """Runs a pod's server, by the words of its container."""
    (tmp_path / "serving.zip").write_bytes(archive())
    model = onnx_graph.write_line(tmp_path / "model", slope=2.0)

    @contextmanager
    def run(log: RequestLog = ALL) -> Iterator[Server]:
        made = revision(spec(name=name, log=log), "r1")
        (container,) = inference_service(made)["spec"]["predictor"]["containers"]
        at = {each["mountPath"].rpartition("/")[2]: each["mountPath"] for each in container["volumeMounts"]}
        port = free_port()
        places = {
            at["model"]: str(model),
            at["requests"]: str(spool.path),
            PROGRAM: str(tmp_path / "serving.zip"),
            f"--port={PORT}": f"--port={port}",
        }
        words = [str(python("kserve")), *container["command"][1:]]
        for there, here in places.items():
            words = [word.replace(there, here) for word in words]
        told = {"code": tmp_path, "cwd": tmp_path, "log": tmp_path / "log"}
        with run_server(words, port=port, ready=READY, **told) as server:
            yield server

    return run


def ask(server: Server, name: str) -> str:
    """Ask for one row; return the prediction's id, empty where it is not kept."""
    path = f"{MODEL.replace('flights', name)}/infer"
    status, headers, _ = server.exchange("POST", path, REQUEST)
    assert status == 200
    return str(headers.get("muster-prediction", ""))


def age(spool: Spool) -> str:
    """Have what is kept be of an hour that is over since long; return it."""
    then = time.time() - AGO
    for file in spool.path.glob("*.spool"):
        aged = file.with_name(f"{hour_of(then)}.{file.name.partition('.')[2]}")
        file.rename(aged)
        os.utime(aged, (then, then))
    return hour_of(then)


@pytest.fixture
def cluster(service: Service, tmp_path: Path) -> str:
    """The cluster file."""
    (tmp_path / "token").write_text(service.token())
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'namespace = "team-a"\nclaim = "c"\nstore_url = "{service.url}"\ntoken_file = "{tmp_path}/token"\n'
    )
    return str(file)


@pytest.fixture
def collect(
    python: Callable[[str], Path], cluster: str, tmp_path: Path
) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Runs both programs once, as the CronJob's pod does."""
    work = tmp_path / "work"
    work.mkdir()
    assert collecting.main(["--write-code", str(work / "serving.zip")]) == 0
    environment = os.environ | {
        "MUSTER_CLUSTER": cluster,
        "MUSTER_HOME": str(work / "home"),
        "MUSTER_CACHE": str(work / "cache"),
    }

    def run() -> subprocess.CompletedProcess[str]:
        line = work / "reader.sock"
        line.unlink(missing_ok=True)
        reader = subprocess.Popen(
            [python("serve"), "-m", "muster_serving.collect", "--listen", line],
            env={"PYTHONPATH": str(work / "serving.zip")},
        )
        done = subprocess.run(
            [sys.executable, "-m", "muster.backends.kubernetes.collecting", "--decoder", line],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert reader.wait(GUARD_SECONDS) == 0
        return done

    return run


def rows_of(store: ServiceStore, name: str, identity: str) -> Rows:
    """What ``muster predictions show`` finds of an id, in the hour that it was made to be of."""
    wanted = replace(PredictionId.parse(identity), at=time.time() - AGO)
    assert wanted.deployment == name
    return Predictions(Settings.load(), store).find(wanted)


@pytest.mark.nightly  # contract/test_predictions.py kills a server, cluster/test_requests.py has two pods that end
def test_two_pods_that_end_lose_nothing_and_one_that_is_killed_a_second(
    serve: Serve, collect: Any, spool: Spool, store: ServiceStore, name: str
) -> None:
    with serve() as one, serve() as other:
        ids = [ask(server, name) for server in (one, other) for _ in range(10)]
        for server in (one, other):
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(GUARD_SECONDS) == 0
    with serve() as killed:
        ids.append(ask(killed, name))
        eventually(
            lambda: ids[-1].encode() in b"".join(each.read_bytes() for each in spool.path.glob("*.spool"))
        )
        killed.process.kill()
        killed.process.wait()
    assert len(list(spool.path.glob("*.spool"))) == 3
    hour = age(spool)
    done = collect()
    assert done.returncode == 0, done.stderr
    versions = store.versions(predictions_volume(name))
    assert [each.partition for each in versions] == [hour]
    for identity in ids:
        (row,), version = rows_of(store, name, identity)
        assert (row["id"], row["revision"], row["input_x"], row["output_y"]) == (identity, "r1", 3.0, 6.0)
        assert row["model"] == spec().model.address
        assert version == versions[0]
    assert list(spool.path.glob("*.spool")) == []


def test_what_is_repeated_or_comes_late_is_there_once_and_older_hours_go(
    serve: Serve, collect: Any, spool: Spool, store: ServiceStore, tmp_path: Path, name: str
) -> None:
    with serve(RequestLog(leave_out=("y",), hashed=("x",))) as server:
        first = ask(server, name)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(GUARD_SECONDS)
    age(spool)
    (file,) = spool.path.glob("*.spool")
    data, status = file.read_bytes(), file.stat()
    assert b"3.0" not in data
    assert name in collect().stdout
    file.write_bytes(data)  # it died before it dropped the file
    os.utime(file, (status.st_mtime, status.st_mtime))
    done = collect()
    assert (done.returncode, done.stdout, file.exists()) == (0, "", False), done.stderr
    (tmp_path / "x").touch()
    store.add(predictions_volume(name), tmp_path / "x", partition="2026-01-01T00")
    with serve(RequestLog(leave_out=("y",), hashed=("x",), keep_partitions=1)) as server:
        late = ask(server, name)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(GUARD_SECONDS)
    age(spool)
    assert collect().returncode == 0
    assert [each.retired is None for each in store.versions(predictions_volume(name))] == [True, False, True]
    ((one,), version), ((other,), _) = rows_of(store, name, first), rows_of(store, name, late)
    assert version == store.versions(predictions_volume(name))[-1]  # the newest holds both
    assert one["input_x_hash"] == other["input_x_hash"]  # the key outlives a pod
    assert not {"input_x", "output_y"} & set(one)


def test_a_person_commits_what_is_over_from_a_laptop(
    serve: Serve, cluster: str, spool: Spool, store: ServiceStore, tmp_path: Path, name: str
) -> None:
    with serve() as server:
        identity = ask(server, name)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(GUARD_SECONDS)
    words = [sys.executable, "-m", "muster", "predictions", "commit", name]
    environment = os.environ | {"MUSTER_CLUSTER": cluster, "MUSTER_HOME": str(tmp_path / "home")}

    def commit() -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    done = commit()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr  # the hour is not over
    age(spool)
    then = time.time() - 2 * AGO
    bad = spool.path / f"{hour_of(then)}.1-aa.spool"  # an hour before, which ends no other
    bad.write_bytes(b"no head")
    os.utime(bad, (then, then))
    done = commit()
    assert f"volume://{predictions_volume(name)}@2" in done.stdout
    assert done.returncode == 0, done.stderr
    assert (
        f"1 requests cannot be read, and are no rows: they lie as they came in _unread of volume://{name}"
        in done.stderr
    )
    assert rows_of(store, name, identity)[1] is not None


def bad_files(good: bytes) -> dict[str, tuple[bytes, str]]:
    """What a server that was taken over may write, by name, each with what is said of it. :param good: a file of one request."""
    first, _, rest = good.partition(b"\n")
    head, second = json.loads(first), rest.partition(b"\n")[0].split(b" ")

    def of(revision: str) -> bytes:
        return json.dumps({**head, "revision": revision}).encode() + b"\n" + rest

    def frame(*words: bytes, then: bytes = b"") -> bytes:
        return first + b"\n" + b" ".join([*words, *second[len(words) :]]) + b"\n" + then

    return {
        "none": (b"no head", "the first line is no JSON"),
        "empty": (b'{"format": 1}\n', "revision is None, expected a str"),
        "endless": (b"[" * (17 << 20), "the first line is no JSON"),
        "elsewhere": (of("../../x"), "revision is '../../x', expected a name such as r8"),
        "huge": (frame(*second[:4], b"9" * 400), "are read"),
        "late": (frame(b"9" * 30, then=rest.partition(b"\n")[2]), "Error"),
        "torn": (
            frame(second[0], second[1], b"columns", b"-1", b"2", b"-1", b"2", then=b"{]{}"),
            "JSONDecodeError",
        ),
    }


def test_a_file_that_cannot_be_read_stops_no_other_deployment(
    serve: Serve, collect: Any, spool: Spool, service: Service, store: ServiceStore, name: str
) -> None:
    with serve() as server:
        identity = ask(server, name)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(GUARD_SECONDS)
    (file,) = spool.path.glob("*.spool")
    wrong = bad_files(file.read_bytes())
    age(spool)
    for each, (data, _) in wrong.items():
        bad = Spool(service.root, f"a-{each}")  # it comes first
        ServiceSpools(store.connection).open(bad.name)
        (bad.path / f"{hour_of(time.time())}.1-aa.spool").write_bytes(data)
        age(bad)
    done = collect()
    assert done.returncode == 0, done.stderr
    for each, (_, said) in wrong.items():
        assert not list(Spool(service.root, f"a-{each}").path.glob("*.spool"))
        ((address, number),) = unread(store, f"a-{each}").items()
        assert number == 1
        assert said in (store.path(address) / "_unread" / "why.txt").read_text()
    assert rows_of(store, name, identity)[1] is not None


def test_a_claim_that_takes_nothing_costs_no_request(serve: Serve, spool: Spool, name: str) -> None:
    with serve() as server:
        spool.path.rename(spool.path.with_name(f"{name}-away"))
        for _ in range(5):
            ask(server, name)
        eventually(lambda: "requests are not kept" in server.log.read_text())
        (dropped,) = re.findall(
            r'muster_logged_requests_total{.*outcome="dropped".*} (\S+)', server.ask("GET", "/metrics")[1]
        )
        assert float(dropped) > 0


def test_without_a_key_what_is_to_be_hashed_is_left_out(serve: Serve, spool: Spool, name: str) -> None:
    (spool.path / "key").unlink()
    with serve(RequestLog(hashed=("x",))) as server:
        assert ask(server, name)
        assert "columns that are to be hashed are left out" in server.log.read_text()
