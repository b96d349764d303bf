"""Run in the image ``serve``: ``PORT VALUE`` asks for a row with this value of ``authorization``, in hex, which gRPC's own clients do not send;
prints how the call ended.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived

AS_IT_IS = H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)


def events(port: int, value: bytes) -> Iterator[Event]:
    asks = H2Connection(AS_IT_IS)
    asks.initiate_connection()
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/inference.GRPCInferenceService/ModelInfer",
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"authorization": value,
    }
    asks.send_headers(1, list(headers.items()))
    asks.send_data(1, bytes(5), end_stream=True)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(asks.data_to_send())
        while data := connection.recv(1 << 16):
            yield from asks.receive_data(data)


for event in events(int(sys.argv[1]), bytes.fromhex(sys.argv[2])):
    if isinstance(event, ResponseReceived):
        print(unquote(dict(event.headers)[b"grpc-message"].decode()))
        break
