"""Long-lived processes as children: they come back later and later, and nothing of them is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tests.waiting import until

from muster.backends.local.processes import Process, children, descendants
from muster.ext.up import components
from muster.ext.up.components import Component, stop

FORKS = """
    import os, signal, sys, threading, time
    from muster.ext.up.component import forks_die_with_us

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forks_die_with_us()
    if os.fork() == 0 and os.fork() == 0:
        os.setsid()
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Component]]:
    made: list[Component] = []
    yield made
    stop(made, grace_seconds=0)


def component(made: list[Component], folder: Path, script: str, *words: str) -> Component:
    command = [sys.executable, "-c", dedent(script), *words]
    made.append(Component(name="c", command=command, log=folder / "c.log", environment=dict(os.environ)))
    return made[-1]


def written(path: Path, *, count: int) -> list[int]:
    """The pids that processes wrote down, once there are `count`."""
    assert until(lambda: path.exists() and len(path.read_text().split()) == count)
    return [int(pid) for pid in path.read_text().split()]


def gone(pids: list[int]) -> bool:
    return until(lambda: not any(Process.find(pid) for pid in pids))


def test_how_it_ended_is_said_in_words(made: list[Component], tmp_path: Path) -> None:
    code = component(made, tmp_path, "raise SystemExit(3)")
    killed = component(made, tmp_path, "import time; time.sleep(600)")
    for each in (code, killed):
        each.start()
    assert killed.ended() is None
    assert killed.process is not None
    killed.process.kill()
    assert until(lambda: code.ended() and killed.ended())
    assert (code.ended(), killed.ended()) == ("ended with exit code 3", "was killed by SIGKILL")


def test_it_waits_longer_each_time_it_dies_early(made: list[Component], tmp_path: Path) -> None:
    c = component(made, tmp_path, "")
    c.started = time.monotonic()
    assert [c.plan_restart() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    c.started -= components.STEADY_SECONDS + 1
    assert c.plan_restart() == 1


def test_it_shows_the_end_of_its_log(made: list[Component], tmp_path: Path) -> None:
    c = component(made, tmp_path, "for i in range(5000): print('line', i)")
    c.start()
    assert until(c.ended)
    assert c.tail()[-1] == "line 4999"
    assert len(c.tail()) == components.TAIL_LINES


def test_a_large_log_makes_room_while_it_is_written(
    made: list[Component], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = component(
        made, tmp_path, "import sys; print('x' * 100, flush=True); input(); print('after', flush=True)"
    )
    c.start()
    assert until(lambda: c.log.stat().st_size > 100 or c.ended())
    monkeypatch.setattr(components, "LOG_BYTES", 10)
    c.trim_log()
    assert c.log.stat().st_size == 0
    assert c.log.with_suffix(".old").read_text().startswith("xxx")


def test_a_log_that_cannot_be_kept_is_emptied_all_the_same(
    made: list[Component], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = component(made, tmp_path, "")
    c.log.write_text("x" * 100)
    c.log.with_suffix(".old").mkdir()
    monkeypatch.setattr(components, "LOG_BYTES", 10)
    c.trim_log()
    assert c.log.stat().st_size == 0
    c.log.unlink()
    assert c.tail() == []


def test_stop_leaves_nothing_not_even_what_ignores_it_in_a_session_of_its_own(
    made: list[Component], tmp_path: Path
) -> None:
    c = component(made, tmp_path, FORKS, str(tmp_path / "pids"))
    c.start()
    pids = written(tmp_path / "pids", count=3)
    assert c.process is not None
    assert {c.process.pid, *descendants(c.process.pid)} == set(pids)
    stop([c], grace_seconds=0.1)
    assert gone(pids)


def test_a_worker_that_dies_is_missed(made: list[Component], tmp_path: Path) -> None:
    c = component(made, tmp_path, FORKS, str(tmp_path / "pids"))
    c.start()
    written(tmp_path / "pids", count=3)
    assert c.process is not None
    assert not c.lost_worker()
    assert not c.lost_worker()
    (worker,) = children(c.process.pid)
    os.kill(worker, signal.SIGKILL)
    assert until(c.lost_worker)
    assert not c.lost_worker()


def test_nothing_is_left_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = """
        import os, sys, time
        from pathlib import Path
        from muster.ext.up.components import Component

        command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
        Component(name="c", command=command, log=Path(sys.argv[2]).with_suffix(".log"), environment=dict(os.environ)).start()
        time.sleep(600)
    """
    words = [dedent(FORKS), str(tmp_path / "pids")]
    with subprocess.Popen([sys.executable, "-c", dedent(script), *words]) as parent:
        pids = written(tmp_path / "pids", count=3)
        parent.kill()
    assert gone(pids)


def test_a_fork_of_another_thread_lives_as_long_as_its_process(made: list[Component], tmp_path: Path) -> None:
    script = """
        import os, sys, threading, time
        from muster.ext.up.component import forks_die_with_us

        def fork():
            if os.fork() == 0:
                time.sleep(600)

        forks_die_with_us()
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    """
    c = component(made, tmp_path, script, str(tmp_path / "pids"))
    c.start()
    (pid,) = written(tmp_path / "pids", count=1)
    assert len(children(pid)) == 1
