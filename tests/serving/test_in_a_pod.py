"""The server as a pod of a cluster starts it: from the archive that travels with a revision, by the same words."""

from __future__ import annotations

import json
import math
import re
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.conftest import Server
from tests.serving.load import Load
from tests.unit.backends.kubernetes.serving.golden import server as revision, spec
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.kubernetes.serving.kinds import inference_service
from muster.backends.kubernetes.serving.server import PORT, PROGRAM, READY, archive
from muster.backends.releases.figures import read_counts
from muster.core.deployment import Counts

pytestmark = pytest.mark.slow

SERVERS = ("serve", "kserve", "seldon")  # by their images
MODEL = "/v2/models/flights"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3.0]}]}


def command(python: Path, image: str, folder: Path, *, model: Path, port: int) -> list[str]:
    """What a pod's container runs, with the places of this machine."""
    (folder / "serving.zip").write_bytes(archive())
    made = spec(image=image, server=image)
    (container,) = inference_service(revision(made, "r1"))["spec"]["predictor"]["containers"]
    (mount,) = [
        each["mountPath"] for each in container["volumeMounts"] if each["mountPath"].endswith("/model")
    ]
    words = [str(python), *container["command"][1:]]
    places = {mount: str(model), PROGRAM: str(folder / "serving.zip"), f"--port={PORT}": f"--port={port}"}
    for there, here in places.items():
        words = [word.replace(there, here) for word in words]
    return words


@pytest.fixture(scope="module", params=SERVERS)
def server(
    python: Callable[[str], Path],
    run_server: Any,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("pod"), free_port()
    model = onnx_graph.write_line(folder / "model", slope=2.0)
    words = command(python(request.param), request.param, folder, model=model, port=port)
    with pytest.MonkeyPatch.context() as environment:
        # the wrapper's own metrics, which are of no use to a release
        environment.setenv("PREDICTIVE_UNIT_METRICS_SERVICE_PORT", str(free_port()))
        running = run_server(words, port=port, ready=READY, log=folder / "log", code=folder, cwd=folder)
        with running as found:
            yield found


def counted(server: Server) -> Counts:
    """What the server says that it has answered."""
    status, page = server.ask("GET", "/metrics")
    assert status == 200
    return read_counts(page, name="flights")["r1"]


def test_what_names_the_revision_is_answered_and_not_counted(server: Server) -> None:
    before = counted(server)
    status, metadata = server.ask("GET", f"{MODEL}/versions/r1")
    assert (status, [each["name"] for each in metadata["inputs"]]) == (200, ["x"])
    status, answer = server.ask("POST", f"{MODEL}/versions/r1/infer", REQUEST)
    assert (status, answer["outputs"][0]["data"], answer["model_version"]) == (200, [6.0], "r1")
    assert counted(server) == before
    assert server.ask("POST", f"{MODEL}/infer", REQUEST)[0] == 200
    assert counted(server).requests == before.requests + 1
    assert counted(server).seconds[math.inf] == before.seconds[math.inf] + 1


def test_what_is_no_prediction_is_refused_and_not_counted_as_the_models_fault(server: Server) -> None:
    before = counted(server)
    wrong = {"inputs": [{**REQUEST["inputs"][0], "name": "z"}]}
    for method, path, body, status, words in (
        ("POST", f"{MODEL}/infer", wrong, 400, "input 'z' is unknown; this model takes x"),
        ("POST", f"{MODEL}/infer", b"[", 400, "the body is not JSON"),
        ("POST", f"{MODEL}/versions/r2/infer", REQUEST, 404, "revision 'r2' does not serve; serving is r1"),
        ("POST", "/v2/models/other/infer", REQUEST, 404, "model 'other' is unknown; here is flights"),
        ("GET", "/v2/models/other", None, 404, "model 'other' is unknown; here is flights"),
    ):
        found, answer = server.ask(method, path, body)
        assert (found, words in answer["error"]) == (status, True), (path, answer)
    found = counted(server)
    assert (found.requests, found.failed) == (before.requests + 2, before.failed)


def test_version_1_of_the_protocol(server: Server) -> None:
    status, answer = server.ask("POST", "/v1/models/flights:predict", {"instances": [{"x": 2.0}, {"x": 5}]})
    assert (status, answer) == (200, {"predictions": [4.0, 10.0]})


def test_every_answer_of_the_model_says_which_version_it_is(server: Server) -> None:
    for method, path, body in (
        ("POST", f"{MODEL}/infer", REQUEST),
        ("POST", "/v1/models/flights:predict", {"inputs": {"x": [2.0]}}),
        ("POST", "/v1/models/flights:predict", {"inputs": {}}),
        ("GET", MODEL, None),
    ):
        _, headers, _ = server.exchange(method, path, body)
        told = (headers["muster-revision"], headers["muster-model"])
        assert told == ("r1", spec().model.address), path


def test_binary_tensors(server: Server) -> None:
    raw = struct.pack("<2f", 3, 4)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    status, headers, answer = server.exchange("POST", f"{MODEL}/infer", head + raw, **length)
    at = int(headers["inference-header-content-length"])
    assert (status, json.loads(answer[:at])["model_version"]) == (200, "r1")
    assert struct.unpack("<2f", answer[at:]) == (6.0, 8.0)


def test_its_document_names_every_page_and_all_that_comes(server: Server) -> None:
    _, document = server.ask("GET", "/openapi.json")
    operation = document["paths"][f"{MODEL}/infer"]["post"]
    assert set(operation["responses"]) == {"200", "400", "404", "405", "413", "415", "500", "503"}
    (tensor,) = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["inputs"][
        "prefixItems"
    ]
    assert tensor["properties"]["name"] == {"const": "x"}
    for path, operations in document["paths"].items():
        named = path.replace("{revision}", "r1")
        for method in {"GET", "HEAD", "POST", "PUT", "TRACE", "OPTIONS"}:
            status, headers, answer = server.exchange(method, named, b"{}" if method == "POST" else None)
            allowed = {each.strip() for each in headers.get("allow", "").split(",")}
            if method.lower() in operations or (method == "HEAD" and "get" in operations):
                assert status in (200, 400), (method, path, answer)
            else:
                assert status == 405, (method, path)
                assert method == "HEAD" or list(json.loads(answer)) == ["error"], (method, path)
                assert allowed == ({"POST"} if "post" in operations else {"GET", "HEAD"})


def test_its_page_for_people_loads_nothing(server: Server) -> None:
    _, headers, page = server.exchange("GET", "/docs")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"/v1/models/flights:predict" in page
    assert re.findall(rb"<(?:script|link|img|iframe)|src=|@import|url\(|https?:", page) == []


def test_its_figures_are_its_own(server: Server) -> None:
    _, page = server.ask("GET", "/metrics")
    names = set(re.findall(r"^# TYPE (\w+?)_", page, re.MULTILINE))
    assert names == {"muster", "process", "python"}


def test_its_page_says_when_it_came_up(server: Server) -> None:
    _, page = server.ask("GET", "/metrics")
    (line,) = [each for each in page.splitlines() if each.startswith("process_start_time_seconds ")]
    assert float(line.split()[1]) > 1e9


@pytest.mark.parametrize("image", SERVERS)
@pytest.mark.parametrize("spoiled", ["model.onnx", "signature.json"])
def test_one_that_cannot_load_its_model_ends_and_says_why_last(
    python: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, spoiled: str
) -> None:
    """A revision that ends by itself is told by its last line."""
    monkeypatch.setenv("PREDICTIVE_UNIT_METRICS_SERVICE_PORT", str(free_port()))
    model = onnx_graph.write_line(tmp_path / "model")
    (model / spoiled).write_text("none")
    words = command(python(image), image, tmp_path, model=model, port=free_port())
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode
    assert ended.stderr.splitlines()[-1].startswith(f"flights: {spoiled}")


def test_users_who_ask_over_and_over_are_all_answered(server: Server) -> None:
    with Load(server.port, f"{MODEL}/infer", REQUEST) as load:
        eventually(lambda: load.sent > 1000)
    assert load.failed == {}
    assert counted(server).requests >= load.sent


def test_told_to_end_it_ends_well(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=GUARD_SECONDS) == 0
