"""Nothing of the tests is left, however they end; and what none of them needs is not imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import conftest
from tests.waiting import GUARD_SECONDS, until

RUN = "import sys; from pathlib import Path; from tests.session import run; sys.exit(run(sys.argv[2:], folder=Path(sys.argv[1])))"
# A daemon, as a keeper is: of a session of its own, and without a parent.
PROGRAM = """
import os, signal, sys, tempfile, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, b"%d" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
with open(os.path.join(tempfile.gettempdir(), "daemon"), "wb") as file:
    file.write(os.read(reader, 20))
sys.exit(3) if sys.argv[1] == "ends" else time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("ends", 3), ("terminated", 128 + signal.SIGTERM), ("killed", 128 + signal.SIGKILL)]
)
def test_a_daemon_of_a_test_ends_with_the_tests(tmp_path: Path, how: str, status: int) -> None:
    command = [sys.executable, "-c", RUN, tmp_path, sys.executable, "-c", PROGRAM, how]
    session = subprocess.Popen(command)
    told = tmp_path / "daemon"
    until(lambda: told.exists() and told.read_text() != "")
    if how == "terminated":
        session.terminate()
    elif how == "killed":
        children = Path(f"/proc/{session.pid}/task/{session.pid}/children").read_text().split()
        os.kill(int(next(each for each in children if each != told.read_text())), signal.SIGKILL)
    assert session.wait(timeout=GUARD_SECONDS) == status
    assert not Path("/proc", told.read_text()).exists()


@pytest.mark.parametrize(
    ("marks", "wanted", "ignored"),
    [
        ("pytestmark = pytest.mark.slow", "not slow and not gpu", True),
        ("pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.gpu,\n]", "not gpu", True),
        ("pytestmark = pytest.mark.slow", "not gpu", None),
        ("pytestmark = pytest.mark.slow", "not slow or gpu", None),
        ("pytestmark = pytest.mark.slow", "", None),
        ("@pytest.mark.slow\ndef test(): ...", "not slow", None),
    ],
)
def test_a_file_of_which_no_test_is_wanted_is_not_imported(
    tmp_path: Path, marks: str, wanted: str, ignored: bool | None
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"import pytest\n\n{marks}\n")
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=wanted))
    assert conftest.pytest_ignore_collect(file, config) is ignored
