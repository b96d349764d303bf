"""``muster jobs exec`` and ``forward`` on a cluster: by the right of the caller, into pods of that job alone."""

from __future__ import annotations

import os
import pty
import secrets
import socket
import subprocess
import termios
from collections.abc import Iterator

import pytest
from tests.cluster import accounts, kubectl
from tests.cluster.inside import NAMESPACE
from tests.cluster.layout import Layout
from tests.cluster.scripted import Jobs, connection, job, jobs
from tests.cluster.test_command import MUSTER, Laptop, here, muster, served, token
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD
from muster.backends.kubernetes.api.refusals import ApiRequest
from muster.backends.kubernetes.state.observe import observe
from muster.core.status import JobState
from muster.volumes.service.client import ServiceStore

__all__ = ["here", "muster", "served"]

pytestmark = pytest.mark.cluster

NAME = f"entered-{secrets.token_hex(3)}"
LOUDER = """
import socketserver
class Louder(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.request.recv(100).upper())
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Louder).serve_forever()
"""
_RBAC = "rbac.authorization.k8s.io"
# What the chart gives with operator.exec=true.
RIGHT = [
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "enters", "namespace": NAMESPACE},
        "rules": [
            {"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["get", "create"]}
        ],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "enters", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "enters"},
        "subjects": [{"kind": "ServiceAccount", "name": accounts.OPERATOR, "namespace": NAMESPACE}],
    },
]


@pytest.fixture(scope="module")
def running(here: Layout) -> Iterator[Jobs]:
    with jobs(here) as found:
        found.start(NAME, job("entered"), LOUDER)
        found.until(NAME, "runs", lambda seen: observe(seen, job("entered")).state is JobState.RUNNING)
        yield found
        found.clear()


@pytest.fixture
def laptop(muster: Laptop, running: Jobs) -> Laptop:
    with ServiceStore(
        muster.settings["store_url"], token=token(muster), cache=muster.folder / "own"
    ) as service:  # type: ignore[arg-type]
        service.ledger.create(NAME, job("entered"))
    return muster


@pytest.fixture(scope="module")
def right(here: Layout) -> Iterator[None]:
    kubectl.apply(here, RIGHT)
    yield
    kubectl.run(here, "delete", "role,rolebinding", "enters", f"--namespace={NAMESPACE}")


@pytest.mark.parametrize(
    ("words", "resource"),
    [
        (("exec", NAME, "--", "true"), "pods/exec"),
        (("forward", NAME, f"8000:{free_port()}"), "pods/portforward"),
    ],
)
def test_without_the_right_it_is_said_which_one_and_who_lacks_it(
    laptop: Laptop, words: tuple[str, ...], resource: str
) -> None:
    found = laptop("jobs", *words)
    assert found.code == 1
    who = f"system:serviceaccount:{NAMESPACE}:{accounts.OPERATOR}"
    assert f"{who} may not get {resource} in namespace {NAMESPACE}: give it a Role" in found.err
    assert "operator.exec=true" in found.err
    assert laptop("jobs", "logs", NAME).out == ""


@pytest.mark.usefixtures("right")
class TestWithTheRight:
    def test_a_command_runs_in_the_ranks_pod(self, laptop: Laptop) -> None:
        code = "import os, sys; print(os.uname().nodename); print('wrong', file=sys.stderr); sys.exit(23)"
        found = laptop("jobs", "exec", NAME, "--rank", "1", "--", "python3", "-c", code)
        assert (found.code, found.err) == (23, "wrong\n")
        assert found.out.startswith(f"{NAME}-main-0-1")
        (line,) = laptop("jobs", "logs", NAME).out.splitlines()
        assert ", rank 1, pod " in line
        assert "exec: python3 -c" in line

    def test_it_reads_stdin_to_its_end(self, laptop: Laptop) -> None:
        environment = os.environ | {
            "MUSTER_CLUSTER": str(laptop.folder / "cluster.toml"),
            "MUSTER_HOME": str(laptop.folder / "home"),
        }
        assert laptop("jobs", "ls").code == 0  # it writes the file
        code = "import sys; print(len(sys.stdin.read()))"
        command = [str(MUSTER), "jobs", "exec", NAME, "--", "python3", "-c", code]
        done = subprocess.run(
            command,
            env=environment,
            input="x" * 300_000,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.stdout, done.returncode) == ("300000\n", 0), done.stderr

    def test_a_terminal_is_passed_on_with_its_size(self, laptop: Laptop) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (33, 91))
        environment = os.environ | {
            "MUSTER_CLUSTER": str(laptop.folder / "cluster.toml"),
            "MUSTER_HOME": str(laptop.folder / "home"),
        }
        assert laptop("jobs", "ls").code == 0
        code = (
            "import os, time\nwhile os.get_terminal_size(0) != (91, 33): time.sleep(0.01)\n"
            "print('sized', flush=True); print(input()[::-1])"
        )
        command = [str(MUSTER), "jobs", "exec", NAME, "--", "python3", "-c", code]
        with (
            os.fdopen(ours, "r+b", buffering=0) as keys,
            os.fdopen(theirs, "rb") as terminal,
            subprocess.Popen(command, env=environment, stdin=terminal, stdout=subprocess.PIPE) as entered,
        ):
            assert entered.stdout is not None
            assert entered.stdout.readline() == b"sized\r\n"
            keys.write(b"abc\r")
            assert b"cba" in entered.stdout.read()
            assert entered.wait(GUARD_SECONDS) == 0

    def test_what_is_no_program_is_said(self, laptop: Laptop) -> None:
        found = laptop("jobs", "exec", NAME, "--", "no-such-program")
        assert found.code == 1
        assert "'no-such-program' has no exit code" in found.err
        assert "Traceback" not in found.err

    def test_a_port_is_led_to(self, laptop: Laptop) -> None:
        local = free_port()
        environment = os.environ | {
            "MUSTER_CLUSTER": str(laptop.folder / "cluster.toml"),
            "MUSTER_HOME": str(laptop.folder / "home"),
        }
        assert laptop("jobs", "ls").code == 0
        command = [str(MUSTER), "jobs", "forward", NAME, f"8000:{local}"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as forwarding:
            assert forwarding.stdout is not None
            assert f"127.0.0.1:{local} leads to port 8000 of rank 0" in forwarding.stdout.readline()
            for word in (b"flights", b"again"):
                with socket.create_connection(("127.0.0.1", local), GUARD_SECONDS) as asked:
                    asked.sendall(word)
                    assert asked.recv(100) == word.upper()
            forwarding.send_signal(2)
            assert forwarding.wait(GUARD_SECONDS) == 0
        assert "forward: port 8000" in laptop("jobs", "logs", NAME).out

    def test_musters_own_pods_are_refused_all_the_same(self, laptop: Laptop, here: Layout) -> None:
        client = Client(connection(here))
        (pod, *_) = [
            each["metadata"]["name"]
            for each in client.find(POD, namespace=NAMESPACE)
            if each["metadata"]["name"].startswith("muster-store-")
        ]
        for what, query in (("exec", "command=true&stdout=true"), ("portforward", "ports=1")):
            request = ApiRequest(verb="create", kind=POD, name=pod, namespace=NAMESPACE, subresource=what)
            path = f"{POD.path(namespace=NAMESPACE, name=pod, subresource=what)}?{query}"
            code, body = client.proxied(request, path=path, seconds=30)
            assert code in (403, 422)
            assert b"none of muster's or Airflow's own" in body
