"""One start of a gang, with programs that stand for workers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.unit.backends.replicas import bare_replica

from muster.backends.local import gang, limits
from muster.backends.local.gang import Gang
from muster.backends.local.spawn import spawn
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.verdict import Cause, Verdict


class Runner:
    """Runs a gang of two whose workers are Python programs, and keeps what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = b""
        self.turns = 0
        self.cancel = False
        self.python = sys.executable

    def __call__(self, *programs: str, memory_gib: float = 1.0, seconds: float = 60.0) -> Verdict | None:
        spec = JobSpec(
            name="test",
            image="python",
            image_digest="b3:" + "0" * 64,
            roles=(Role(command=("x",), replicas=len(programs), resources=Resources(memory_gib=memory_gib)),),
            grace_seconds=0.5,
        )
        started = Gang(
            [
                bare_replica(spec, index, report=self.folder / f"{index}.json")
                for index in range(len(programs))
            ],
            [spawn((self.python, "-c", program), {}) for program in programs],
            mark="test-1",
            log=self.log,
            turn=self.turn,
            asked_to_end=lambda: self.cancel,
            deadline=time.monotonic() + seconds,
        )
        try:
            return started.run()
        finally:
            started.close()

    def turn(self) -> None:
        self.turns += 1

    def log(self, lines: bytes) -> None:
        assert lines.endswith(b"\n")
        self.said += lines
        self.cancel = self.cancel or b"cancel me" in lines


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_lines_of_all_replicas_come_whole(run: Runner) -> None:
    shout = "import os\nfor i in range(300): os.write(1, b'%s%d' % (b'{0}' * 50, i)); os.write(1, b'\\n')"
    assert run(shout.replace("{0}", "a"), shout.replace("{0}", "b")) is None
    lines = run.said.decode().splitlines()
    for letter in "ab":
        mine = [line for line in lines if line.startswith(letter)]
        assert mine == [letter * 50 + str(i) for i in range(300)]
    assert len(lines) == 600


def test_what_is_left_of_a_line_is_kept_and_a_line_without_end_is_cut(run: Runner) -> None:
    assert run("print('x' * 1_000_000, end='')") is None
    assert run.said.replace(b"\n", b"") == b"x" * 1_000_000


def test_a_worker_that_shuts_its_output_is_waited_for(run: Runner) -> None:
    code = (
        "import os, time; print('last', flush=True); os.close(1); os.close(2); time.sleep(0.3); os._exit(3)"
    )
    fault = run(code)
    assert run.said == b"last\n"
    assert fault is not None
    assert "exit code 3" in fault.message


def test_a_program_that_cannot_be_started_says_so(run: Runner) -> None:
    run.python = "/nowhere/python"
    fault = run("pass")
    assert fault is not None
    assert fault.cause is Cause.BACKEND_ERROR
    assert b"cannot run /nowhere/python" in run.said


def test_without_cgroups_memory_is_limited_by_looking(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "make_cgroup", lambda *_, **__: None)
    rank = "held = b'x' * (300 << 20); import time; time.sleep(600)"
    worker = (
        f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {rank!r}]).returncode != 0)"
    )
    fault = run("import time; time.sleep(600)", worker, memory_gib=0.1)
    assert fault is not None
    assert (fault.cause, fault.rank) == (Cause.OUT_OF_MEMORY, 1)


def test_a_gang_ends_at_its_deadline_also_if_a_worker_will_not(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "MARGIN_SECONDS", 0.0)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    fault = run(deaf, seconds=0.1)
    assert fault is not None
    assert fault.cause is Cause.RUN_TIMEOUT


def test_a_cancel_ends_it(run: Runner) -> None:
    fault = run("print('cancel me', flush=True); import time; time.sleep(600)")
    assert fault is not None
    assert fault.cause is Cause.CANCELLED


def test_peers_of_a_failed_replica_are_stopped(run: Runner) -> None:
    fault = run("import time; time.sleep(600)", "raise SystemExit(9)")
    assert fault is not None
    assert "main-1" in fault.message


def test_the_longest_line_of_a_worker_stays_one(run: Runner) -> None:
    """A rank's 64 KiB that are no text become three times as many bytes; cut, the rest would look like ours."""
    program = r"import os; os.write(1, b'[rank 0] ' + b'\xef\xbf\xbd' * 65536 + b' (9 bytes left out)\n')"
    run(program, program)
    assert [line[:9] for line in run.said.splitlines()] == [b"[rank 0] "] * 2
