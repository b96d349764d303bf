"""The server as clients see it: real requests, good, bad and hostile."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import re
import select
import signal
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.conftest import Server
from tests.waiting import GUARD_SECONDS, eventually

pytestmark = pytest.mark.slow

INFER = "/v2/models/mixed/infer"
PREDICT = "/v1/models/mixed:predict"
MIB = 1 << 20
JSON_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def start(
    command: list[str], run_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Starts a server of one version, as the image's command does."""

    def start(write: Callable[[Path], Path], *, name: str) -> Any:
        folder, port = tmp_path_factory.mktemp(name), free_port()
        words = [*command, name, "--model", str(write(folder / "8")), "--revision", "8", "--port", str(port)]
        return run_server(words, port=port, ready="/v2/health/ready", log=folder / "log")

    return start


@pytest.fixture(scope="module")
def server(start: Any) -> Iterator[Server]:
    with start(onnx_graph.write_mixed, name="mixed") as server:
        yield server


def request(**changed: Any) -> dict[str, Any]:
    """A good request of two rows; ``code={"data": …}`` changes one tensor, ``code=None`` leaves it out."""
    tensors: dict[str, Any] = {
        "code": {"datatype": "BYTES", "shape": [2], "data": ["UA", "elsewhere"]},
        "day": {"datatype": "INT64", "shape": [2], "data": [1, 7]},
        "place": {"datatype": "FP32", "shape": [2, 3], "data": [[1, 2, 3], [0.5, 0, 0]]},
    }
    for name, change in changed.items():
        tensors[name] = None if change is None else tensors.get(name, {}) | change
    return {"inputs": [{"name": name} | tensor for name, tensor in tensors.items() if tensor is not None]}


class TestProtocol:
    def test_v2(self, server: Server) -> None:
        status, answer = server.ask("POST", INFER, request() | {"id": "one"})
        assert status == 200
        assert answer == {
            "model_name": "mixed",
            "model_version": "8",
            "id": "one",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2], "data": [322.5, 7.5]},
                {"name": "pair", "datatype": "FP32", "shape": [2, 2], "data": [322.5, 0.5, 7.5, 0.0]},
            ],
        }

    def test_v2_flat_data_by_version_and_one_output(self, server: Server) -> None:
        flat = request(place={"data": [1, 2, 3, 0.5, 0, 0]}) | {"outputs": [{"name": "y"}]}
        status, answer = server.ask("POST", "/v2/models/mixed/versions/8/infer", flat)
        assert status == 200
        assert [output["name"] for output in answer["outputs"]] == ["y"]
        assert answer["outputs"][0]["data"] == [322.5, 7.5]

    def test_v1_by_row(self, server: Server) -> None:
        rows = [{"code": "UA", "day": 1, "place": [1, 2, 3]}, {"code": "AA", "day": 7, "place": [0.5, 0, 0]}]
        status, answer = server.ask("POST", PREDICT, {"instances": rows})
        assert status == 200
        assert answer == {
            "predictions": [{"y": 322.5, "pair": [322.5, 0.5]}, {"y": 7.75, "pair": [7.75, 0.25]}]
        }

    def test_v1_by_column(self, server: Server) -> None:
        columns = {"code": ["UA"], "day": [1], "place": [[1, 2, 3]]}
        status, answer = server.ask("POST", PREDICT, {"inputs": columns})
        assert (status, answer) == (200, {"outputs": {"y": [322.5], "pair": [[322.5, 0.5]]}})

    def test_health_and_metadata(self, server: Server) -> None:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/mixed/ready", "/v1/models/mixed"):
            assert server.ask("GET", path)[0] == 200, path
        for path in ("/v2/models/mixed", "/v2/models/mixed/versions/8"):
            status, metadata = server.ask("GET", path)
            assert status == 200
            assert metadata["versions"] == ["8"]
            assert metadata["inputs"] == [
                {"name": "code", "datatype": "BYTES", "shape": [-1]},
                {"name": "day", "datatype": "INT64", "shape": [-1]},
                {"name": "place", "datatype": "FP32", "shape": [-1, 3]},
            ]

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("POST", "/v2/models/other/infer", 404),
            ("POST", "/v2/models/mixed/versions/9/infer", 404),
            ("GET", "/v2/models/other", 404),
            ("GET", INFER, 405),
            ("POST", "/v2/repository/models/mixed/unload", 404),
            ("POST", "/v2/repository/models/mixed/load", 404),
            ("DELETE", "/v2/models/mixed", 405),
            ("TRACE", "/metrics", 405),
            ("OPTIONS", PREDICT, 405),
            ("GET", "/redoc", 404),
            ("POST", "/v2/models/%2e%2e/infer", 404),
        ],
    )
    def test_what_is_not_there(self, server: Server, method: str, path: str, status: int) -> None:
        found, answer = server.ask(method, path, request() if method == "POST" else None)
        assert found == status
        assert list(answer) == ["error"]
        assert server.ask("POST", INFER, request())[0] == 200

    def test_one_row_answers_as_many_do(self, start: Any) -> None:
        with start(onnx_graph.write_delays, name="delays") as server:
            rng = random.Random(1)
            rows = [
                {"carrier": rng.randrange(16), "origin": rng.randrange(3), "dest": rng.randrange(105)}
                | {f"number_{i}": rng.uniform(-2, 2) for i in range(9)}
                for _ in range(50)
            ]
            together = server.ask("POST", "/v1/models/delays:predict", {"instances": rows})[1]["predictions"]
            alone = [
                server.ask("POST", "/v1/models/delays:predict", {"instances": [row]})[1]["predictions"][0]
                for row in rows
            ]
        assert len(set(together)) == 50
        assert alone == pytest.approx(together, abs=1e-6)

    def test_metrics_count_each_outcome(self, start: Any) -> None:
        with start(onnx_graph.write_table, name="table") as server:
            for rows in ([0], [1], ["a"], [2]):
                server.ask("POST", "/v1/models/table:predict", {"inputs": {"row": rows}})
            _, page = server.ask("GET", "/metrics")
        counted = dict(
            re.findall(r'muster_requests_total\{model="table",outcome="(\w+)",revision="8"\} (\S+)', page)
        )
        assert counted == {"answered": "2.0", "refused": "1.0", "failed": "1.0", "left": "0.0"}
        assert 'muster_request_seconds_count{model="table",revision="8"} 3.0' in page


BAD_REQUESTS: list[tuple[Any, str]] = [
    (b"", "the body is not JSON"),
    (b"{", "the body is not JSON"),
    (b"\xff\xfe", "the body is not JSON"),
    (b"\xef\xbb\xbf{}", "the body is not JSON: it begins with a byte order mark; send UTF-8 without one"),
    (json.dumps(request()).encode() + b"\x01", "the body is not JSON"),
    (json.dumps(request()).encode("utf-16"), "the body is not JSON: byte 0 is not UTF-8"),
    (json.dumps(request()).encode("utf-16-le"), "the body is not JSON"),
    (b'{"inputs": [], "inputs": []}', "the body has the name 'inputs' twice in one object"),
    (
        json.dumps(request()).replace('"shape"', '"data": [1], "shape"', 1).encode(),
        "the body has the name 'data' twice in one object",
    ),
    (b'{"inputs": [], "inputs": [], "x": [{}, "y"]}', "the body has the name 'inputs' twice in one object"),
    (b'{"inputs": [{"parameters": {"a:b": 1, "a:b": 2}}]}', "the body has the name 'a:b' twice"),
    (b"[" * 100_000, "the body is not JSON"),
    ([], "the body is an empty list, expected a JSON object"),
    ({}, "inputs: found nothing, expected a list of tensors"),
    ({"inputs": {}}, "inputs: found an object, expected a list of tensors"),
    ({"inputs": []}, "input 'code' is missing; this model takes code, day, place"),
    ({"inputs": [7]}, "inputs: found a number, expected tensors"),
    (request(day=None), "input 'day' is missing; this model takes code, day, place"),
    (
        request(hour={"datatype": "INT64", "shape": [2], "data": [1, 2]}),
        "input 'hour' is unknown; this model takes",
    ),
    ({"inputs": request()["inputs"] * 2}, "input 'code' is there twice"),
    ({"inputs": [{"name": ["code"]}]}, "input ['code'] is unknown"),
    (request(day={"datatype": "INT32"}), "input 'day': datatype is 'INT32', expected INT64"),
    (request(day={"data": [1, 4]}), "input 'day': found 4, expected one of 1, 2, 3, 7"),
    (request(day={"data": [1, 1.5]}), "input 'day': found 1.5 at position 1, expected INT64"),
    (request(day={"data": [1, True]}), "input 'day': found True at position 1, expected INT64"),
    (request(day={"data": [1, None]}), "input 'day': found None at position 1, expected INT64"),
    (request(day={"data": [1]}), "input 'day': shape [2] needs 2 values, found 1"),
    (request(day={"data": 1}), "input 'day': data is a number, expected a JSON list of values"),
    (request(day={"data": [[1], [7]]}), "input 'day': found [1] at position 0, expected INT64"),
    (request(day={"shape": [2, 2], "data": [1, 7]}), "input 'day': shape is [2, 2], expected [-1]"),
    (request(day={"shape": [3], "data": [1, 2, 3]}), "input 'day' has 3 rows, the inputs before it have 2"),
    (request(day={"shape": "2"}), "input 'day': shape is '2', expected [-1]"),
    (request(day={"shape": [2.0]}), "input 'day': shape is [2.0], expected [-1]"),
    (request(code={"data": ["UA", 3]}), "input 'code': found 3 at position 1, expected BYTES"),
    (request(place={"data": [[1, 2], [3, 4]]}), "nested data does not have 3 values in dimension 1"),
    (request(place={"data": [1, 2, 3]}), "input 'place': shape [2, 3] needs 6 values, found 3"),
    (request(place={"shape": [2, 4]}), "input 'place': shape is [2, 4], expected [-1, 3]"),
    (
        request(place={"data": [[1, 2, 3], [0, "1", 0]]}),
        "input 'place': found text '1' at position 4, expected FP32",
    ),
    (request(place={"data": [[1, 2, float("nan")], [0, 0, 0]]}), "input 'place': found nan at position 2"),
    (request(place={"data": [[1, 2, 3], [0, 0, float("inf")]]}), "input 'place': found inf at position 5"),
    (request(place={"data": [[1, 2, 3], [0, 0, 1e39]]}), "input 'place': found 1e+39 at position 5"),
    (request(place={"data": [[1, 2, 3], [0, 0, 10**400]]}), "input 'place': found 1000"),
    (request(place={"data": [[1, 2, 3], [0.5, 0, 10**400]]}), "input 'place': found 1000"),
    (request() | {"id": "\ud800"}, "id: found '\\ud800', half of a pair of surrogates"),
    (
        {"inputs": [{"name": "code", "datatype": "BYTES", "shape": [101], "data": ["UA"] * 101}]},
        "found 101 rows, expected 1 to 100 in one request",
    ),
    ({"inputs": [{"name": "code", "datatype": "BYTES", "shape": [0], "data": []}]}, "found 0 rows"),
    (request() | {"outputs": [{"name": "z"}]}, "output 'z' is unknown; this model answers y, pair"),
    (request() | {"outputs": 7}, "output 7 is unknown"),
    (request() | {"outputs": [{}]}, "output None is unknown"),
    (request() | {"id": 7}, "id: found 7, expected text"),
]

TEXTS = b"\2\0\0\0UA\x09\0\0\0elsewhere"


def binary(codes: bytes = TEXTS, days: tuple[int, ...] | bytes = (1, 7), **changed: Any) -> tuple[bytes, int]:
    """The good request by the binary tensor data extension: JSON and then the values; and the length of the JSON.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/extension_binary_data.md
    """
    raw = days if isinstance(days, bytes) else struct.pack("<2q", *days)
    parts = [codes, raw, struct.pack("<6f", 1, 2, 3, 0.5, 0, 0)]
    tensors = request(**changed)["inputs"]
    for tensor, part in zip(tensors, parts, strict=True):
        if tensor.pop("data", None) is not None:
            tensor.setdefault("parameters", {"binary_data_size": len(part)})
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return b"".join([head, *parts]), len(head)


BAD_BINARY: list[tuple[tuple[bytes, Any], str]] = [
    (binary(codes=TEXTS[:-1]), "input 'code': the text at position 1 goes beyond its tensor's bytes"),
    (binary(codes=TEXTS + b"\1\0"), "input 'code': the text at position 2 goes beyond its tensor's bytes"),
    (binary(codes=TEXTS[:6]), "input 'code': shape [2] needs 2 values, found 1"),
    (binary(codes=b"\1\0\0\0\xff\0\0\0\0"), "input 'code': the text at position 0 is not UTF-8"),
    (binary(days=b"\1"), "input 'day': 1 bytes are no whole number of INT64, which has 8 bytes"),
    (binary(days=(1, 4)), "input 'day': found 4, expected one of 1, 2, 3, 7"),
    (
        binary(day={"parameters": {"binary_data_size": 99}}),
        "input 'day': binary_data_size is 99, 40 bytes are left",
    ),
    (binary(day={"parameters": {"binary_data_size": "8"}}), "input 'day': binary_data_size is '8'"),
    (binary(day={"parameters": []}), "input 'day': parameters is [], expected an object"),
    ((binary()[0] + b"\0", binary()[1]), "1 bytes are left after the last tensor"),
    ((binary()[0], 10**6), "Inference-Header-Content-Length is 1000000, the whole body has"),
    ((binary()[0], "x"), "Inference-Header-Content-Length: found 'x', expected a number of bytes"),
    ((binary()[0], 5), "the body is not JSON"),
]

BAD_INSTANCES: list[tuple[Any, str]] = [
    ({}, 'expected {"instances": [{…}]} or {"inputs": {…}}, one of the two'),
    ({"instances": [], "inputs": {}}, "one of the two"),
    ({"instances": []}, "instances: found an empty list, expected a list of one or more objects"),
    ({"instances": [[1, 2]]}, "instances[0]: found a list, expected an object of values by name"),
    ({"instances": [{"day": 1}, {"hour": 1}]}, "instances[1]: 'day' is not in every row"),
    ({"instances": [{"day": 1}]}, "input 'code' is missing"),
    ({"inputs": []}, "inputs: found an empty list, expected an object of lists by name"),
    (
        {"inputs": {"code": "UA", "day": [1], "place": [[1, 2, 3]]}},
        "input 'code': found text, expected a list",
    ),
    ({"inputs": {"code": ["UA"], "day": [1, 2], "place": [[1, 2, 3]]}}, "input 'day' has 2 rows"),
    (
        {"inputs": {"code": ["UA"], "day": [1], "place": [[1, 2]]}},
        "input 'place': nested data does not have 3",
    ),
]


class TestBinaryTensors:
    def test_both_ways(self, server: Server) -> None:
        body, length = binary()
        status, headers, answer = server.exchange("POST", INFER, body, **{JSON_LENGTH: str(length)})
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        at = int(headers[JSON_LENGTH.lower()])
        assert json.loads(answer[:at])["outputs"] == [
            {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
            {"name": "pair", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
        ]
        assert struct.unpack("<6f", answer[at:]) == (322.5, 7.5, 322.5, 0.5, 7.5, 0.0)

    def test_one_output_of_two(self, server: Server) -> None:
        asked = request() | {
            "outputs": [{"name": "pair"}, {"name": "y", "parameters": {"binary_data": True}}]
        }
        _, headers, answer = server.exchange("POST", INFER, asked)
        at = int(headers[JSON_LENGTH.lower()])
        pair, y = json.loads(answer[:at])["outputs"]
        assert (pair["data"], y["parameters"]) == ([322.5, 0.5, 7.5, 0.0], {"binary_data_size": 8})
        assert struct.unpack("<2f", answer[at:]) == (322.5, 7.5)

    def test_without_any_it_is_json(self, server: Server) -> None:
        body = json.dumps(request()).encode()
        headers = {JSON_LENGTH: str(len(body)), "Content-Type": "application/octet-stream"}
        status, answer = server.ask("POST", INFER, body, **headers)
        assert (status, answer["outputs"][0]["data"]) == (200, [322.5, 7.5])

    def test_texts_both_ways(self, start: Any) -> None:
        texts = ["é", "", "ab"]
        raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
        tensor = {
            "name": "x",
            "datatype": "BYTES",
            "shape": [3],
            "parameters": {"binary_data_size": len(raw)},
        }
        head = json.dumps(
            {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
        )
        with start(onnx_graph.write_texts, name="texts") as server:
            _, headers, answer = server.exchange(
                "POST", "/v2/models/texts/infer", head.encode() + raw, **{JSON_LENGTH: str(len(head))}
            )
        assert answer[int(headers[JSON_LENGTH.lower()]) :] == raw

    @pytest.mark.parametrize(("sent", "words"), BAD_BINARY)
    def test_what_is_wrong_is_named(self, server: Server, sent: tuple[bytes, Any], words: str) -> None:
        body, length = sent
        status, answer = server.ask("POST", INFER, body, **{JSON_LENGTH: str(length)})
        assert (status, words in answer["error"]) == (400, True), answer

    def test_values_out_of_range_are_named(self, start: Any) -> None:
        raw = struct.pack("<3f", 1, float("nan"), 2)
        tensor = {"name": "x", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": len(raw)}}
        head = json.dumps({"inputs": [tensor]}).encode()
        with start(onnx_graph.write_line, name="line") as server:
            status, answer = server.ask(
                "POST", "/v2/models/line/infer", head + raw, **{JSON_LENGTH: str(len(head))}
            )
        assert (status, "found nan at position 1" in answer["error"]) == (400, True)

    def test_version_1_has_none(self, server: Server) -> None:
        status, answer = server.ask("POST", PREDICT, b"{}", **{JSON_LENGTH: "2"})
        assert (status, answer["error"][:31]) == (400, "version 1 has no binary tensors")

    def test_nothing_else_is_announced(self, server: Server) -> None:
        assert server.ask("GET", "/v2")[1]["extensions"] == ["binary_tensor_data"]


class TestContent:
    @pytest.mark.parametrize(
        "kind",
        [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/vnd.x+json",
            "application/x-www-form-urlencoded",
            "",
        ],
    )
    def test_what_is_read(self, server: Server, kind: str) -> None:
        assert server.ask("POST", INFER, request(), **{"Content-Type": kind})[0] == 200

    @pytest.mark.parametrize(
        ("headers", "words"),
        [
            ({"Content-Type": "text/plain"}, "Content-Type: found 'text/plain', expected application/json"),
            ({"Content-Type": "application/octet-stream"}, "Inference-Header-Content-Length is needed"),
            ({"Content-Type": "application/json; charset=utf-16"}, "expected JSON in UTF-8"),
            (
                {"Content-Encoding": "br"},
                "Content-Encoding: found 'br'; this server reads bodies as they are, by gzip",
            ),
        ],
    )
    def test_what_is_not(self, server: Server, headers: dict[str, str], words: str) -> None:
        status, answer = server.ask("POST", INFER, request(), **headers)
        assert (status, words in answer["error"]) == (415, True), answer

    @pytest.mark.parametrize(
        ("name", "pack"), [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress)]
    )
    def test_a_packed_body_is_unpacked_as_far_as_it_may_be_long(
        self, server: Server, name: str, pack: Callable[[bytes], bytes]
    ) -> None:
        body = json.dumps(request()).encode()
        for packed, status, words in (
            (pack(body), 200, ""),
            (pack(body)[:-9], 400, "it is cut off, or more follows"),
            (pack(body) + b"x", 400, "it is cut off, or more follows"),
            (body, 400, "the body is not what its Content-Encoding says"),
            (pack(bytes(64 << 20)), 413, "at most 16777216 are read"),
        ):
            found, answer = server.ask("POST", INFER, packed, **{"Content-Encoding": name})
            assert (found, words in answer.get("error", "")) == (status, True), answer

    def test_a_column_may_come_as_rows_of_one_value(self, server: Server) -> None:
        flat = {"code": {"shape": [2, 1]}, "day": {"shape": [2, 1], "data": [[1], [7]]}}
        status, answer = server.ask("POST", INFER, request(**flat))
        assert (status, answer["outputs"][0]["data"]) == (200, [322.5, 7.5])

    def test_whole_numbers_are_integers(self, server: Server) -> None:
        assert server.ask("POST", INFER, request(day={"data": [1.0, 7]}))[0] == 200

    def test_colons_and_deep_parameters_are_no_names_that_come_twice(self, server: Server) -> None:
        asked = request(code={"data": ["a:b", '":"'], "parameters": {"content_type": "str", "x": {"y": 1}}})
        assert server.ask("POST", INFER, asked)[0] == 200


class TestBadRequests:
    @pytest.mark.parametrize(("body", "words"), BAD_REQUESTS)
    def test_v2_names_the_field(self, server: Server, body: Any, words: str) -> None:
        status, answer = server.ask("POST", INFER, body)
        assert status == 400, answer
        assert words in answer["error"]

    @pytest.mark.parametrize(("body", "words"), BAD_INSTANCES)
    def test_v1_names_the_field(self, server: Server, body: Any, words: str) -> None:
        status, answer = server.ask("POST", PREDICT, body)
        assert status == 400, answer
        assert words in answer["error"]

    def test_what_the_signature_accepts_and_the_model_refuses_is_a_fault_of_the_model(
        self, start: Any
    ) -> None:
        with start(onnx_graph.write_table, name="table") as server:
            for rows in ([99], [0, 99]):
                status, answer = server.ask("POST", "/v1/models/table:predict", {"inputs": {"row": rows}})
                assert status == 500
                assert answer["error"].startswith("the model failed: InvalidArgument: ")

    @pytest.mark.parametrize("path", ["/v1/models/texts:predict", "/v2/models/texts/infer"])
    def test_half_of_a_pair_of_surrogates_is_the_clients_fault_wherever_it_stands(
        self, start: Any, path: str
    ) -> None:
        with start(onnx_graph.write_texts, name="texts") as server:
            texts = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["good", "a\ud800"]}
            bodies = [{"inputs": {"x": ["good", "a\ud800"]}}, {"inputs": {"\ud800": ["good"]}}]
            if path.startswith("/v2"):
                bodies = [
                    {"inputs": [texts]},
                    {"inputs": [texts | {"name": "\ud800"}]},
                    {"inputs": [], "id": "\udfff"},
                ]
            for body in bodies:
                status, headers, answer = server.exchange("POST", path, body)
                assert (status, headers["content-type"]) == (400, "application/json")
                assert headers["muster-revision"]
                assert json.loads(answer)["error"]
            page = server.ask("GET", "/metrics")[1]
            assert f'outcome="refused",revision="{headers["muster-revision"]}"}} {len(bodies)}.0' in page
            assert (
                f'muster_request_seconds_count{{model="texts",revision="{headers["muster-revision"]}"}} 0.0'
                in page
            )

    def test_an_answer_that_is_no_number_is_a_fault_of_the_model(self, start: Any) -> None:
        with start(onnx_graph.write_table, name="table") as server:
            for rows in ([2], [0, 2]):
                status, answer = server.ask("POST", "/v1/models/table:predict", {"inputs": {"row": rows}})
                assert status == 500
                assert answer["error"] == "output 'y': the model answered nan; expected finite numbers"

    def test_a_body_of_100_mb_is_refused_unread(self, server: Server) -> None:
        before = resident(server)
        with socket.create_connection(("127.0.0.1", server.port), timeout=GUARD_SECONDS) as client:
            client.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {100 * MIB}\r\n\r\n{{".encode()
            )
            assert client.recv(100).startswith(b"HTTP/1.1 413")
        assert resident(server) - before < 8 * MIB

    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_body_of_100_mb_that_is_sent_all_the_same_costs_no_memory(
        self, server: Server, chunked: bool
    ) -> None:
        before = resident(server)
        body = (b" " * MIB for _ in range(100))
        headers = {} if chunked else {"Content-Length": str(100 * MIB)}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=GUARD_SECONDS)
        connection.request("POST", INFER, body, headers, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert "at most 16777216 are read" in json.loads(response.read())["error"]
        connection.close()
        assert resident(server) - before < 40 * MIB

    def test_many_clients_with_long_bodies_cannot_fill_the_memory(self, server: Server) -> None:
        before, head = (
            resident(server),
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {16 * MIB}\r\n\r\n",
        )
        with ExitStack() as opened:
            clients = []
            for _ in range(20):
                client = opened.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), timeout=GUARD_SECONDS)
                )
                client.sendall(head.encode() + b" " * (16 * MIB - 1))
                clients.append(client)
            answered: list[socket.socket] = []
            while len(answered) < 4:
                answered = select.select(clients, [], [], GUARD_SECONDS)[0]
                assert answered, "no request was refused"
            assert all(client.recv(100).startswith(b"HTTP/1.1 503") for client in answered)
            assert resident(server) - before < 180 * MIB
            assert server.ask("POST", INFER, request())[0] == 200

    def test_long_answers_that_nobody_reads_leave_less_room_for_bodies(self, server: Server) -> None:
        body = json.dumps(request() | {"id": "x" * (15 * MIB)}).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

        def answered(status: int) -> bool:
            return server.exchange("POST", INFER, request() | {"id": "x" * (12 * MIB)})[0] == status

        with ExitStack() as opened:
            for _ in range(8):
                client = opened.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), timeout=GUARD_SECONDS)
                )
                client.sendall(head + body)
                assert client.recv(12) == b"HTTP/1.1 200"  # and no more of it
            assert answered(503)
            assert server.ask("POST", INFER, request())[0] == 200
        eventually(lambda: answered(200))

    def test_a_client_that_hangs_up_harms_nobody(self, server: Server) -> None:
        for sent in (
            b"POST",
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode(),
            b"\0" * 99,
        ):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(sent)
        assert server.ask("POST", INFER, request())[0] == 200
        assert "Traceback" not in server.log.read_text()

    @pytest.mark.parametrize("seed", range(4))
    def test_hostile_bodies_are_always_the_clients_fault(self, server: Server, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            version = rng.choice(["v1", "v2"])
            body = hostile(rng, version)
            status, answer = server.ask("POST", INFER if version == "v2" else PREDICT, body)
            assert status == 200 or 400 <= status < 500, (body[:500], answer)
            assert status == 200 or answer["error"]
        assert server.ask("POST", INFER, request())[0] == 200
        assert "Traceback" not in server.log.read_text()

    def test_requests_that_run_are_answered_before_the_server_ends(self, start: Any) -> None:
        with start(onnx_graph.write_mixed, name="mixed") as server:
            body = json.dumps(request()).encode()
            with socket.create_connection(("127.0.0.1", server.port), timeout=GUARD_SECONDS) as client:
                client.sendall(
                    f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                )
                client.sendall(body[:10])
                server.process.send_signal(signal.SIGTERM)
                while server.answers("/v2/health/ready"):
                    pass
                client.sendall(body[10:])
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert server.process.wait(GUARD_SECONDS) == 0


def resident(server: Server) -> int:
    """Return the bytes of memory that the server holds."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


def hostile(rng: random.Random, version: str) -> bytes:
    """Return a body that is wrong in some way, and sometimes not even that."""
    rows = [{"code": "UA", "day": 1, "place": [1, 2, 3]}]
    good = request() if version == "v2" else {"instances": rows}
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        text = bytearray(json.dumps(good).encode())
        for _ in range(rng.randrange(1, 6)):
            text[rng.randrange(len(text))] = rng.choice(b'{}[],:"0159eE-+.nulltruefalse\\ \xff')
        return bytes(text)
    return json.dumps(mutated(rng, good)).encode()


def mutated(rng: random.Random, value: Any) -> Any:
    """Return JSON with something in it replaced, dropped or doubled."""
    odd = [
        None,
        True,
        -1,
        0,
        2**63,
        2**64,
        -(2**70),
        1e308,
        float("nan"),
        "",
        "\ud800",
        "x" * 300,
        [],
        {},
        [[]],
        [{}],
    ]
    if rng.random() < 0.2:
        return rng.choice(odd)
    if isinstance(value, list) and value:
        items = [mutated(rng, item) if rng.random() < 0.5 else item for item in value]
        return items * rng.choice([1, 1, 1, 2, 200]) if rng.random() < 0.3 else items
    if isinstance(value, dict):
        return {
            (rng.choice(["", "name", "data", "shape"]) if rng.random() < 0.1 else key): mutated(rng, item)
            for key, item in value.items()
            if rng.random() > 0.1
        }
    return rng.choice(odd) if rng.random() < 0.3 else value
