"""Answers in parts: what a client sees of them, what holds a worker, and what ends a stream."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.serving.conftest import Front, run_front
from tests.serving.python_model import write_line
from tests.serving.streaming_model import write_words
from tests.waiting import GUARD_SECONDS, eventually

from muster.core.shipped import shipped

pytestmark = pytest.mark.data

MODEL = "/v2/models/line"
SECONDS = 2.0


@pytest.fixture(scope="module")
def words(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Front:
    """A server whose revision with all traffic answers in parts, in one worker."""
    folder = write_words(tmp_path_factory.mktemp("words"))
    assert front.load("words", folder, stream=True, request_seconds=SECONDS) == ""
    front.share("words")
    return front


def request(count: int, act: str = "", **more: Any) -> dict[str, Any]:
    tensors = [("count", "INT64", count), ("act", "BYTES", act)]
    inputs = [{"name": n, "datatype": d, "shape": [1], "data": [value]} for n, d, value in tensors]
    return {"inputs": inputs, **more}


@contextmanager
def streaming(front: Front, body: Any, path: str = MODEL) -> Iterator[http.client.HTTPResponse]:
    """Ask for an answer in parts; at the end the client leaves."""
    with asking(front.server.port, body, path) as response:
        yield response


@contextmanager
def asking(
    port: int, body: Any, path: str, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[http.client.HTTPResponse]:
    """Ask a port of this machine for an answer in parts; at the end the client leaves."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)
    connection.request("POST", f"{path}/generate_stream", json.dumps(body), headers)
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def next_event(response: http.client.HTTPResponse) -> Any:
    """Return the next event; None at the end of the answer."""
    line = response.readline()
    if not line:
        return None
    assert line.startswith(b"data: "), line
    assert response.readline() == b"\n"
    return json.loads(line[6:])


def events(front: Front, count: int, act: str = "") -> list[Any]:
    """Return all events of an answer."""
    with streaming(front, request(count, act)) as response:
        assert response.status == 200, response.read()
        return list(iter(lambda: next_event(response), None))


def word(one: Any) -> str:
    (found,) = one["outputs"][0]["data"]
    return str(found)


def counts(front: Front) -> dict[str, int]:
    """Return the requests of the revision by outcome."""
    page = front.server.ask("GET", "/metrics")[1]
    found = re.findall(r'muster_requests_total\{model="line",outcome="(\w+)",revision="words"\} (\S+)', page)
    return {outcome: int(float(number)) for outcome, number in found}


@contextmanager
def counted(front: Front, outcome: str) -> Iterator[None]:
    """Check that one request is counted, and as what: at once where its client has the whole answer."""
    before = counts(front)
    yield
    after = {**before, outcome: before[outcome] + 1}
    if outcome == "left":
        eventually(lambda: counts(front) == after)
    assert counts(front) == after


def test_each_part_is_an_event_that_comes_before_the_next_is_computed(words: Front, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with counted(words, "answered"), streaming(words, request(3, str(go), id="7")) as response:
        assert response.status == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["muster-revision"] == "words"
        first = next_event(response)
        pid = first["outputs"][1]["data"][0]
        assert first == {
            "model_name": "line",
            "model_version": "words",
            "id": "7",
            "outputs": [
                {"name": "word", "datatype": "BYTES", "shape": [1], "data": ["w0"]},
                {"name": "pid", "datatype": "INT64", "shape": [1], "data": [pid]},
            ],
        }
        go.touch()
        assert [word(next_event(response)) for _ in range(2)] == ["w1", "w2"]
        assert next_event(response) is None


def test_the_other_endpoints_answer_all_parts_joined(words: Front) -> None:
    with counted(words, "answered"):
        status, answer = words.server.ask("POST", f"{MODEL}/infer", request(3))
    output = answer["outputs"][0]
    assert (status, output["shape"], output["data"]) == (200, [3], ["w0", "w1", "w2"])
    asked = {"instances": [{"count": 2, "act": ""}]}
    status, answer = words.server.ask("POST", "/v1/models/line:predict", asked)
    assert (status, [row["word"] for row in answer["predictions"]]) == (200, ["w0", "w1"])
    status, answer = words.server.ask("POST", f"{MODEL}/infer", request(1000, "big"))
    assert (status, answer["error"]) == (
        500,
        "the whole answer has more than 16777216 bytes: ask for its parts, generate_stream",
    )
    assert len(events(words, 1)) == 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("raise", "the model failed: ValueError: unlucky (predict.py:21)"),
        ("die", "the model's process was ended by SIGABRT"),
        ("hang", "the model's process gave no answer within 2 s (request_timeout), and was ended"),
        ("names", "the model answered word, the signature's outputs are word, pid"),
        ("rows", "output 'pid': the model answered shape [1], expected [2]"),
    ],
)
def test_what_goes_wrong_after_some_parts_is_the_last_event(words: Front, act: str, said: str) -> None:
    with counted(words, "failed"):
        *parts, last = events(words, 5, act)
    assert [word(part) for part in parts] == ["w0", "w1", "w2"]
    assert last == {"error": said}
    eventually(lambda: words.server.ask("POST", f"{MODEL}/infer", request(1))[0] == 200)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (request(1, "at once"), 500, "the model failed: ValueError: unlucky (predict.py:16)"),
        (request(0), 500, "the model yielded no part, expected one or more"),
        ({"inputs": []}, 400, "input 'count' is missing; this model takes count, act"),
        (
            request(1, parameters={"binary_data_output": True}),
            400,
            "events are text: ask for no binary outputs, or at /infer",
        ),
    ],
)
def test_what_goes_wrong_before_the_first_part_is_an_error_as_any_other(
    words: Front, body: Any, status: int, said: str
) -> None:
    with (
        counted(words, "failed" if status == 500 else "refused"),
        streaming(words, body) as response,
    ):
        assert (response.status, json.loads(response.read())) == (status, {"error": said})


def test_a_client_that_leaves_closes_the_generator_and_the_worker_goes_on(words: Front) -> None:
    before = words.server.log.read_bytes().count(b"closed left")
    with counted(words, "left"), streaming(words, request(1 << 40, "left")) as response:
        (pid,) = next_event(response)["outputs"][1]["data"]
    eventually(lambda: words.server.log.read_bytes().count(b"closed left") == before + 1)
    (last,) = events(words, 1)
    assert last["outputs"][1]["data"] == [pid]


def test_a_client_that_reads_nothing_fills_no_memory_and_holds_a_worker_no_longer_than_allowed(
    words: Front,
) -> None:
    (pid,) = events(words, 1)[0]["outputs"][1]["data"]
    before, refused = resident_mib(words.server.process.pid), counts(words)["refused"]
    with streaming(words, request(1 << 40, "big")) as response:
        eventually(lambda: words.server.ask("POST", f"{MODEL}/infer", request(1))[0] == 200)
        assert events(words, 1)[0]["outputs"][1]["data"] == [pid]
        assert resident_mib(words.server.process.pid) - before < 32
        *_, last = iter(lambda: next_event(response), None)
        assert last == {"error": "the answer was not taken within 2 s (request_timeout): read it faster"}
    assert counts(words)["refused"] == refused + 1


@pytest.mark.nightly
def test_a_client_that_reads_nothing_for_a_minute_loses_its_connection(words: Front, tmp_path: Path) -> None:
    assert words.load("long", write_words(tmp_path), stream=True, request_seconds=600.0) == ""
    before = words.server.log.read_bytes().count(b"long | closed big")
    with streaming(words, request(1 << 40, "big"), f"{MODEL}/versions/long") as response:
        eventually(lambda: words.server.log.read_bytes().count(b"long | closed big") == before + 1)
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            response.read()
    words.unload("long")


def test_a_connection_is_kept_for_the_next_request(words: Front) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", words.server.port, timeout=GUARD_SECONDS)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("POST", f"{MODEL}/generate_stream", json.dumps(request(2)))
            ours = connection.sock.getsockname()
            assert connection.getresponse().read().count(b"data: ") == 2
            assert connection.sock.getsockname() == ours


def test_an_answer_without_end_ends(words: Front) -> None:
    with counted(words, "failed"):
        *parts, last = events(words, 1 << 40, "slow")
    assert last == {"error": "the answer was not whole within 2 s (request_timeout)"}
    assert len(parts) > 2


def test_a_revision_that_is_unloaded_finishes_its_answer(words: Front, tmp_path: Path) -> None:
    folder, go = write_words(tmp_path / "words"), tmp_path / "go"
    assert words.load("leaving", folder, stream=True) == ""
    with streaming(words, request(2, str(go)), f"{MODEL}/versions/leaving") as response:
        (pid,) = next_event(response)["outputs"][1]["data"]
        words.unload("leaving")
        go.touch()
        assert word(next_event(response)) == "w1"
        assert next_event(response) is None
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_model_that_does_not_stream_answers_with_one_event(words: Front, tmp_path: Path) -> None:
    assert words.load("whole", write_line(tmp_path)) == ""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    with streaming(words, body, f"{MODEL}/versions/whole") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert next_event(response)["outputs"][0]["data"] == [2, 4]
        assert next_event(response) is None
    words.unload("whole")


def test_a_model_that_yields_says_so(words: Front, tmp_path: Path) -> None:
    code = "def load(folder):\n    return 1\n\n\ndef predict(model, inputs):\n    yield {}\n"
    folder = write_words(tmp_path / "yields", predict=code)
    assert words.load("r9", folder) == (
        "predict yields its answer in parts: deploy it with stream=True; no ScoreOperator scores it"
    )
    said = "a model that streams computes each request alone: leave batch out"
    assert words.load("r9", folder, stream=True, most=8) == said
    assert words.load("r9", write_words(tmp_path / "returns")) == ""
    status, answer = words.server.ask("POST", f"{MODEL}/versions/r9/infer", request(1))
    assert (status, answer["error"]) == (
        500,
        "the model answered generator: where it answers in parts, deploy it with stream=True",
    )
    words.unload("r9")


def test_parts_pass_from_another_process_as_they_come(
    words: Front, command: list[str], run_server: Any, tmp_path: Path
) -> None:
    folder, go = write_words(tmp_path / "words"), tmp_path / "go"
    with run_front(command, run_server, tmp_path / "log") as first:
        first.share("words", port=words.server.port)
        with counted(words, "answered"), streaming(first, request(2, str(go))) as response:
            assert word(next_event(response)) == "w0"
            go.touch()
            assert word(next_event(response)) == "w1"
            assert next_event(response) is None
        with counted(words, "failed"):
            assert events(first, 5, "raise")[-1]["error"].startswith("the model failed")
        with counted(words, "left"), streaming(first, request(1 << 40)) as response:
            next_event(response)
        with counted(words, "left"):
            leave_before_the_first_part(first, words, tmp_path / "late")
        with streaming(first, request(1, "at once")) as response:
            assert response.status == 500
        with run_front(command, run_server, tmp_path / "other") as other:
            assert other.load("away", folder, stream=True) == ""
            first.share("away", port=other.server.port)
            with streaming(first, request(2, str(tmp_path / "never"))) as response:
                assert word(next_event(response)) == "w0"
                os.killpg(other.server.process.pid, signal.SIGKILL)
                assert next_event(response)["error"].startswith("the process of this revision")
                assert next_event(response) is None


def leave_before_the_first_part(asked: Front, computes: Front, go: Path) -> None:
    """Leave while the first part is computed; it is never ready before the client's leaving is counted."""
    connection = http.client.HTTPConnection("127.0.0.1", asked.server.port, timeout=GUARD_SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", f"{MODEL}/generate_stream", json.dumps(request(1, f"first {go}")))
        eventually(lambda: f"begun first {go}" in computes.server.log.read_text())


@pytest.mark.nightly
def test_a_server_that_ends_gives_a_stream_its_time_and_then_says_so(
    command: list[str], run_server: Any, tmp_path: Path
) -> None:
    with run_front(command, run_server, tmp_path / "log") as front:
        folder = write_words(tmp_path / "words")
        assert front.load("words", folder, stream=True, request_seconds=600.0) == ""
        front.share("words")
        front.finish(33.0)
        with streaming(front, request(1 << 40, "slow")) as response:
            next_event(response)
            begun = time.monotonic()
            front.server.process.send_signal(signal.SIGTERM)
            *_, last = iter(lambda: next_event(response), None)
            assert last == {"error": "the model server ended before the answer was whole: ask again"}
            assert time.monotonic() - begun > 32


@pytest.mark.parametrize("slow", ["client", "model"])
def test_who_was_slower_is_to_blame(python: Callable[[str], Path], tmp_path: Path, slow: str) -> None:
    script = Path(__file__).with_name("try_pauses.py")
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    words = [python("serve"), script, write_words(tmp_path / "words"), slow]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (
        ran.stdout
        == {
            "client": "RequestError: the answer was not taken within 1 s (request_timeout): read it faster\n",
            "model": "PredictionError: the answer was not whole within 1 s (request_timeout)\n",
        }[slow]
    )


def resident_mib(pid: int) -> float:
    """Return how much memory a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
