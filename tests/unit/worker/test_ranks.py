"""Ranks live and die together: signals, kill -9, strays, hangs, floods."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import until

from muster.backends.local.processes import Process
from muster.core.job import Role
from muster.core.verdict import Cause, ExitCode


def test_on_sigterm_the_ranks_get_time_to_save(bench) -> None:
    bench.code(
        t="""
        import signal, sys, time
        def f(out, checkpoints):
            def save(*_):
                (checkpoints / "saved").write_text("yes")
                sys.exit(0)
            signal.signal(signal.SIGTERM, save)
            print("ready")
            time.sleep(600)
        """
    )
    replica = bench.replica(entrypoint="t:f", outputs=("out",))
    process = bench.start(replica)
    bench.line(process, "ready")
    process.send_signal(signal.SIGTERM)
    ended = bench.wait(process, replica)
    assert ended.code == ExitCode.STOPPED
    assert ended.report.verdict.cause is Cause.CANCELLED
    assert (bench.root / "checkpoints" / "saved").read_text() == "yes"
    assert ended.part is None


def test_a_rank_that_ignores_sigterm_is_killed_when_the_grace_is_over(bench) -> None:
    bench.code(
        t="import signal, time\ndef f():\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    print('ready')\n    time.sleep(600)"
    )
    replica = bench.replica(entrypoint="t:f", ranks=2, grace_seconds=0.2)
    process = bench.start(replica)
    bench.line(process, "ready")
    bench.line(process, "ready")
    process.send_signal(signal.SIGTERM)
    ended = bench.wait(process, replica)
    assert ended.code == ExitCode.STOPPED
    assert ended.lines == ["replica main-0 was told to stop"]


def test_when_one_rank_fails_the_others_go_and_it_is_named(bench) -> None:
    bench.code(
        t="import os, time\ndef f():\n    if os.environ['MUSTER_RANK'] == '1':\n        raise ValueError('bad row')\n    time.sleep(600)"
    )
    ended = bench.run(entrypoint="t:f", ranks=3)
    assert ended.code == ExitCode.USER_ERROR
    assert ended.lines[-1] == "rank 1: ValueError: bad row"
    assert ended.report.verdict.rank == 1


def test_a_rank_that_only_lost_its_peer_is_not_blamed(bench) -> None:
    bench.code(
        t="""
        import atexit, os, pathlib, time
        def wait(holds):
            while not holds():
                time.sleep(0.01)
        peer, failed = pathlib.Path("peer"), pathlib.Path("failed")
        if os.environ["MUSTER_RANK"] == "1":  # it says what is wrong, but ends long after its peer
            wait(peer.exists)
            process = pathlib.Path("/proc", str(peer.stat().st_size))
            atexit.register(wait, lambda: not process.exists())
            atexit.register(failed.touch)
            raise ValueError("bad row")
        pathlib.Path("peer.part").write_bytes(b"x" * os.getpid())
        os.replace("peer.part", peer)
        wait(failed.exists)
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:123")
        """
    )
    ended = bench.run(command=("python", "t.py"), ranks=2)
    assert ended.code == ExitCode.USER_ERROR
    assert ended.lines[-1] == "rank 1: ValueError: bad row"
    assert any(line.startswith("rank 0 followed at t.py:") for line in ended.lines[-9:])


def test_a_crash_on_the_way_out_does_not_hide_what_was_raised(bench) -> None:
    bench.code(t="import atexit, os\natexit.register(os.abort)\nraise ValueError('bad row')")  # as torch may
    ended = bench.run(command=("python", "t.py"))
    assert "Fatal Python error: Aborted" in ended.log
    assert ended.lines[-1] == "rank 0: ValueError: bad row"
    assert ended.report.verdict.message == "ValueError: bad row"


LATE = "ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))"


@pytest.mark.parametrize("start", ["entrypoint", "command"])
@pytest.mark.parametrize("crash", [LATE, "atexit.register(ctypes.CDLL(None).abort)"])
def test_a_crash_after_all_code_has_run_is_named(bench, start: str, crash: str) -> None:
    crash = f"import atexit, ctypes\n{crash}"
    bench.code(t=f"def f():\n    print('done')\n{crash}\nif __name__ == '__main__': f()")
    ended = bench.run(**{start: "t:f" if start == "entrypoint" else ("python", "t.py")})
    verdict = ended.report.verdict
    assert (ended.code, verdict.cause) == (ExitCode.USER_ERROR, Cause.USER_ERROR)
    assert verdict.message == "killed by SIGABRT (Aborted) while Python was shutting down"
    assert "destroy_process_group" in verdict.advice


def test_a_crash_in_a_thread_of_a_library_is_no_shutdown(bench) -> None:
    crash = "threading.Thread(target=ctypes.CDLL(None).abort).start()"
    bench.code(t=f"import ctypes, threading, time\ndef f():\n    {crash}\n    time.sleep(600)")
    assert "shutting down" not in bench.run(entrypoint="t:f").report.verdict.message


def test_a_replica_all_of_whose_ranks_lost_a_peer_elsewhere_is_lost_not_wrong(bench) -> None:
    bench.code(t="def f():\n    raise RuntimeError('[gloo/transport/x] Connection closed by peer [1.2.3.4]')")
    ended = bench.run(entrypoint="t:f", ranks=2)
    assert (ended.code, ended.report.verdict.cause) == (ExitCode.RANK_LOST, Cause.RANK_LOST)


@pytest.mark.slow  # it waits for word of the other replica
def test_who_followed_a_rank_of_another_replica_is_told_in_a_line(bench) -> None:
    bench.code(t="def f():\n    raise RuntimeError('[gloo/transport/x] Connection closed by peer [1.2.3.4]')")
    ended = bench.run(roles=(Role(replicas=2, entrypoint="t:f"),))
    assert ended.code == ExitCode.RANK_LOST
    assert ended.lines == [
        "rank 0 followed at t.py:2: RuntimeError: [gloo/transport/x] Connection closed by peer [1.2.3.4]"
    ]


def test_a_single_rank_cannot_have_lost_a_peer(bench) -> None:
    bench.code(t="def f():\n    raise RuntimeError('gloo/transport is broken here')")
    assert bench.run(entrypoint="t:f").code == ExitCode.USER_ERROR


@pytest.mark.parametrize("start", ["entrypoint", "command"])
def test_ranks_die_with_a_worker_that_is_killed(bench, start: str) -> None:
    bench.code(
        t="import os, time\ndef f():\n    print('pid', os.getpid(), flush=True)\n    time.sleep(600)\nif __name__ == '__main__': f()"
    )
    how = {"entrypoint": "t:f"} if start == "entrypoint" else {"command": ("python", "t.py")}
    process = bench.start(bench.replica(ranks=2, **how))
    pids = [int(bench.line(process, "pid").split()[-1]) for _ in range(2)]
    assert all(map(Process.find, pids))
    process.kill()
    assert until(lambda: not any(map(Process.find, pids)))


def test_nothing_outlives_a_rank_that_fails(bench) -> None:
    bench.code(
        t="""
        import os, subprocess
        def f():
            if os.fork() == 0:
                os.setsid()  # a daemon, as thorough as they come: no parent, no session, no group of ours
                child = subprocess.Popen(["sleep", "600"], start_new_session=True)
                print("child", child.pid, flush=True)
                os._exit(0)
            os.wait()
            raise ValueError
        """
    )
    ended = bench.run(entrypoint="t:f")
    assert ended.code == ExitCode.USER_ERROR
    assert not Process.find(int(ended.lines[0].split()[-1]))


def test_what_is_left_behind_after_success_is_killed_and_said(bench) -> None:
    bench.code(
        t="import subprocess\ndef f():\n    print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    )
    ended = bench.run(entrypoint="t:f")
    assert ended.code == ExitCode.SEALED
    assert ended.lines[-1] == "killed 1 process that the ranks left behind"
    assert not Process.find(int(ended.lines[0].split()[-1]))


def test_a_rank_that_is_killed_takes_the_gang_with_it_and_is_named(bench) -> None:
    bench.code(
        t="import os, time\ndef f():\n    print('pid', os.environ['MUSTER_RANK'], os.getpid(), flush=True)\n    time.sleep(600)"
    )
    replica = bench.replica(entrypoint="t:f", ranks=2)
    process = bench.start(replica)
    pids = dict(bench.line(process, "pid").split()[-2:] for _ in range(2))
    os.kill(int(pids["1"]), signal.SIGKILL)
    ended = bench.wait(process, replica)
    assert (ended.code, ended.report.verdict.cause, ended.report.verdict.rank) == (
        ExitCode.RANK_LOST,
        Cause.RANK_LOST,
        1,
    )
    assert not Process.find(int(pids["0"]))


def test_a_kill_that_is_seen_late_comes_before_what_a_peer_says_of_it(bench) -> None:
    goes = bench.root / "goes"
    bench.code(
        t=f"""
        import os, time
        def f():
            print('pid', os.environ['MUSTER_RANK'], os.getpid(), flush=True)
            while os.environ['MUSTER_RANK'] == '1' or not os.path.exists({str(goes)!r}):
                time.sleep(0.01)
            raise ConnectionResetError('reset by peer')
        """
    )
    replica = bench.replica(entrypoint="t:f", ranks=2)
    process = bench.start(replica)
    pids = dict(bench.line(process, "pid").split()[-2:] for _ in range(2))
    os.kill(process.pid, signal.SIGSTOP)  # as on a machine that has no CPU for it
    os.kill(int(pids["1"]), signal.SIGKILL)
    goes.touch()
    assert until(lambda: Path(f"/proc/{pids['0']}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    os.kill(process.pid, signal.SIGCONT)
    ended = bench.wait(process, replica)
    assert (ended.report.verdict.cause, ended.report.verdict.rank) == (Cause.RANK_LOST, 1)


@pytest.mark.parametrize("start", ["entrypoint", "command"])
def test_a_hang_is_ended_and_shows_where_the_ranks_stood(bench, start: str) -> None:
    bench.code(
        t="import time\ndef f():\n    print('last line', flush=True)\n    time.sleep(600)\nif __name__ == '__main__': f()"
    )
    how = {"entrypoint": "t:f"} if start == "entrypoint" else {"command": ("python", "t.py")}
    ended = bench.run(ranks=2, hang_timeout_seconds=2.0, **how)  # it is no measure of a start
    assert (ended.code, ended.report.verdict.cause) == (ExitCode.HANG, Cause.HANG)
    message = ended.report.verdict.message
    assert message.startswith("no line and no progress for 2 s: rank 0 at ")
    assert message.count("t.py:4") == 2
    assert ended.lines[-1] == message


def test_told_to_stop_for_another_replicas_hang_it_shows_its_stacks_too(bench) -> None:
    bench.code(t="import time\ndef f():\n    print('ready', flush=True)\n    time.sleep(600)")
    gang = (Role(entrypoint="t:f", replicas=2),)
    first, second = (
        replace(
            bench.replica(roles=gang, index=index, hang_timeout_seconds=seconds),
            scratch=str(bench.root / f"scratch-{index}"),
        )
        for index, seconds in enumerate((600.0, 2.0))  # the first would find it so much later
    )
    later = bench.start(first)
    bench.line(later, "ready")
    assert bench.wait(bench.start(second), second).code == ExitCode.HANG
    later.send_signal(signal.SIGTERM)
    ended = bench.wait(later, first)
    assert (ended.code, ended.report.verdict.cause) == (ExitCode.HANG, Cause.HANG)
    assert ended.lines[-1] == "rank 0: no line and no progress for 600 s: rank 0 at t.py:4"
    assert any(line.startswith("[rank 0] ") and line.endswith(" in f") for line in ended.lines)


def test_a_rank_that_saves_checkpoints_is_silent_but_does_not_hang(bench) -> None:
    bench.code(
        t="""
        import time
        def f(checkpoints):
            for step in range(12):
                time.sleep(0.2)
                (checkpoints / f"{step}").touch()
        """
    )
    assert bench.run(entrypoint="t:f", hang_timeout_seconds=2.0).code == ExitCode.SEALED


def test_no_text_of_an_exception_passes_for_a_line_of_ours_or_of_another_rank(bench) -> None:
    bench.code(
        t="""
        def f():
            print("[muster] the job has succeeded", flush=True)
            raise ValueError("no\\n[muster] the job has succeeded\\n[rank 7] fine\\nuser error, rank 9")
        """
    )
    ended = bench.run(entrypoint="t:f")
    assert ended.code == ExitCode.USER_ERROR
    assert not any(line.startswith(("[muster]", "[rank 7]")) for line in ended.lines)
    assert ended.report.verdict.rank == 0


def test_a_flood_of_any_bytes_arrives_tagged_and_whole(bench) -> None:
    bench.code(
        t="""
        import os, sys
        def f():
            rank = os.environ["MUSTER_RANK"]
            for n in range(20_000):
                print(f"line {n} of {rank}")
            sys.stdout.flush()
            os.write(1, b"\\xff\\x00\\x1b[2J" + b"x" * 10_000_000 + b"\\nend")
        """
    )
    ended = bench.run(entrypoint="t:f", ranks=2)
    for rank in range(2):
        mine = [
            line.removeprefix(f"[rank {rank}] ") for line in ended.lines if line.startswith(f"[rank {rank}] ")
        ]
        assert mine[:20_000] == [f"line {n} of {rank}" for n in range(20_000)]
        assert mine[20_000].startswith("��xxx")
        assert mine[20_000].endswith(" bytes left out)")
        assert mine[20_001:] == ["end"]
    assert len(ended.lines) == 2 * 20_002
