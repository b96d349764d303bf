"""A client and pods that ask a store service for everything once, and what crossed the wire meanwhile.

``python -m tests.unit.volumes.service.conversation FILE`` writes that down. It is done with the release whose
clients and pods have to be understood for ever, never again with a later one.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from blake3 import blake3
from tests.waiting import GUARD_SECONDS

from muster.core.data import OutputTarget
from muster.core.errors import MusterError
from muster.core.job import JobSpec, Role
from muster.core.replica import PartManifest, Report
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps
from muster.volumes.folder import FolderStore
from muster.volumes.service.app import create_app
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.connection import Connection
from muster.volumes.service.tokens import operator_token, read_keys

SPEC = JobSpec(
    name="flights.train",
    image="etl",
    image_digest="b3:" + 64 * "0",
    roles=(Role(replicas=1, entrypoint="etl:train"),),
    outputs={"out": OutputTarget(volume="flights/out")},
    params={"month": "2013-01", "columns": ["a", "é"]},
)
PLACE = {"attempt": 1, "restart": "0", "role": "main", "index": 0, "pod": "uid-1"}


class Recorder:
    """Passes requests on to a service, and keeps what was asked and answered."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.exchanges: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent, answered, status = bytearray(), bytearray(), 0
        exchange = dict[str, Any]()
        self.exchanges.append(exchange)  # in the order in which they were asked

        async def receiving() -> Any:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            answered.extend(message.get("body", b""))
            exchange.update(  # before the client has it, and asks on
                {
                    "method": scope["method"],
                    "path": scope["path"],
                    "query": scope["query_string"].decode(),
                    "range": dict(scope["headers"]).get(b"range", b"").decode(),
                    "body": _text(bytes(sent)) if _is_text(bytes(sent)) else "",
                    "bytes": "" if _is_text(bytes(sent)) else b64encode(zlib.compress(bytes(sent))).decode(),
                    "status": status,
                    "answer": _text(bytes(answered)),
                }
            )
            await send(message)

        await self._app(scope, receiving, sending)


def _is_text(data: bytes) -> bool:
    return b"\0" not in data


def _text(data: bytes) -> str:
    return data.decode() if _is_text(data) else f"b3:{blake3(data).hexdigest()}"


def plain(exchange: dict[str, Any], *, root: str) -> dict[str, Any]:
    """The same without what is another one each time: moments, names by chance, tokens, what a disk holds."""
    return {
        name: _plain(value, root) if isinstance(value, str) else value for name, value in exchange.items()
    }


def _plain(text: str, root: str) -> str:
    text = re.sub(r"\b\d{10}\.\d+", "MOMENT", text.replace(root, "ROOT"))
    text = re.sub(r'"token":"[^"]+"', '"token":"TOKEN"', text)
    text = re.sub(r'"(total|free)_bytes":\d+', r'"\1_bytes":0', text)
    text = re.sub(r'"files_left":\d+', '"files_left":0', text)
    return re.sub(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])", "CHANCE", text)


@contextmanager
def recorded(folder: Path) -> Iterator[tuple[str, tuple[bytes, ...], Recorder]]:
    """A service on a store below `folder`: its address, its keys, and what it is asked."""
    (folder / "key").write_text("k" * 32)
    keys = read_keys(folder / "key")
    recorder = Recorder(create_app(FolderStore(folder / "store"), keys=keys))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(recorder, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", keys, recorder
        finally:
            server.should_exit = True
            thread.join(GUARD_SECONDS)


def talk(url: str, keys: tuple[bytes, ...], folder: Path) -> None:
    """Ask for everything that a client and a pod ask for, and for what is refused."""
    token = operator_token(keys, lifetime_seconds=3600)
    with ServiceStore(url, token=token, cache=folder / "cache", patience_seconds=0) as store:
        for step in (_jobs, _versions, _snapshots, _attempts, _upkeep):
            step(store, folder, url)


def _jobs(store: ServiceStore, folder: Path, url: str) -> None:
    ledger = store.ledger
    ledger.create("a-1", SPEC, owner="ti-1")
    ledger.create("a-1", SPEC)
    ledger.create("a-2", SPEC)
    ledger.spec("a-1")
    ledger.status("a-1")
    ledger.statuses(["a-1", "a-2", "gone"])
    ledger.specs(["a-1", "gone"])
    ledger.own("a-1", owner="ti-2", expected="ti-1")
    ledger.own("a-1", owner="ti-3", expected=None)
    ledger.append("a-1", "one\ntwo é\n".encode())
    ledger.append("a-1", b"", request="r")
    ledger.read("a-1")
    ledger.read("a-1", after=4, limit_bytes=100)
    ledger.log_bytes("a-1")
    ledger.jobs()
    verdict = Verdict(cause=Cause.CANCELLED, message="m", advice="a")
    ended = JobStatus(job_id="a-2", state=JobState.CANCELLED, submitted=1.0, ended=2.0, verdict=verdict)
    ledger.update(ended)
    _refused(lambda: ledger.status("gone"))


def _versions(store: ServiceStore, folder: Path, url: str) -> None:
    source = folder / "in"
    (source / "d").mkdir(parents=True)
    (source / "d" / "x").write_bytes(b"1" * 100)
    (source / "y").write_bytes(b"22")
    for n in range(3):
        (source / "z").write_text(str(n))
        store.add("raw/months", source, partition=f"2013-0{n + 1}", note="by hand: é")
    store.add("raw/one", source / "y")
    store.resolve("raw/months@*")
    store.resolve("raw/one")
    store.volumes()
    store.versions("raw/months")
    store.newest("raw/months", limit=2)
    store.newest("raw/months", limit=2, before=3)
    store.count("raw/months")
    store.record("raw/one@1")
    store.manifest("raw/months@1")
    store.path("raw/months@2/d/x")
    store.path("raw/months@2")
    store.pin("raw/one", reason="deployment/flights")
    store.unpin("raw/one@1", reason="deployment/flights")
    store.retire("raw/months@1", reason="wrong rows")
    store.reinstate("raw/months@1")
    store.lease(["raw/one@1", "raw/months@2"], holder="a-1")
    store.release("a-1")
    _refused(lambda: store.resolve("raw/none"))
    _refused(lambda: store.pin("raw/months@*", reason="x"))


def _snapshots(store: ServiceStore, folder: Path, url: str) -> None:
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text("x = 1\n")
    digest = store.put(code, ["train.py"], texts={"new/é.py": "y = 2\n"})
    store.put(code, ["train.py"], texts={"new/é.py": "y = 2\n"})
    store.holds(digest)
    for each in (folder / "cache" / "code").glob("[0-9a-f]*"):  # so that it is fetched
        for path in [each, *each.rglob("*")]:
            path.chmod(0o755)
        each.rename(folder / "taken-away")
    store.code(digest)
    _refused(lambda: store.code("b3:" + 64 * "1"))


def _attempts(store: ServiceStore, folder: Path, url: str) -> None:
    store.staging("a-1")
    store.attempt("a-1")
    staging = store.stage("a-1")
    store.staging("a-1")
    store.attempt("a-1")
    store.sealed("a-1")
    (staging.checkpoints / "step-5").write_bytes(b"weights")
    if hasattr(store, "saved"):
        store.saved("a-1")
    _refused(lambda: store.commit("a-1", attempt=2, metrics={"auc": 0.5}, modules=("a.py",)))
    store.equip("a-1", worker=b"PK\x05\x06" + bytes(18))
    _work(store, "a-1", staging.root.parent / "1.0", url)
    store.sealed("a-1")
    store.commit("a-1", attempt=1, metrics={"auc": 0.5}, modules=("a.py",))
    store.commit("a-1", attempt=1)
    store.ledger.create("a-3", SPEC)
    store.begin("a-3", after=0)
    store.begin("a-3", after=0)
    store.begin("a-3", after=1)
    _refused(lambda: store.begin("a-3", after=0))
    _refused(lambda: store.begin("a-1", after=1))


def _work(store: ServiceStore, job_id: str, root: Path, url: str) -> None:
    """Be the only pod of a job."""
    token = store.token(job_id, attempt=1, lifetime_seconds=60)
    pod, job = Connection(url, token=token, patience_seconds=0), f"/v1/jobs/{job_id}"
    try:
        pod.request("GET", f"{job}/bundle", query=PLACE)
        replica = f"{job}/attempts/1/replicas/main/0"
        (root / "main-0" / "out" / "x").write_bytes(b"abc")
        pod.request("POST", f"{replica}/lines", query={"offset": 0}, content=b"[rank 0] begins\n")
        part = PartManifest(job_id=job_id, attempt=1, role="main", index=0, files={"out": {"x": 3}})
        report = Report(exit_code=ExitCode.SEALED, metrics={"auc": 0.5}, modules=("a.py",))
        pod.request("PUT", f"{replica}/seal", content=f"{dumps(report)}\n{dumps(part)}".encode())
        _refused(lambda: pod.request("GET", "/v1/volumes"))
    finally:
        pod.close()
    while not store.ledger.status(job_id).state.ended:
        time.sleep(0.01)


def _upkeep(store: ServiceStore, folder: Path, url: str) -> None:
    store.check()
    store.check(deep=True)
    store.plan(keep_last=2)
    store.plan(volumes=["raw/months"], young_days=1.0)
    store.collect(job_days=30_000.0)
    _refused(lambda: store.plan(keep_last=0))
    for call in ("room", "held"):
        if hasattr(store, call):
            getattr(store, call)()
    if hasattr(store, "let_go"):
        store.let_go(["a-2"])
        _refused(lambda: store.let_go(["a-3"]))
        _refused(lambda: store.salvage("a-2", folder / "salvaged"))


def _refused(act: Callable[[], object]) -> None:
    try:
        act()
    except MusterError:
        return
    raise AssertionError("it was not refused")


def conversation(folder: Path) -> list[dict[str, Any]]:
    """All that crosses the wire, in order, without what is another one each time."""
    with recorded(folder) as (url, keys, recorder):
        talk(url, keys, folder)
    said = [plain(exchange, root=str(folder / "store")) for exchange in recorder.exchanges]
    return [each for each, after in zip(said, [*said[1:], {}], strict=True) if not _looks_again(each, after)]


def _looks_again(each: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether it was asked again how far a job is: how often that takes is chance, and the last answer counts."""
    return each["path"] == "/v1/jobs/a-1/status" == after.get("path")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in conversation(Path(made)))
        Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n")
