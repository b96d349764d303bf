"""What a pod's first process sends is what the store service takes: each against the other, for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.unit.volumes.service.gang import IMAGE, Gang
from tests.unit.volumes.service.process import Service, until

from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.replica import Replica, Report
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, ExitCode
from muster.core.wire import dumps, loads
from muster.images.worker_archive import worker_folder
from muster.worker.pod import CULPRIT_SECONDS

SECRET = "sesame-4f1c"
SECONDS = 120.0


@dataclass
class Pods:
    """The pods of one job, as processes of this machine."""

    gang: Gang
    root: Path
    worker: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, index: int = 0, *, restart: str = "0", before: Sequence[str] = (), url: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start the first process of a pod, as it is started after the init container.

        :param before: words before its command.
        :param url: of the service, where it is not reached directly.
        """
        self.gang.bundle(index, restart=restart).raise_for_status()
        own = self.root / f"pod-{index}-{restart}"
        (own / "scratch").mkdir(parents=True)
        (own / "token").write_text(self.gang.pods.headers["authorization"].removeprefix("Bearer "))
        staged = self.gang.root(restart)
        replica = Replica(
            job_id=self.gang.job_id,
            spec=self.gang.spec,
            attempt=self.gang.attempt,
            role="main",
            index=index,
            code=str(self.root / "code"),
            inputs={},
            staging={name: str(staged / f"main-{index}" / name) for name in self.gang.spec.outputs},
            checkpoints=str(staged / "checkpoints"),
            scratch=str(own / "scratch"),
            sealed=str(staged / "gang" / f"main-{index}.part-manifest"),
            report=str(own / "scratch" / "report.json"),
        )
        (own / "replica.json").write_text(dumps(replica))
        (own / "termination-log").touch()
        with (own / "stdout").open("wb") as stdout:
            process = subprocess.Popen(
                [*before, sys.executable, str(self.worker), str(own / "replica.json")],
                stdout=stdout,
                stderr=subprocess.STDOUT,
                env={
                    "PATH": os.environ["PATH"],
                    "PASSWORD": SECRET,
                    "MUSTER_STORE_URL": url or self.gang.service.url,
                    "MUSTER_TOKEN_FILE": str(own / "token"),
                    "MUSTER_TERMINATION_LOG": str(own / "termination-log"),
                },
            )
        self.running.append(process)
        return process

    def printed(self, index: int = 0, *, restart: str = "0") -> list[str]:
        """The lines that ``kubectl logs`` shows, without what a slow replica uses: the ledger keeps that apart."""
        text = (self.root / f"pod-{index}-{restart}" / "stdout").read_text()
        return [line for line in text.splitlines() if not line.startswith("[use ")]

    def said(self, index: int = 0, *, restart: str = "0") -> Report:
        """The termination message."""
        return loads(Report, (self.root / f"pod-{index}-{restart}" / "termination-log").read_text())

    def logged(self) -> list[str]:
        """The lines in the ledger."""
        ledger, text, after = self.gang.service.client().ledger, b"", 0
        while True:
            more, after = ledger.read(self.gang.job_id, after=after)
            if not more:
                return text.decode().splitlines()
            text += more

    def status(self) -> JobStatus:
        return self.gang.service.client().ledger.status(self.gang.job_id)

    def ended(self) -> JobStatus:
        return until(self.status, lambda status: status.state.ended)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker_folder(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def pods_of(service: Service, worker: Path, tmp_path: Path) -> Iterator:
    """Submit a job of so many replicas that runs a function ``t:f``."""
    made: list[Pods] = []

    def submit(
        code: str, *, replicas: int = 1, ranks: int = 1, grace_seconds: float = 10.0, **changes: Any
    ) -> Pods:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "t.py").write_text(textwrap.dedent(code))
        spec = JobSpec(
            name="flights.train",
            image="train",
            image_digest=IMAGE,
            roles=(Role(replicas=replicas, ranks=ranks, entrypoint="t:f"),),
            outputs={"out": OutputTarget(volume="flights/model")},
            secrets={"PASSWORD": SecretRef(source="kubernetes", name="vault/password")},
            grace_seconds=grace_seconds,
            **changes,
        )
        made.append(Pods(Gang(service, f"train-{os.urandom(4).hex()}", spec), tmp_path, worker))
        return made[-1]

    yield submit
    for pods in made:
        for process in pods.running:
            if process.poll() is None:
                process.kill()
            process.wait()
        pods.gang.pods.close()


COUNT = """
    import itertools, os, time
    from pathlib import Path
    def f(out: Path):
        for number in itertools.count():
            if number >= LINES and not Path("GOING_ON").exists():
                break
            print("line", number, flush=True)
            time.sleep(PAUSE)
        (out / os.environ["MUSTER_RANK"]).write_text(str(number))
        return {"loss": 0.5}
"""


def counting(lines: int, *, pause: float = 0.0, while_there: str = "") -> str:
    """Count at least so far, and on while a file is there."""
    return (
        COUNT.replace("LINES", str(lines))
        .replace("PAUSE", str(pause))
        .replace("GOING_ON", while_there or "/-")
    )


def whole(lines: list[str], *, ranks: int, count: int) -> bool:
    """Whether each rank's lines are there once, and in their order."""
    return all(
        [line for line in lines if line.startswith(f"[rank {rank}] ")]
        == [f"[rank {rank}] line {number}" for number in range(count)]
        for rank in range(ranks)
    )


def test_a_gang_seals_and_the_service_commits(pods_of):
    pods = pods_of(counting(3), replicas=2, ranks=2)
    for process in [pods.start(0), pods.start(1)]:
        assert process.wait(SECONDS) == ExitCode.SEALED, pods.printed()
    status = pods.ended()
    assert status.state is JobState.SUCCEEDED
    assert status.result.metrics == {"loss": 0.5}
    (address,) = status.result.outputs["out"]
    committed = pods.gang.service.client().path(address)
    assert sorted(path.name for path in committed.iterdir()) == ["0", "1", "2", "3"]
    assert whole(pods.logged(), ranks=4, count=3)
    assert sorted(pods.printed(0) + pods.printed(1)) == sorted(pods.logged())
    assert pods.said() == Report(exit_code=ExitCode.SEALED)


class NewsFirst(ThreadingHTTPServer):
    """A proxy of a store service. It holds back the question how the gang goes on until a replica has sealed, and the
    answer to the seal until that question is answered.

    :ivar before_seal: called before a seal is passed on.
    """

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.service = urlsplit(url).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.sealed, self.told = threading.Event(), threading.Event()
        self.before_seal: Callable[[], object] = lambda: None

    def pass_on(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, bytes]:
        if "/outlook" in path:
            assert self.sealed.wait(SECONDS)
        if path.endswith("/seal"):
            self.before_seal()
        with closing(HTTPConnection(self.service, timeout=SECONDS)) as connection:
            connection.request(method, path, body, {"Authorization": headers["Authorization"]})
            response = connection.getresponse()
            found = response.status, response.read()
        if path.endswith("/seal"):
            self.sealed.set()
            assert self.told.wait(SECONDS)
        return found


class _Passing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, NewsFirst)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        code, answer = server.pass_on(self.command, self.path, self.headers, body)
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = True
        if "/outlook" in self.path:
            server.told.set()

    do_GET = do_PUT = do_POST  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_last_replica_to_seal_hears_that_the_job_is_over_and_has_sealed(pods_of):
    pods = pods_of(counting(1))
    with NewsFirst(pods.gang.service.url) as between:
        threading.Thread(target=between.serve_forever, args=(0.01,), daemon=True).start()
        process = pods.start(url=between.url)
        assert process.wait(SECONDS) == ExitCode.SEALED, pods.printed()
        between.shutdown()
    assert pods.printed() == ["[rank 0] line 0"]
    assert pods.said() == Report(exit_code=ExitCode.SEALED)


def test_a_replica_whose_seal_comes_too_late_says_so_once(pods_of):
    pods = pods_of(counting(1))
    with NewsFirst(pods.gang.service.url) as between:
        threading.Thread(target=between.serve_forever, args=(0.01,), daemon=True).start()
        between.before_seal = lambda: pods.gang.bundle(restart="1").raise_for_status()
        assert pods.start(url=between.url).wait(SECONDS) == ExitCode.STOPPED, pods.printed()
        between.shutdown()
    _, said = pods.printed()
    assert said.startswith("[muster] this start of the gang is over: ")
    assert said.endswith(pods.said().verdict.message)


@pytest.mark.slow
def test_no_line_is_lost_or_doubled_where_the_service_is_killed_again_and_again(pods_of, tmp_path):
    going_on = tmp_path / "going-on"
    going_on.touch()
    pods = pods_of(counting(0, pause=0.001, while_there=str(going_on)))
    process = pods.start()
    for _ in range(3):
        seen = len(pods.logged())
        until(pods.logged, lambda lines, seen=seen: len(lines) > seen)
        pods.gang.service.kill()
        pods.gang.service.start()
    going_on.unlink()
    assert process.wait(SECONDS) == ExitCode.SEALED
    count = len(pods.printed())
    assert whole(pods.logged(), ranks=1, count=count)
    assert pods.ended().state is JobState.SUCCEEDED


@pytest.mark.slow
def test_ranks_wait_for_no_service_that_is_away(pods_of):
    pods = pods_of(counting(5_000))
    process = pods.start()
    until(pods.printed, len)
    pods.gang.service.kill()
    try:
        until(pods.printed, lambda lines: lines[-1] == "[rank 0] line 4999")
        assert process.poll() is None
    finally:
        pods.gang.service.start()
    assert process.wait(SECONDS) == ExitCode.SEALED
    assert whole(pods.logged(), ranks=1, count=5_000)


def test_a_failure_is_in_the_ledger_and_in_the_termination_message(pods_of):
    pods = pods_of(
        """
        import os
        def f(out):
            assert not [name for name in os.environ if "TOKEN" in name or "STORE" in name]
            raise ValueError("no rows for " + os.environ["PASSWORD"])
        """
    )
    assert pods.start().wait(SECONDS) == ExitCode.USER_ERROR
    report = pods.said()
    assert (report.verdict.cause, report.verdict.rank) == (Cause.USER_ERROR, 0)
    assert report.verdict.message == "ValueError: no rows for ***"
    assert report.traceback[-1] == "ValueError: no rows for ***"
    assert pods.logged()[-1] == "rank 0: ValueError: no rows for ***"
    assert pods.printed() == pods.logged()
    assert SECRET not in "".join(pods.logged())
    assert pods.status().state is not JobState.SUCCEEDED


def test_a_long_traceback_fits_into_the_termination_message(pods_of):
    pods = pods_of("def f(out):\n    raise ValueError('\\n'.join(['é' * 1000] * 20))\n")
    assert pods.start().wait(SECONDS) == ExitCode.USER_ERROR
    message = pods.root / "pod-0-0" / "termination-log"
    assert len(message.read_bytes()) <= 4096
    assert pods.said().verdict.message.startswith("ValueError: ééé")


# What is printed in a handler may meet a print that the signal interrupts, which Python refuses: so it is written past it.
WAIT = """
    import os, signal, sys, time
    def f(out):
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"saved\\n"), sys.exit(3)))
        print("ready", flush=True)
        time.sleep(600)
"""


def test_a_pod_that_is_told_to_stop_lets_its_ranks_save(pods_of):
    pods = pods_of(WAIT)
    process = pods.start()
    until(pods.printed, lambda lines: "[rank 0] ready" in lines)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == ExitCode.STOPPED
    assert pods.logged() == ["[rank 0] ready", "[rank 0] saved", "replica main-0 was told to stop"]
    assert pods.said().verdict.cause is Cause.CANCELLED


def test_a_pod_that_is_told_to_stop_at_any_moment_stops(pods_of):
    pods = pods_of(WAIT)
    for number in range(6):
        process = pods.start(restart=str(number))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02 * number)
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS)
        assert code in (-signal.SIGTERM, ExitCode.STOPPED), pods.printed(restart=str(number))


def test_a_pod_of_a_start_that_is_over_stops_its_ranks(pods_of):
    pods = pods_of(
        WAIT.replace("time.sleep(600)", "[(print('on', flush=True), time.sleep(0.1)) for _ in range(6000)]")
    )
    process = pods.start()
    until(pods.logged, len)
    pods.gang.bundle(restart="1").raise_for_status()
    assert process.wait(SECONDS) == ExitCode.STOPPED
    assert "this start of the gang is over" in pods.said().verdict.message
    assert "[rank 0] saved" in pods.printed()


def test_a_replica_that_only_lost_its_peer_lets_the_culprit_end_first(pods_of):
    pods = pods_of(
        "def f(out):\n    raise RuntimeError('Connection closed by peer [10.0.0.7]:4711')\n", replicas=2
    )
    process = pods.start()
    until(pods.logged, len)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert (
        process.wait(SECONDS) == ExitCode.STOPPED
    )  # else a queue that puts the gang back would cost it a restart
    assert "Connection closed by peer" in pods.said().verdict.message


@pytest.mark.slow
def test_a_pod_whose_ranks_do_not_end_says_that_it_was_told_to_stop_before_it_is_killed(pods_of):
    """A disk that hangs holds them; a kubelet's kill would count as a lost rank."""
    pods = pods_of(
        """
        import os, signal, time
        def f(out, checkpoints):
            os.kill(os.getppid(), signal.SIGSTOP)
            (checkpoints / "there").touch()
            time.sleep(600)
        """,
        grace_seconds=0.5,
    )
    process = pods.start()
    until((pods.gang.root() / "checkpoints" / "there").exists, bool)
    until(lambda: handles(process.pid, signal.SIGTERM), bool)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == ExitCode.STOPPED
    assert pods.said().verdict.message == "replica main-0 was told to stop"


def test_a_worker_that_is_killed_is_a_lost_rank(pods_of):
    pods = pods_of(
        "import os, signal, time\ndef f(out):\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(600)\n",
        max_restarts=0,
    )
    assert pods.start().wait(SECONDS) == ExitCode.GIVEN_UP
    assert pods.said().verdict.message == "the worker of replica main-0 was killed by signal 9"
    assert pods.logged() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_the_first_process_of_a_container_stops_too(pods_of):
    """No signal ends a PID 1 that does not handle it."""
    pods = pods_of(WAIT)
    process = pods.start(before=("unshare", "--pid", "--fork", "--kill-child"))
    until(pods.printed, lambda lines: "[rank 0] ready" in lines)
    (first,) = children(process.pid)
    os.kill(first, signal.SIGTERM)
    assert process.wait(SECONDS) == ExitCode.STOPPED
    assert pods.printed()[-1] == "replica main-0 was told to stop"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_the_first_process_of_a_container_stops_whenever_it_is_told(pods_of):
    """From when it handles the signal on; the kernel drops what comes while the interpreter starts."""
    pods = pods_of(WAIT)
    for number in range(6):
        process = pods.start(restart=str(number), before=("unshare", "--pid", "--fork", "--kill-child"))
        (first,) = until(lambda process=process: children(process.pid), bool)
        until(lambda first=first: handles(first, signal.SIGTERM), bool)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02 * number)
        os.kill(first, signal.SIGTERM)
        code = process.wait(SECONDS)
        assert code in (128 + signal.SIGTERM, ExitCode.STOPPED), pods.printed(restart=str(number))


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) & 1 << number - 1)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


LOSE_A_RANK = """
    import os, signal, time
    from pathlib import Path
    def f(out, checkpoints):
        rank = os.environ["MUSTER_RANK"]
        attempt = len(list(checkpoints.glob(f"*-{rank}")))
        print("finds", attempt, *sorted(each.name for each in out.iterdir()), flush=True)
        (out / f"written-{attempt}-{rank}").write_text("x")
        (checkpoints / f"{attempt}-{rank}").touch()
        while len(list(checkpoints.glob(f"{attempt}-*"))) < RANKS:
            time.sleep(0.01)
        if attempt < LOST:
            if rank == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return {"loss": 0.5}
"""


def losing(*, lost: int = 1, ranks: int = 2) -> str:
    return LOSE_A_RANK.replace("LOST", str(lost)).replace("RANKS", str(ranks))


@pytest.mark.slow
def test_a_gang_that_lost_a_rank_starts_again_in_its_pods(pods_of):
    pods = pods_of(losing(), replicas=2)
    started = [pods.start(0), pods.start(1)]
    for process in started:
        assert process.wait(SECONDS) == ExitCode.SEALED, (pods.printed(0), pods.printed(1))
    status = pods.ended()
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 1)
    (again,) = [line for line in pods.logged() if "starts again" in line]
    assert again == (
        "[muster] rank lost, rank 1: killed by SIGKILL (kill -9, or the kernel for want of memory); "
        "the whole gang starts again from its checkpoint"
    )
    found = [line for line in pods.logged() if "finds" in line]
    assert sorted(found[2:]) == ["[rank 0] finds 1", "[rank 1] finds 1"]
    staging = pods.gang.service.client().staging(pods.gang.job_id)
    assert staging.attempt == 2


def test_a_gang_starts_again_in_its_pods_as_often_as_it_may(pods_of):
    pods = pods_of(
        "import os, signal\ndef f(out):\n    os.kill(os.getpid(), signal.SIGKILL)\n", max_restarts=2
    )
    assert pods.start().wait(SECONDS) == ExitCode.GIVEN_UP, pods.printed()
    assert (pods.said().exit_code, pods.said().verdict.cause) == (ExitCode.RANK_LOST, Cause.RANK_LOST)
    assert pods.status().restarts == 2
    assert sum("starts again" in line for line in pods.logged()) == 2


@pytest.mark.slow
def test_of_a_hang_a_replica_whose_worker_is_slow_says_where_its_ranks_stood(pods_of):
    pods = pods_of(
        """
        import os, signal, time
        def f(out, checkpoints):
            rank, again = os.environ["MUSTER_RANK"], checkpoints / "again"
            if again.exists():
                return
            if rank == "0":
                time.sleep(600)
            os.kill(os.getppid(), signal.SIGSTOP)
            while not (checkpoints.parent / "gang" / "hang").exists():
                time.sleep(0.01)  # the pace of looking
            time.sleep(0.8)  # longer than the grace, as a worker that gets no CPU
            again.touch()
            os.kill(os.getppid(), signal.SIGCONT); time.sleep(600)
        """,
        replicas=2,
        grace_seconds=0.5,
        hang_timeout_seconds=3.0,
    )
    started = [pods.start(0), pods.start(1)]
    for process in started:
        assert process.wait(SECONDS) == ExitCode.SEALED, (pods.printed(0), pods.printed(1))
    (again,) = [line for line in pods.logged() if "starts again" in line]
    assert again == (
        "[muster] hang: no line and no progress for 3 s: rank 0 at t.py:8, rank 1 at t.py:14; "
        "the whole gang starts again from its checkpoint"
    )


def test_a_user_error_is_told_by_the_pod_that_it_hit(pods_of):
    pods = pods_of(
        """
        import os, time
        def f(out, checkpoints):
            if os.environ["MUSTER_RANK"] == "1":
                (checkpoints / "lost").touch()
                raise RuntimeError("Connection closed by peer [10.0.0.7]:4711")
            while not (checkpoints / "lost").exists():
                time.sleep(0.01)
            time.sleep(1)
            raise ValueError("no rows")
        """,
        replicas=2,
    )
    culprit, follower = pods.start(0), pods.start(1)
    assert culprit.wait(SECONDS) == ExitCode.USER_ERROR
    follower.send_signal(signal.SIGTERM)
    assert follower.wait(SECONDS) == ExitCode.STOPPED
    assert pods.status().restarts == 0


def test_a_pod_that_is_told_to_stop_says_that_nothing_of_it_is_left(pods_of):
    pods = pods_of(WAIT)
    process = pods.start()
    until(pods.printed, lambda lines: "[rank 0] ready" in lines)
    checkpoints = pods.gang.root().resolve() / "checkpoints"
    number = checkpoints.stat().st_ino
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == ExitCode.STOPPED
    pods.gang.bundle(restart="1").raise_for_status()
    assert (pods.gang.root("1") / "checkpoints").stat().st_ino == number


@pytest.mark.slow
def test_a_pod_of_a_gang_that_stops_for_another_size_stays_until_it_is_deleted(pods_of):
    """Were it to end by itself, the cluster would count a start of the gang where nothing has failed."""
    pods = pods_of(WAIT, grace_seconds=0.5)
    process = pods.start()
    until(pods.printed, lambda lines: "[rank 0] ready" in lines)
    client = pods.gang.service.client()
    until(lambda: client.stop(pods.gang.job_id, attempt=pods.gang.attempt), bool)
    client.begin(pods.gang.job_id, after=pods.gang.attempt)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5 + CULPRIT_SECONDS + 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == ExitCode.STOPPED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_what_a_rank_left_behind_in_the_container_ends_before_the_next_attempt(pods_of):
    """A process that left the rank's session, and has another parent, would write into the next one's checkpoints."""
    pods = pods_of(
        """
        import os, signal, subprocess, time
        def f(out, checkpoints):
            first = not (checkpoints / "late").exists()
            if first:
                late = f"while true; do echo late >> {checkpoints}/late; done"
                subprocess.Popen(["setsid", "sh", "-c", late])
                while not (checkpoints / "late").exists():
                    time.sleep(0.01)
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(600)
            size = (checkpoints / "late").stat().st_size
            time.sleep(0.3)
            assert (checkpoints / "late").stat().st_size == size
        """
    )
    process = pods.start(before=("unshare", "--pid", "--fork", "--kill-child"))
    assert process.wait(SECONDS) == ExitCode.SEALED, pods.printed()
    assert pods.ended().restarts == 1
