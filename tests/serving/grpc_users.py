"""Users of gRPC, as processes of the image ``kserve``, whose SDK has the protocol's messages as others made them."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENT = Path(__file__).with_name("grpc_client.py")


class Asker:
    """Asks one thing after the other over one connection."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, call: str, message: Any = None, **more: Any) -> dict[str, Any]:
        """Return the answer's status, its words, its message and what is told beside it."""
        self.send(call, message, **more)
        return self.hear()

    def send(self, call: str, message: Any = None, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": call, "message": message or {}, **more}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def leave(self) -> None:
        """Go away, whatever was asked."""
        self._process.kill()
        self._process.wait()


@contextmanager
def asking(python: Path, port: int, *, host: str = "") -> Iterator[Asker]:
    """Give a client of a port. :param host: the host that it asks for there; empty: the address."""
    with _client(python, _place(port, host)) as process:
        yield Asker(process)


@contextmanager
def users(
    python: Path, port: int, message: Any, *, connections: int = 8, host: str = ""
) -> Iterator[dict[str, int]]:
    """Ask over and over while the block runs; then the answers are counted in what it was given."""
    answers: dict[str, int] = {}
    with _client(python, _place(port, host), str(connections)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "asking\n"
        yield answers
        process.stdin.close()
        answers |= json.loads(process.stdout.readline())


def _place(port: int, host: str) -> str:
    return f"{port}@{host}" if host else str(port)


@contextmanager
def _client(python: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    words = [str(python), "-P", str(CLIENT), *arguments]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def grpc_message(body: Any, *, name: str) -> dict[str, Any]:
    """Return a body of HTTP with INT64 and FP32 tensors as a message with their bytes."""
    codes = {"INT64": "q", "FP32": "f"}
    packed = (
        struct.pack(f"<{len(one['data'])}{codes[one['datatype']]}", *one["data"]) for one in body["inputs"]
    )
    inputs = [{key: one[key] for key in ("name", "datatype", "shape")} for one in body["inputs"]]
    return {
        "model_name": name,
        "inputs": inputs,
        "raw_input_contents": [base64.b64encode(data).decode() for data in packed],
    }


def typed(name: str, x: Sequence[float], **more: Any) -> dict[str, Any]:
    """A request for the model ``y = slope * x``, with typed values."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(x)], "contents": {"fp32_contents": list(x)}}
    return {"model_name": name, "inputs": [tensor], **more}


def raw(name: str, x: Sequence[float], **more: Any) -> dict[str, Any]:
    """The same with bytes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(x)]}
    data = base64.b64encode(struct.pack(f"<{len(x)}f", *x)).decode()
    return {"model_name": name, "inputs": [tensor], "raw_input_contents": [data], **more}


def values(answer: dict[str, Any]) -> list[float]:
    """The values of an answer's first output, in whichever form."""
    message = answer["message"]
    if message["raw_output_contents"]:
        data = base64.b64decode(message["raw_output_contents"][0])
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    found: list[float] = message["outputs"][0]["contents"]["fp32_contents"]
    return found
