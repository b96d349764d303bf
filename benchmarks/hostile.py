"""Well-behaved clients of a model server with and without hostile ones: requests, errors and 99th percentile.

Eight clients send requests of one row over kept connections, up to a hundred a second each; a ninth sends 300 KB each
time. In turns, a second process runs one kind of hostile client beside them, and none for the same time. A hostile
client that is disconnected returns two seconds later. The model is untrained and made for the benchmark.

Before that, 60 messages of 15 MiB come at once, over HTTP, gRPC and in streams of it: the server's resident memory before, at its
peak and after, and how long another client waited at most.

``python -m benchmarks.hostile [--floods] [--seconds N] [--pairs N] [--json] [--store]``
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.serving import grpc_users, onnx_graph
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service

from benchmarks.pairs import Ratio, ratio
from benchmarks.serving_site import JSON, NAME, await_answer, ours, request, serve_image

PATH = f"/v2/models/{NAME}/infer"
LIMIT_RATIO = 2.0
CLIENTS = 8
PAUSE_SECONDS = 2.0  # 17 bodies of 16 MiB each time are a gigabit a second
DEADLINE_SECONDS = 30
MIB = 1 << 20
FLOOD = Path(grpc_users.__file__).with_name("grpc_flood.py")
MESSAGES = 60
HELD_MIB = 256
SLOWEST_SECONDS = 1.0
FLOODS = ("HTTP", "plain gRPC", "stream of gRPC")


@dataclass
class Seen:
    """The clients' results: seconds of each right answer, and the error of each other request."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)] if self.seconds else float("inf")


def ask(port: int, body: bytes, until: float, seen: Seen, pause: float = 0.0) -> None:
    """Send requests over one kept connection until that moment."""
    connection = None
    while time.perf_counter() < until:
        began = time.perf_counter()
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
            connection.request("POST", PATH, body, JSON)
            response = connection.getresponse()
            text = response.read()
            if response.status == http.HTTPStatus.OK:
                seen.seconds.append(time.perf_counter() - began)
            else:
                seen.errors.append(f"{response.status}: {text[:80].decode()}")
        except (OSError, http.client.HTTPException) as error:
            seen.errors.append(type(error).__name__)
            connection = None
        time.sleep(pause)  # the rate of one client


def measure(port: int, seconds: float) -> tuple[Seen, Seen]:
    """Return the results of the eight clients, and of the one with longer bodies."""
    sys.setswitchinterval(0.0005)  # else a thread waits longer for other threads than for its answer
    usual, longer = Seen(), Seen()
    body = json.dumps(request()).encode()
    longer_body = json.dumps(request() | {"id": "x" * 300_000}).encode()
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=ask, args=(port, body, until, usual, 0.01)) for _ in range(CLIENTS)]
    threads.append(threading.Thread(target=ask, args=(port, longer_body, until, longer, 0.1)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return usual, longer


# each hostile kind repeats this, on a new connection each time


def a_long_header(client: socket.socket) -> None:
    """Send 90 MB of one header."""
    client.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nX: ".encode())
    _pour(client, 90)


def a_long_url(client: socket.socket) -> None:
    """Send 90 MB of one URL."""
    client.sendall(b"GET /")
    _pour(client, 90)


def a_drip(client: socket.socket) -> None:
    """Send one header a second."""
    client.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode())
    while True:
        client.sendall(b"X: 1\r\n")
        time.sleep(1)  # the drip itself


def a_withheld_body(client: socket.socket) -> None:
    """Send 16 MiB without the last 1000 bytes."""
    client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {16 * MIB}\r\n\r\n".encode())
    client.sendall(b" " * (16 * MIB - 1000))
    client.recv(1)


def unread_answers(client: socket.socket) -> None:
    """Send 50,000 pipelined requests, and read no answer."""
    client.settimeout(DEADLINE_SECONDS)
    client.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50_000)
    time.sleep(DEADLINE_SECONDS)  # how long the answers stay unread


def _pour(client: socket.socket, mebibytes: int) -> None:
    for _ in range(mebibytes):
        client.sendall(b"a" * MIB)


Attack = Callable[[socket.socket], None]
ATTACKS: dict[str, tuple[Attack, int]] = {
    "a 90 MB header": (a_long_header, 1),
    "a 90 MB URL": (a_long_url, 1),
    "300 drips": (a_drip, 300),
    "17 withheld bodies": (a_withheld_body, 17),
    "unread answers": (unread_answers, 1),
}


def attack(port: int, kind: str) -> None:
    """Attack until the process is ended."""
    one, times = ATTACKS[kind]

    def again() -> None:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
                one(client)
            time.sleep(PAUSE_SECONDS)  # then the disconnected client returns

    for _ in range(times):
        threading.Thread(target=again, daemon=True).start()
    signal.pause()


@contextmanager
def attacked(port: int, kind: str) -> Iterator[None]:
    """Run the attack in another process while the block runs."""
    words = [sys.executable, "-m", "benchmarks.hostile", "--attack", kind, "--port", str(port)]
    process = subprocess.Popen(words)
    try:
        time.sleep(PAUSE_SECONDS)  # the attack begins before the measurement
        yield
    finally:
        process.kill()
        process.wait()


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@dataclass(frozen=True)
class Row:
    """One hostile kind: p99 of the eight clients by pair, and all clients' requests and errors."""

    ratio: Ratio
    requests: int
    errors: list[str]
    longer: int
    longer_errors: list[str]
    resident_mib: float

    @property
    def kept(self) -> bool:
        return self.ratio.kept and not self.errors and not self.longer_errors


def compare(port: int, pid: int, kind: str, *, seconds: float, pairs: int) -> Row:
    """Measure without and with the attack, in turns."""
    alone, beside, usual, longer, most = [], [], Seen(), Seen(), 0.0
    for _ in range(pairs):
        alone.append(measure(port, seconds)[0].p99() * 1000)
        with attacked(port, kind):
            mine, theirs = measure(port, seconds)
            most = max(most, resident_mib(pid))
        beside.append(mine.p99() * 1000)
        for seen, more in ((usual, mine), (longer, theirs)):
            seen.seconds += more.seconds
            seen.errors += more.errors
    return Row(
        ratio(kind, alone, beside, unit="ms", limit=LIMIT_RATIO),
        requests=len(usual.seconds),
        errors=usual.errors,
        longer=len(longer.seconds),
        longer_errors=longer.errors,
        resident_mib=most,
    )


@dataclass(frozen=True)
class Held:
    """What floods of long messages took of a model server: its memory, and how long another client waited at most."""

    kind: str
    before_mib: int
    peak_mib: int
    after_mib: int
    slowest_seconds: float
    answers: dict[str, int]

    @property
    def kept(self) -> bool:
        return self.peak_mib - self.before_mib <= 1.5 * HELD_MIB and self.slowest_seconds <= SLOWEST_SECONDS


def flood(python: Path, pid: int, http_port: int, grpc_port: int, kind: str) -> Held:
    """Send 60 messages or bodies of 15 MiB at once, and meanwhile ask for a row ten times a second.

    :param python: of the image ``kserve``, which has gRPC's own client.
    """
    status = Path(f"/proc/{pid}/status")

    def memory(what: str) -> int:
        (found,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith(what))
        return int(found) >> 10

    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    before, seen = memory("VmRSS"), Seen()
    asking = threading.Event()
    body = json.dumps(request()).encode()

    def others() -> None:
        while not asking.is_set():
            ask(http_port, body, time.perf_counter() + 1, seen, 0.1)

    other = threading.Thread(target=others)
    other.start()
    try:
        if kind == "HTTP":
            answers = long_bodies(http_port)
        else:
            words = [str(python), str(FLOOD), str(grpc_port), kind.split()[0], str(MESSAGES), "6"]
            answers = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    finally:
        asking.set()
        other.join()
    if seen.errors:
        answers |= {"another client: " + error: seen.errors.count(error) for error in set(seen.errors)}
    return Held(
        kind, before, memory("VmHWM"), memory("VmRSS"), max(seen.seconds, default=float("inf")), answers
    )


def long_bodies(port: int) -> dict[str, int]:
    """Send bodies of 15 MiB of JSON at once; return how often each status came."""
    body, found = json.dumps(request() | {"id": "x" * (15 * MIB)}).encode(), Counter[str]()

    def one() -> None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
            connection.request("POST", PATH, body, JSON)
            found[str(connection.getresponse().status)] += 1
            return
        found["ended"] += 1

    threads = [threading.Thread(target=one) for _ in range(MESSAGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(found)


def show_held(rows: Sequence[Held], *, as_json: bool) -> int:
    """Print a table, or JSON; return 1 if a promise is missed."""
    title = f"{MESSAGES} messages of 15 MiB at once, {HELD_MIB} MiB may be held, another client asks ten times a second"
    if as_json:
        print(json.dumps({"title": title, "kinds": [{**vars(row), "kept": row.kept} for row in rows]}))
        return 0 if all(row.kept for row in rows) else 1
    print(f"{title}\n{'':14} {'before':>10} {'peak':>10} {'after':>10} {'slowest':>8}  promised")
    for row in rows:
        print(
            f"{row.kind:14} {row.before_mib:6} MiB {row.peak_mib:6} MiB {row.after_mib:6} MiB {row.slowest_seconds:6.2f} s"
            f"  peak - before ≤ {1.5 * HELD_MIB:g} MiB, ≤ {SLOWEST_SECONDS:g} s{'' if row.kept else '  MISSED'}  {row.answers}"
        )
    return 0 if all(row.kept for row in rows) else 1


def show(rows: Sequence[Row], *, seconds: float, as_json: bool) -> int:
    """Print a table, or JSON; return 1 if a promise is missed."""
    title = f"8 clients of one row and one of 300 KB, beside hostile ones, {seconds:g} s at a time"
    if as_json:
        kinds = [{**vars(row), "ratio": vars(row.ratio), "kept": row.kept} for row in rows]
        print(json.dumps({"title": title, "kinds": kinds}))
    else:
        print(f"{title}: medians of {rows[0].ratio.pairs} pairs")
        print(f"{'':20} {'requests':>8} {'errors':>6} {'300 KB':>7} {'errors':>6}", end="")
        print(f" {'p99 alone':>10} {'beside':>8} {'ratio':>6} {'server':>8}  promised")
        for row in rows:
            r = row.ratio
            print(
                f"{r.name:20} {row.requests:8} {len(row.errors):6} {row.longer:7} {len(row.longer_errors):6}"
                f" {r.base:7.2f} ms {r.ours:5.2f} ms {r.ratio:6.2f} {row.resident_mib:4.0f} MiB"
                f"  ≤ {r.limit:g}, no error{'' if row.kept else '  MISSED'}"
            )
            for error in sorted({*row.errors, *row.longer_errors}):
                print(f"    {error}")
    return 0 if all(row.kept for row in rows) else 1


# the store service: pods of one job attack, a pod of another one and a probe are the others

STORE_LIMIT_MIB = 1024  # of its container
STORE_OTHERS_SECONDS = 1.0
HALF_HEADS, FILES = 1100, 1024  # that the service may open


def half_heads(port: int, gang: Gang) -> list[socket.socket]:
    """Hold 1,100 connections, each with the half of a head."""
    return [_sent(port, f"GET {gang.path()}/outlook HTTP/1.1\r\nhost: x\r\n") for _ in range(HALF_HEADS)]


def slow_bodies(port: int, gang: Gang) -> list[socket.socket]:
    """Hold 16 requests with lines and 4 seals, of which the bodies do not come."""
    asked = [("POST", "lines?offset=0")] * 16 + [("PUT", "seal")] * 4
    return [_sent(port, _head(gang, verb, what, 1000)) for verb, what in asked]


def great_bodies(port: int, gang: Gang) -> list[socket.socket]:
    """Send 64 seals of 30 MiB each but for the last byte, all at once."""
    sent = [_sent(port, _head(gang, "PUT", "seal", 30 * MIB)) for _ in range(64)]
    for each in sent:
        threading.Thread(target=_pour_quietly, args=(each, 29), daemon=True).start()
    return sent


def _head(gang: Gang, verb: str, what: str, length: int) -> str:
    token = gang.pods.headers["authorization"]
    head = f"{verb} {gang.path()}/{what} HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\n"
    return f"{head}content-length: {length}\r\n\r\n"


def _sent(port: int, text: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS)
    made.sendall(text.encode())
    return made


def _pour_quietly(client: socket.socket, mebibytes: int) -> None:
    with suppress(OSError):
        _pour(client, mebibytes)


def attack_store(seconds: float) -> bool:
    """Print for each attack the memory before, at most and after, and the longest wait of the others; whether all is kept."""
    kept = True
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, own[1]))  # the service inherits it
    print(f"{'the store service':20} {'before':>9} {'peak':>9} {'after':>9} {'others waited':>14}")
    for attack_with in (half_heads, slow_bodies, great_bodies):
        with tempfile.TemporaryDirectory() as folder, Service(Path(folder)) as service:
            process = service.process
            assert process is not None
            assert process.pid is not None
            pid = process.pid
            resource.setrlimit(resource.RLIMIT_NOFILE, own)
            with (
                Gang(service, "hostile", make_spec()) as hostile,
                Gang(service, "other", make_spec()) as other,
            ):
                hostile.bundle()
                other.bundle()
                before = peak = resident_mib(pid)
                held, longest, offset = attack_with(service.port, hostile), 0.0, 0
                until = time.perf_counter() + seconds
                while (began := time.perf_counter()) < until:
                    try:
                        httpx.get(f"{service.url}/healthz", trust_env=False, timeout=seconds)
                        offset = other.lines(b"line\n", offset=offset)
                    except httpx.HTTPError:  # refused, or not answered: as bad as waiting for all of it
                        longest = seconds
                    longest = max(longest, time.perf_counter() - began)
                    peak = max(peak, resident_mib(pid))
                for each in held:
                    each.close()
                time.sleep(PAUSE_SECONDS)  # the memory after
                fine = longest <= STORE_OTHERS_SECONDS and peak <= 1.5 * STORE_LIMIT_MIB
                kept = kept and fine
                print(
                    f"{attack_with.__name__:20} {before:5.0f} MiB {peak:5.0f} MiB {resident_mib(pid):5.0f} MiB"
                    f" {longest:12.2f} s{'' if fine else '  MISSED'}"
                )
    return kept


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--floods", action="store_true", help="send long messages alone")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", action="store_true", help="attack the store service, and nothing else")
    options = parser.parse_args(arguments)
    if options.store:
        return 0 if attack_store(options.seconds * options.pairs) else 1
    if options.attack:
        attack(options.port, options.attack)
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as servers,
        socket.create_server(("127.0.0.1", 0), backlog=2048) as grpc,
    ):
        python, client = serve_image(Path(folder)), serve_image(Path(folder), "kserve")
        model = onnx_graph.write_delays(Path(folder) / "model")
        server, port = servers.enter_context(ours(python, Path(folder) / "ours", grpc=grpc))
        server.load("1", model)
        server.share({"1": 100})
        server.open()
        await_answer(port, lambda: True, Path(folder) / "ours" / "server.log")
        measure(port, 2.0)  # the first round warms up
        held = [flood(client, server.pid, port, grpc.getsockname()[1], kind) for kind in FLOODS]
        if options.floods:
            return show_held(held, as_json=options.json)
        rows = [
            compare(port, server.pid, kind, seconds=options.seconds, pairs=options.pairs) for kind in ATTACKS
        ]
    missed = show_held(held, as_json=options.json)
    return show(rows, seconds=options.seconds, as_json=options.json) or missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
