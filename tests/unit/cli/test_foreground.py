"""A server in the foreground: however ``serve`` ends, the server ends with it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest
from tests.waiting import GUARD_SECONDS

from muster.cli.foreground import check_port, serve
from muster.core.errors import Conflict, ImageError

SERVER = "import signal; print('up', flush=True); signal.pause()"
CALLER = f"""
import signal, sys
from muster.cli.foreground import serve
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
try:
    serve("It", (sys.executable, "-c", {SERVER!r}))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_server_ends_with_what_runs_it(end: signal.Signals, code: int) -> None:
    """It writes to stderr, which only closes when neither of the two is left."""
    with subprocess.Popen([sys.executable, "-c", CALLER], stderr=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stderr is not None
            assert shown.stderr.readline() == "up\n"
            shown.send_signal(end)
            _, left = shown.communicate(timeout=GUARD_SECONDS)
        finally:
            shown.kill()
    assert (shown.returncode, left) == (code, "")


def test_a_server_that_ends_by_itself_with_an_error_is_named() -> None:
    with pytest.raises(ImageError, match=r"It ended with exit code 3: its last lines above"):
        serve("It", (sys.executable, "-c", "raise SystemExit(3)"))


def test_a_port_that_is_taken_is_told_before_an_address_is_shown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=rf"port {port} of 127\.0\.0\.1 .*: another program listens there"):
            check_port(port)
