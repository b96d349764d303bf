"""Run in the image ``serve``: ``PORT HOW [VALUE]`` sends what gRPC's own clients do not; prints how it ended, as JSON."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived
from h2.settings import SettingCodes

AS_IT_IS = H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
PIECE, FLOOD = 1000, 200
HEADERS, GOAWAY = 1, 7


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=100)
        self.asks = H2Connection(AS_IT_IS)
        self.asks.initiate_connection()

    def call(self, name: str, *data: bytes, ends: bool = True, **more: bytes) -> None:
        """Begin a call, and send its data, each in a frame."""
        headers = {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": f"/inference.GRPCInferenceService/{name}".encode(),
            b":authority": b"x",
            b"te": b"trailers",
            b"content-type": b"application/grpc",
            **{word.replace("_", "-").encode(): value for word, value in more.items()},
        }
        number = self.asks.get_next_available_stream_id()
        self.asks.send_headers(number, list(headers.items()), end_stream=ends and not data)
        for left, each in reversed(list(enumerate(reversed(data)))):
            self.asks.send_data(number, each, end_stream=ends and not left)

    def events(self) -> Iterator[Event]:
        """Send what there is to send, and yield what comes until the server closes."""
        self.socket.sendall(self.asks.data_to_send())
        while data := self.socket.recv(1 << 16):
            yield from self.asks.receive_data(data)
            self.socket.sendall(self.asks.data_to_send())

    def answer(self) -> list[str]:
        """Return the next answer's status and words."""
        for event in self.events():
            if isinstance(event, ResponseReceived):
                told = dict(event.headers)
                return [
                    told.get(b"grpc-status", b"").decode(),
                    unquote(told.get(b"grpc-message", b"").decode()),
                ]
        raise SystemExit("the server closed")

    def floods(self, send: Callable[[], None]) -> bool:
        """Send the same very often; return whether the server ends that."""
        try:
            for _ in range(FLOOD):
                for _ in range(PIECE):
                    send()
                self.socket.sendall(self.asks.data_to_send())
        except OSError:
            return True
        return False


def metadata(client: Client, value: str) -> object:
    client.call("ModelInfer", bytes(5), authorization=bytes.fromhex(value))
    return client.answer()[1]


def cut(client: Client, size: str) -> object:
    """Of a message of ten bytes so many bytes come, its head included."""
    client.call("ServerLive", (b"\0\0\0\0\x0a" + bytes(10))[: int(size)])
    return client.answer()


def empty(client: Client, _: str) -> object:
    client.call("ServerLive", bytes(2), b"", bytes(3))
    return client.answer()


def timeout(client: Client, value: str) -> object:
    client.call("ServerLive", bytes(5), grpc_timeout=value.encode())
    return client.answer()


def silent(client: Client, _: str) -> object:
    client.call("ServerLive", bytes(2), ends=False)
    return client.answer()


def words(client: Client, _: str) -> object:
    """Ask for ever new words, and say that all of them are kept; return which headers are."""
    client.asks.update_settings({SettingCodes.HEADER_TABLE_SIZE: 1 << 30})
    for number in range(10):
        client.call(f"No{number}", bytes(5))
        client.answer()
    return sorted({name.decode() for name, _ in client.asks.decoder.header_table.dynamic_entries})


def idle(client: Client, _: str) -> object:
    """Ask nothing, until told to ask elsewhere, just when asking after all; return the kinds of frames that came."""
    client.socket.sendall(client.asks.data_to_send())
    client.call("ServerLive", bytes(5))
    came, kinds = client.socket.makefile("rb"), []
    while head := came.read(9):
        came.read(int.from_bytes(head[:3]))
        kinds.append(head[3])
        if head[3] == GOAWAY:
            client.socket.sendall(client.asks.data_to_send())
        elif head[3] == HEADERS:
            break
    return kinds


def resets(client: Client, _: str) -> object:
    def send() -> None:
        client.call("ServerLive", ends=False)
        client.asks.reset_stream(client.asks.highest_outbound_stream_id)

    return client.floods(send)


def pings(client: Client, _: str) -> object:
    return client.floods(lambda: client.asks.ping(bytes(8)))


def settings(client: Client, _: str) -> object:
    return client.floods(lambda: client.asks.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 16}))


if __name__ == "__main__":
    how = globals()[sys.argv[2]]
    print(json.dumps(how(Client(int(sys.argv[1])), [*sys.argv, ""][3])))
