"""What a token and a limit cost of each request: ``python serving_clients.py [TIMES]`` prints CPU microseconds.

It runs in the image ``serve``, with the servers' code on PYTHONPATH. A server without tokens and limits asks one attribute.
"""

from __future__ import annotations

import hashlib
import sys
import time

from muster_serving.clients import Clients

CLIENTS = 1000
MOST_MICROSECONDS = 3.0
HEADERS = [
    (b"host", b"models.example.com"),
    (b"user-agent", b"python-requests/2.32.0"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept", b"*/*"),
    (b"content-type", b"application/json"),
    (b"content-length", b"180"),
]


def clients(*, tokens: bool, rate: float | None) -> Clients:
    """Return the clients of a deployment, all of whom may ask much more often than they do here."""
    made = Clients("flights")
    known = [
        {"client": f"c{n}", "digest": hashlib.sha256(f"{n}".encode()).hexdigest(), "made": 1.0}
        for n in range(CLIENTS)
    ]
    limits = {"rate": rate, "burst": 1 << 30, "body_bytes": 1 << 20}
    made.order({"needed": tokens, "key": "key", "limits": limits, "tokens": known if tokens else []})
    return made


def microseconds(asked: Clients, times: int, word: bytes) -> float:
    """Return the CPU time of one admission."""
    headers = [*HEADERS, (b"authorization", b"Bearer " + word)]
    for _ in range(times // 10):
        asked.admit(headers)
    began = time.process_time()
    for _ in range(times):
        asked.admit(headers)
    return (time.process_time() - began) / times * 1e6


def main() -> int:
    """Measure, print, and return 1 if a promise is missed."""
    times = int(sys.argv[1]) if sys.argv[1:] else 200_000
    ways = {
        "a limit for all": microseconds(clients(tokens=False, rate=1e9), times, b"7"),
        "tokens": microseconds(clients(tokens=True, rate=None), times, b"7"),
        "tokens and limits": microseconds(clients(tokens=True, rate=1e9), times, b"7"),
    }
    refused = microseconds(clients(tokens=True, rate=1e9), times // 10, b"guessed")
    for way, found in ways.items():
        print(f"{way:20} {found:6.2f} us a request, at most {MOST_MICROSECONDS:g}")
    print(f"{'a refusal':20} {refused:6.2f} us")
    return int(max(ways.values()) > MOST_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
