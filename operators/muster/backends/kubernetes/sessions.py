"""Reaches a rank's pod through the API server with the caller's own rights: ``pods/exec`` and ``pods/portforward``."""

from __future__ import annotations

import os
import socket
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from muster.backends.kubernetes.api.kinds import POD
from muster.backends.kubernetes.api.refusals import ApiRequest, read_status, refusal
from muster.backends.kubernetes.labels import JOB, MAIN, selector
from muster.backends.kubernetes.place import ClusterPlace
from muster.backends.kubernetes.state.seen import JobObjects
from muster.backends.place import RankSession
from muster.core.errors import Forbidden, NotFound, SpecError
from muster.core.job import JobSpec

_ASKS_WITHOUT_STREAM = 400  # the answer to one who may: nothing is started
_STDIN, _STDOUT, _STDERR, _STATUS, _SIZE = range(5)


def open_session(
    place: ClusterPlace, job: JobSpec, job_id: str, rank: int, command: Sequence[str], port: int
) -> RankSession:
    """Find a rank's pod, of those with the job's label that run. :raises Forbidden: the caller may not do that there."""
    client, space = place.client, place.written.site.namespace
    pods = JobObjects(pods=client.find(POD, namespace=space, labels=selector({JOB: job_id}))).replicas()
    running = {(pod.role, pod.index): pod.name for pod in pods if pod.main.running and not pod.deleting}
    each = ((role, index) for role in job.roles for index in range(role.replicas))
    of_ranks = [(role.name, index) for role, index in each for _ in range(role.ranks)]
    if (pod := running.get(of_ranks[rank])) is None:
        raise NotFound(
            f"rank {rank} of job {job_id} does not run now: `muster jobs show {job_id}` lists what does"
        )
    output = "tty" if sys.stdin.isatty() else "stderr"
    run = {"container": MAIN, "command": command, "stdin": "true", "stdout": "true", output: "true"}
    what, query = ("exec", run) if command else ("portforward", {"ports": port})
    path = f"{POD.path(namespace=space, name=pod, subresource=what)}?{urlencode(query, doseq=True)}"
    for verb in ("get", "create"):  # a stream is opened with GET, and since Kubernetes 1.35 needs create
        asked = ApiRequest(verb=verb, kind=POD, name=pod, namespace=space, subresource=what)
        code, body = client.proxied(asked, path=path, seconds=10.0)
        if code > _ASKS_WITHOUT_STREAM:
            error = refusal(asked, code, read_status(body))
            more = "get and create are needed, which the chart gives to operators with operator.exec=true"
            raise Forbidden(f"{error}; {more}") if isinstance(error, Forbidden) else error
    stream = partial(client.socket, asked, path)
    return RankSession(f"pod {pod}", partial(_run, stream, command), partial(_connect, stream, port))


def _connect(opened: partial[Any], port: int) -> socket.socket:
    from kubernetes.stream.ws_client import PortForward, create_websocket

    return cast("socket.socket", PortForward(opened(create_websocket), [port]).socket(port))


def _run(opened: partial[Any], command: Sequence[str]) -> int:
    from kubernetes.stream.ws_client import WSClient

    stream, status = opened(partial(WSClient, capture_all=False, binary=True)), b""
    with ExitStack() as ends:
        if (
            sys.stdin.isatty()
        ):  # every key reaches the command, Ctrl-C too; the window keeps the size that it has now
            ends.callback(termios.tcsetattr, _STDIN, termios.TCSADRAIN, termios.tcgetattr(_STDIN))
            tty.setraw(_STDIN)
            size = os.get_terminal_size(_STDIN)
            stream.write_channel(_SIZE, b'{"Width": %d, "Height": %d}' % size)
        threading.Thread(target=_send_stdin, args=(stream,), daemon=True).start()
        while stream.is_open():
            stream.update(timeout=0.5)
            for channel, sink in ((_STDOUT, sys.stdout.buffer), (_STDERR, sys.stderr.buffer)):
                sink.write(stream.read_channel(channel))
                sink.flush()
            status += stream.read_channel(_STATUS)
    said = read_status(status)  # a Status of v1, with the exit code among its causes unless that is 0
    causes = (said.get("details") or {}).get("causes") or ()
    code = next((int(each["message"]) for each in causes if each.get("reason") == "ExitCode"), None)
    if code is None and said.get("status") != "Success":
        why = (
            said.get("message") or "the connection ended before it did: its pod has ended, or the API server"
        )
        raise SpecError(f"{command[0]!r:.200} has no exit code: {why}")
    return code or 0


def _send_stdin(stream: Any) -> None:
    while data := os.read(_STDIN, 1 << 16):
        stream.write_channel(_STDIN, data)
    stream.close_channel(_STDIN)
