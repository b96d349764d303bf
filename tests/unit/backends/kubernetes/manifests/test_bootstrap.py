from __future__ import annotations

import ast
import io
import json
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.unit.backends.kubernetes.golden import EXAMPLES, KUEUE, SITE
from tests.waiting import eventually

from muster.backends.kubernetes.manifests import bootstrap, wiring
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.replica import Replica
from muster.core.verdict import ExitCode
from muster.core.wire import loads

TOKEN = "payload.signature"
Answer = tuple[int, bytes]


@dataclass
class Store:
    """A store service of one call: it gives the answers in turn, and the last one for good.

    :param breaks: as what its first answer breaks off: ``body`` or ``chunk``.
    """

    answers: list[Answer]
    breaks: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    port: int = 0

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


Serve = Callable[..., Store]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer, breaks: str = "") -> Store:
        store = Store(list(answers), breaks)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.asked.append((self.path, self.headers["Authorization"]))
                status, body = store.next()
                self.send_response(status)
                self.send_header("Muster-Attempt", "3")
                breaks, store.breaks = store.breaks, ""
                if breaks == "chunk":
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(len(body) + (7 if breaks else 0)))
                self.end_headers()
                self.wfile.write(b"%x\r\n" % (len(body) + 7) + body if breaks == "chunk" else body)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        store.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return store

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def bundle(*members: tarfile.TarInfo | tuple[str, bytes], whole: bool = True) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        if whole:
            members = (("worker.pyz", b"worker"), *members)
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o755
                archive.addfile(info, io.BytesIO(member[1]))
            else:
                archive.addfile(member)
    return target.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@dataclass
class Pod:
    """What the init container has: a token, a folder, and this program."""

    root: Path
    port: int
    patience_seconds: float = 20.0
    submission = Submission(job=EXAMPLES["tensorflow"].job, job_id="j", attempt=2, site=SITE, cluster=KUEUE)

    @property
    def folder(self) -> Path:
        return self.root / "muster"

    def told(self) -> dict[str, object]:
        self.folder.mkdir(exist_ok=True)
        (self.root / "token").write_text(f"{TOKEN}\n")
        (self.root / "orders").write_text(wiring.orders(self.submission))
        return {
            "url": f"http://127.0.0.1:{self.port}/v1/jobs/j/bundle?attempt=2&restart=1&role=ps&index=1&pod=u",
            "token": str(self.root / "token"),
            "orders": str(self.root / "orders"),
            "role": "ps",
            "index": "1",
            "sealed": "/mnt/muster/gang/ps-1.part-manifest",
            "gpus": 2,
            "folder": str(self.folder),
            "patience_seconds": self.patience_seconds,
        }

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", bootstrap.__file__, json.dumps(self.told())],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.root,
            env={"http_proxy": "http://127.0.0.1:1", "PATH": "/usr/bin:/bin"},
        )


def test_its_exit_codes_are_the_workers() -> None:
    wanted = (ExitCode.SPEC_ERROR, ExitCode.RANK_LOST, ExitCode.STOPPED)
    assert wanted == (bootstrap.SPEC_ERROR, bootstrap.RANK_LOST, bootstrap.STOPPED)


def test_a_bundle_is_put_in_place_past_any_proxy(tmp_path: Path, serve: Serve) -> None:
    link = special("code/latest", tarfile.SYMTYPE, "flights")
    store = serve((200, bundle(("code/flights/train.py", b"print()"), link)))
    ended = Pod(tmp_path, store.port).run()
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert store.asked == [("/v1/jobs/j/bundle?attempt=2&restart=1&role=ps&index=1&pod=u", f"Bearer {TOKEN}")]
    folder = tmp_path / "muster"
    assert sorted(path.name for path in folder.iterdir()) == ["code", "replica.json", "worker.pyz"]
    assert (folder / "code" / "latest" / "train.py").read_bytes() == b"print()"
    assert (folder / "worker.pyz").stat().st_mode & 0o777 == 0o755


def test_the_gangs_orders_become_those_of_this_replica_in_this_attempt(tmp_path: Path, serve: Serve) -> None:
    pod = Pod(tmp_path, serve((200, bundle())).port)
    assert bootstrap.main(pod.told()) == 0
    found = loads(Replica, (tmp_path / "muster" / "replica.json").read_text())
    gang = loads(Replica, wiring.orders(pod.submission))
    mine = {"role": "ps", "index": 1, "attempt": 3, "gpus": ("0", "1")}
    assert found == replace(gang, sealed="/mnt/muster/gang/ps-1.part-manifest", **mine)
    assert found.first_rank == 5


def test_a_folder_that_a_try_before_left_is_filled_anew(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "muster" / "code").mkdir(parents=True)
    (tmp_path / "muster" / "code" / "old.py").touch()
    (tmp_path / "muster" / "worker.pyz").write_text("half")
    assert Pod(tmp_path, serve((200, bundle())).port).run().returncode == 0
    assert (tmp_path / "muster" / "worker.pyz").read_bytes() == b"worker"
    assert not (tmp_path / "muster" / "code").exists()


def caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("status", "message"), [(401, "refuses this job's token"), (404, "has nothing for this job")]
)
def test_a_token_that_does_not_count_ends_it_at_once_and_says_so(
    tmp_path: Path, serve: Serve, status: int, message: str
) -> None:
    said = json.dumps({"error": "Refused", "message": "the token is that of another job"}).encode()
    store = serve((status, said))
    ended = Pod(tmp_path, store.port).run()
    assert ended.returncode == ExitCode.SPEC_ERROR
    assert message in ended.stdout
    assert ended.stdout.endswith(f"(HTTP {status}): the token is that of another job\n")
    assert len(store.asked) == 1
    assert TOKEN not in ended.stdout + ended.stderr


def test_the_pod_of_a_start_that_is_over_says_so_and_costs_the_gang_nothing(
    tmp_path: Path, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    said = b'{"error":"Conflict","message":"start 2.1 is fenced"}'
    assert bootstrap.main(Pod(tmp_path, serve((409, said)).port).told()) == ExitCode.STOPPED
    assert (
        capsys.readouterr().out == "muster: this start of the gang is over (HTTP 409): start 2.1 is fenced\n"
    )


def test_a_pod_that_is_deleted_ends_at_once_though_it_is_its_first_process(tmp_path: Path) -> None:
    """The kernel keeps signals without a handler from the first process of a namespace; a handler is what counts."""
    pod = Pod(tmp_path, port=9, patience_seconds=60)
    program = [sys.executable, "-I", bootstrap.__file__, json.dumps(pod.told())]
    with subprocess.Popen(program) as running:
        eventually(lambda: caught(running.pid, signal.SIGTERM))
        running.terminate()
        assert running.wait() == bootstrap.KILLED


def test_a_store_that_restarts_is_asked_again(tmp_path: Path, serve: Serve) -> None:
    store = serve((503, b"later"), (500, b"<html>"), (200, bundle()))
    assert Pod(tmp_path, store.port).run().returncode == 0
    assert len(store.asked) == 3


@pytest.mark.parametrize("breaks", ["body", "chunk"])
def test_a_bundle_that_broke_off_is_fetched_again(tmp_path: Path, serve: Serve, breaks: str) -> None:
    store = serve((200, bundle(("code/a.py", b"x" * 3000))), breaks=breaks)
    assert bootstrap.main(Pod(tmp_path, store.port).told()) == 0
    assert len(store.asked) == 2


def test_a_bundle_that_ends_too_early_is_fetched_again(tmp_path: Path, serve: Serve) -> None:
    whole = bundle(("code/a.py", b"x" * 30_000))
    store = serve((200, whole[:5000]), (200, whole))
    assert bootstrap.main(Pod(tmp_path, store.port).told()) == 0
    assert (tmp_path / "muster" / "code" / "a.py").stat().st_size == 30_000


def test_a_store_that_stays_away_may_be_back_at_the_next_start(tmp_path: Path) -> None:
    ended = Pod(tmp_path, port=9, patience_seconds=0.3).run()
    assert ended.returncode == ExitCode.RANK_LOST
    assert ended.stdout.startswith("muster: gave up on the store at http://127.0.0.1:9/v1/jobs/j/bundle: ")
    assert ended.stdout.endswith("Connection refused\n")
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", b"")],
        [("code/../../evil", b"")],
        [("/tmp/evil", b"")],
        [special("evil", tarfile.SYMTYPE, "/etc")],
        [special("code/evil", tarfile.SYMTYPE, "../../..")],
        [special("here", tarfile.SYMTYPE, "."), special("evil", tarfile.SYMTYPE, "here/..")],
        [
            special("evil", tarfile.SYMTYPE, "here/.."),
            special("here", tarfile.SYMTYPE, "."),
            ("evil/file", b""),
        ],
        [special("evil", tarfile.LNKTYPE, "/etc/passwd")],
        [special("evil", tarfile.FIFOTYPE)],
        [special("evil", tarfile.CHRTYPE)],
        [("code/evil", b"1"), ("code/evil", b"2")],
        [special("code/evil", tarfile.SYMTYPE, "x"), ("code/evil", b"2")],
        [("worker.pyz", b"another")],
    ],
)
def test_a_hostile_bundle_writes_nothing_outside_and_is_named(
    tmp_path: Path,
    serve: Serve,
    members: list[tarfile.TarInfo | tuple[str, bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    pod = tmp_path / "deep" / "pod"
    pod.mkdir(parents=True)
    store = serve((200, bundle(*members)))
    assert bootstrap.main(Pod(pod, store.port).told()) == ExitCode.SPEC_ERROR
    said = capsys.readouterr().out
    assert "evil" in said or "worker.pyz' twice" in said
    assert len(store.asked) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"pod"}
    assert {path.name for path in pod.iterdir()} == {"muster", "orders", "token"}


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ((302, b""), ExitCode.SPEC_ERROR, "is no store service (HTTP 302)"),
        ((200, bundle(("hello", b""), whole=False)), ExitCode.SPEC_ERROR, "holds no worker.pyz"),
        ((200, b"<html>hello</html>"), ExitCode.RANK_LOST, "gave up on the store at http://127.0.0.1:"),
    ],
)
def test_what_is_no_store_is_said(
    tmp_path: Path, serve: Serve, answer: Answer, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = serve(answer)
    assert bootstrap.main(Pod(tmp_path, store.port, patience_seconds=0.2).told()) == code
    assert message in capsys.readouterr().out


def test_it_stands_alone_in_python_3_10() -> None:
    tree = ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 10))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported <= set(sys.stdlib_module_names)
