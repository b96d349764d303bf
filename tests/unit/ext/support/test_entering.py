"""``muster jobs exec`` and ``forward`` on one machine, with real jobs; what an API server refuses, from one that is made up."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.images.folders import find_image, image_folders, put_image

pytestmark = pytest.mark.slow

# Rank 0 answers what it is sent, in capitals; all end once there is a file called `go` in their folder.
CODE = """
import os, pathlib, socketserver, threading, time
class Louder(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.request.recv(100).upper())
if os.environ["MUSTER_RANK"] == "0":
    server = socketserver.ThreadingTCPServer(("127.0.0.1", int(os.environ["PORT"])), Louder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("up", flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.01)
"""
JOB = "flights-train-1"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def backend(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    yield from one_machine(places, tmp_path_factory.mktemp("cache"), memory_gib=8)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def spec(backend: Backend, places: Places, port: int) -> JobSpec:
    settings = Settings(home=places.home, cache=places.home / "cache")
    image = put_image(backend.store, find_image("python", image_folders(settings)))
    role = Role(command=("python", "-c", CODE), resources=Resources(memory_gib=0.5), replicas=2)
    env = {"PORT": str(port), "COLOUR": "blue as the sky"}
    return JobSpec(name="flights.train", image="python", image_digest=image, roles=(role,), env=env)


@pytest.fixture
def job(backend: Backend, spec: JobSpec) -> str:
    """The id of a job whose two ranks are up: the same one until it ends."""
    if JOB not in backend.store.ledger.jobs():
        backend.submit(spec, job_id=JOB)
        eventually(lambda: log(backend).count("up") == 2)
    return JOB


def log(backend: Backend) -> str:
    return backend.store.ledger.read(JOB, after=0)[0].decode()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def muster(places: Places) -> Run:
    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "muster", *words],
            env={**os.environ, "MUSTER_HOME": str(places.home)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=GUARD_SECONDS,
        )

    return run


def test_a_command_has_the_variables_the_folder_and_the_python_of_its_rank(
    muster: Run, job: str, backend: Backend
) -> None:
    code = "import os, sys; print(os.environ['COLOUR'], os.environ['MUSTER_RANK'], sys.prefix, os.getcwd(), sep='|')"
    done = muster("jobs", "exec", job, "--rank", "1", "--", "python", "-c", code)
    colour, rank, prefix, folder = done.stdout.strip().split("|")
    assert (colour, rank) == ("blue as the sky", "1"), done.stderr
    assert Path(prefix, "bin", "python").exists()
    assert prefix != sys.prefix
    assert Path(folder).is_dir()
    (line,) = [line for line in log(backend).splitlines() if "COLOUR" in line]
    assert line.startswith("[muster] 20")
    assert ", rank 1, pid " in line
    assert "exec: python -c" in line


def test_its_exit_code_is_passed_on_and_stdin_reaches_it(muster: Run, job: str) -> None:
    done = muster("jobs", "exec", job, "--", "python", "-c", "print(input()[::-1]); exit(23)", stdin="sky\n")
    assert (done.stdout, done.returncode) == ("yks\n", 23)


def test_a_terminal_is_passed_on(job: str, places: Places) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "muster", "jobs", "exec", job, "--", "test", "-t", "0"]
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "rb") as terminal:
        environment = {**os.environ, "MUSTER_HOME": str(places.home)}
        assert subprocess.run(command, stdin=terminal, env=environment, check=False).returncode == 0


def test_it_is_no_process_of_the_job(muster: Run, job: str) -> None:
    done = muster(
        "jobs", "exec", job, "--", "python", "-c", "import os; print('MUSTER_JOB_MARK' in os.environ)"
    )
    assert done.stdout == "False\n"


def test_a_port_is_told_and_led_to(
    muster: Run, job: str, port: int, places: Places, backend: Backend
) -> None:
    assert muster("jobs", "forward", job, str(port)).stdout == f"127.0.0.1:{port}\n"
    local = free_port()
    command = [sys.executable, "-m", "muster", "jobs", "forward", job, f"{port}:{local}"]
    environment = {**os.environ, "MUSTER_HOME": str(places.home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        assert f"127.0.0.1:{local} leads to port {port} of rank 0" in forwarding.stdout.readline()
        for word in (b"flights", b"again"):
            with socket.create_connection(("127.0.0.1", local), GUARD_SECONDS) as asked:
                asked.sendall(word)
                assert asked.recv(100) == word.upper()
        forwarding.send_signal(2)
        assert forwarding.wait(GUARD_SECONDS) == 0
    assert f"forward: port {port}" in log(backend)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exec", JOB), "no command: write it after --"),
        (("exec", "flight-train", "--", "true"), "no job 'flight-train': the newest is flights-train-1"),
        (("exec", JOB, "--rank", "2", "--", "true"), "has no rank 2: its ranks are 0 to 1"),
        (
            ("exec", JOB, "--", "no-such-program"),
            "'no-such-program' cannot be run (No such file or directory)",
        ),
        (("forward", JOB, "http"), "'http' is no port: expected PORT or PORT:LOCAL"),
        (("forward", JOB, "0"), "'0' is no port"),
        (("forward", JOB, "80:65536"), "'80:65536' is no port"),
    ],
)
def test_what_is_asked_wrongly_is_refused(muster: Run, job: str, words: tuple[str, ...], said: str) -> None:
    done = muster("jobs", *words)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_local_port_in_use_is_refused_and_not_written_down(
    muster: Run, job: str, backend: Backend, port: int
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        local = taken.getsockname()[1]
        done = muster("jobs", "forward", job, f"{port}:{local}")
    assert done.returncode == 1
    assert f"port {local} of 127.0.0.1 cannot be used (Address already in use" in done.stderr
    assert f"port {local}" not in log(backend)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_another_users_job_is_refused(muster: Run, job: str, places: Places) -> None:
    folder = places.job(job).root
    os.chown(folder, 4321, -1)
    try:
        done = muster("jobs", "exec", job, "--", "env")
    finally:
        os.chown(folder, os.getuid(), -1)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is of user 4321, and this is user 0" in done.stderr


def test_a_job_that_waits_is_refused(muster: Run, spec: JobSpec, backend: Backend, job: str) -> None:
    (role,) = spec.roles
    large = replace(spec, roles=(replace(role, resources=Resources(memory_gib=3.8)),))
    backend.submit(large, job_id="waits-1")
    done = muster("jobs", "exec", "waits-1", "--", "true")
    assert done.returncode == 1
    assert "job waits-1 does not run, its state is queued" in done.stderr
    backend.cancel("waits-1")


def test_the_job_goes_on_by_what_a_command_writes_and_an_ended_one_is_refused(
    muster: Run, job: str, backend: Backend
) -> None:
    for rank in ("0", "1"):
        assert muster("jobs", "exec", job, "--rank", rank, "--", "touch", "go").returncode == 0
    status, _ = finish(backend, job)
    assert status.state is JobState.SUCCEEDED
    done = muster("jobs", "exec", job, "--", "true")
    assert done.returncode == 1
    assert f"job {job} does not run, its state is succeeded" in done.stderr
