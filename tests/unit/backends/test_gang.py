"""One start of a gang, with programs that stand for workers, and which replica was at fault first."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.unit.backends.replicas import bare_replica

from muster.backends.local import gang, limits
from muster.backends.local.gang import Gang, Member, first_fault
from muster.backends.local.limits import Overrun, Polled
from muster.backends.local.spawn import Worker, spawn
from muster.core.job import JobSpec, Role
from muster.core.replica import Report
from muster.core.resources import Resources
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps


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


SPEC = JobSpec(
    name="test",
    image="python",
    image_digest="b3:" + "0" * 64,
    roles=(Role(command=("true",), replicas=3, ranks=2),),
)


class Ended:
    """Makes members that have ended as told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        index: int,
        code: int,
        *,
        cause: Cause | None = None,
        at: float = 0.0,
        stopped: bool = False,
        overrun: Overrun | None = None,
    ) -> Member:
        path = self.folder / f"{index}.json"
        replica = bare_replica(SPEC, index, report=path)
        if cause is not None:
            verdict = Verdict(cause=cause, message=f"from {index}", advice="do", rank=index * 2)
            path.write_text(dumps(Report(exit_code=ExitCode(code), verdict=verdict, at=at)))
        return Member(
            replica, Worker(0, -1, -1), Polled(1.0), code=code, ended_at=at, stopped=stopped, overrun=overrun
        )


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


def test_nothing_is_wrong_where_all_have_sealed(ended: Ended) -> None:
    assert first_fault([ended(index, ExitCode.SEALED) for index in range(3)]) is None


def test_what_happened_first_is_at_fault(ended: Ended) -> None:
    late = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=11.0)
    early = ended(1, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=10.0)
    fault = first_fault([late, early])
    assert fault is not None
    assert fault.message == "from 1"


def test_who_was_stopped_is_not_at_fault(ended: Ended) -> None:
    stopped = ended(0, ExitCode.STOPPED, cause=Cause.CANCELLED, at=1.0, stopped=True)
    killed = ended(1, -9, at=1.0, stopped=True)
    wrong = ended(2, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=10.0)
    fault = first_fault([stopped, killed, wrong])
    assert fault is not None
    assert fault.message == "from 2"


def test_memory_that_was_outgrown_explains_the_lost_rank_and_names_it(ended: Ended) -> None:
    victim = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=1.0)
    overrun = Overrun(used_gib=2.5, limit_gib=2.0)
    grown = ended(1, ExitCode.RANK_LOST, cause=Cause.RANK_LOST, at=2.0, overrun=overrun)
    fault = first_fault([victim, grown])
    assert fault is not None
    assert (fault.cause, fault.rank) == (Cause.OUT_OF_MEMORY, 2)
    assert "main-1 used 2.50 GiB, its limit is 2 GiB" in fault.message


def test_a_killed_worker_is_a_lost_rank(ended: Ended) -> None:
    fault = first_fault([ended(1, -9, at=5.0)])
    assert fault is not None
    assert (fault.cause, fault.rank) == (Cause.RANK_LOST, 2)
    assert "killed by signal 9" in fault.message


def test_a_peer_that_complained_before_we_saw_the_loss_is_not_at_fault(ended: Ended) -> None:
    peer = ended(0, ExitCode.USER_ERROR, cause=Cause.USER_ERROR, at=9.9)
    fault = first_fault([peer, ended(1, -9, at=10.0)])
    assert fault is not None
    assert fault.cause is Cause.RANK_LOST


def test_a_worker_that_somebody_else_stopped_is_lost(ended: Ended) -> None:
    fault = first_fault([ended(0, ExitCode.STOPPED, cause=Cause.CANCELLED, at=1.0)])
    assert fault is not None
    assert fault.cause is Cause.RANK_LOST


def test_a_worker_that_breaks_by_itself_is_not_started_again(ended: Ended) -> None:
    fault = first_fault([ended(0, 1, at=1.0)])
    assert fault is not None
    assert fault.cause is Cause.BACKEND_ERROR
    assert not fault.cause.restarts_gang


def test_a_hang_is_told_of_all_replicas_that_hung(ended: Ended) -> None:
    hung = [ended(index, ExitCode.HANG, cause=Cause.HANG, at=10.0 + index) for index in (0, 1)]
    for index, member in enumerate(hung):
        text = f"no line and no progress for 5 s: rank {index} at t.py:{index}"
        verdict = Verdict(cause=Cause.HANG, message=text, advice="do", rank=index)
        Path(member.replica.report).write_text(
            dumps(Report(exit_code=ExitCode.HANG, verdict=verdict, at=index))
        )
    fault = first_fault(hung)
    assert fault is not None
    assert fault.message == "no line and no progress for 5 s: rank 0 at t.py:0, rank 1 at t.py:1"
    assert fault.rank is None
