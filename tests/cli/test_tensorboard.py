"""``muster tensorboard``: the curves of a version are served, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS

pytestmark = pytest.mark.slow

WRITE = """
import sys
from tensorboard.summary import Writer
writer = Writer(sys.argv[1])
writer.add_scalar("loss", 0.5, 1)
writer.close()
"""


def fetch(url: str, process: subprocess.Popen[str], *, seconds: float = GUARD_SECONDS) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            found = json.loads(urllib.request.urlopen(url, timeout=GUARD_SECONDS).read())
            if found:
                return dict(found)
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A folder whose store has a version with curves."""
    folder = tmp_path_factory.mktemp("author")

    def muster(*words: str) -> str:
        done = subprocess.run(
            ["muster", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    muster("images", "build", "train")
    train = next(image for image in json.loads(muster("images", "ls", "--json")) if image["name"] == "train")
    subprocess.run([f"{train['path']}/bin/python", "-c", WRITE, str(folder / "model" / "events")], check=True)
    muster("volumes", "put", "model", "some/model")
    return folder


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_curves_are_served_until_it_is_ended(
    end: signal.Signals, home: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    port, scratch = free_port(), tmp_path / "scratch"
    scratch.mkdir()
    shown = subprocess.Popen(
        ["muster", "tensorboard", "some/model", "--port", str(port)],
        cwd=home,
        env=environment | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        tags = fetch(f"http://127.0.0.1:{port}/data/plugin/scalars/tags", shown)
        assert "loss" in tags["some.model@1/events"]
    finally:
        shown.send_signal(end)
        out, _ = shown.communicate(timeout=30)
    assert out.startswith(f"http://127.0.0.1:{port}/")
    assert [path.name for path in scratch.iterdir() if path.name.startswith("muster-")] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=GUARD_SECONDS)
