"""A head and workers of an engine, by a stand-in for Dask: the worker's own part, without the 130 MB of an engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS

from muster.core.errors import SpecError
from muster.core.job import Launcher, Role
from muster.core.replica import Replica
from muster.core.resources import Resources
from muster.core.verdict import Cause, ExitCode
from muster.worker.launchers import engine, spark
from muster.worker.launchers.launcher import launcher_of

# It says who it is before it listens.
HEAD = """
import os, socket, sys

with open(os.environ["TMPDIR"] + "/head", "w") as file:
    file.write(str(os.getpid()))
door = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    door.accept()[0].close()
"""
KILLS_THE_HEAD = """
import os, signal, sys, time
from pathlib import Path

os.kill(int(Path(os.environ["TMPDIR"], "head").read_text()), signal.SIGKILL)
"""
LOST = "the engine's head ended (killed by SIGKILL) while the driver ran"


@pytest.fixture
def gang(bench, tmp_path: Path, worker: Path) -> Callable[..., Replica]:
    """Makes a replica of a gang of an engine: the first one runs a script."""
    folder = tmp_path / "image" / "distributed" / "cli"
    folder.mkdir(parents=True)
    for file, text in ((folder.parent / "__init__.py", ""), (folder / "dask_scheduler.py", HEAD)):
        file.write_text(text)
    bench.environment["PYTHONPATH"] = str(tmp_path / "image")

    def make(script: str = "", *, index: int = 0, launcher: str = "dask", **given) -> Replica:
        (bench.root / "code").mkdir(exist_ok=True)
        roles = (
            Role(replicas=2, command=("python", "-c", script), resources=Resources(cpus=3, memory_gib=4)),
        )
        return bench.replica(roles=roles, index=index, launcher=launcher, port=free_port(), **given)

    return make


def run(bench, replica: Replica):
    return bench.wait(bench.start(replica), replica)


@pytest.mark.parametrize(
    "after",
    [
        "raise ConnectionError('nobody answers')",
        pytest.param("time.sleep(600)", marks=pytest.mark.slow),  # it gets three seconds to end by itself
        pytest.param(
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); time.sleep(600)", marks=pytest.mark.slow
        ),
    ],
)
def test_a_driver_whose_head_is_lost_is_no_ones_fault(
    bench, gang: Callable[..., Replica], after: str
) -> None:
    ended = run(bench, gang(f"{KILLS_THE_HEAD}\n{after}"))
    assert ended.code == ExitCode.RANK_LOST, ended.log
    assert (ended.report.verdict.cause, ended.report.verdict.message) == (Cause.RANK_LOST, LOST)
    assert ended.lines[-1] == LOST


# Who watches both has no CPU until both have ended.
UNDER_A_WATCHER_THAT_SLEEPS = """
import os, signal, subprocess, sys
from pathlib import Path

watcher, head = os.getppid(), Path(os.environ["TMPDIR"], "head").read_text()
ended = '''
import os, signal, sys, time
watcher, *others = sys.argv[1:]
def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
print("begun", flush=True)
while [state(pid) for pid in others] != ["Z", "Z"]:
    time.sleep(0.001)
os.kill(int(watcher), signal.SIGCONT)
'''
words = [sys.executable, "-c", ended, str(watcher), str(os.getpid()), head]
subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
os.kill(watcher, signal.SIGSTOP)
os.kill(int(head), signal.SIGKILL)
raise ConnectionError("nobody answers")
"""


def test_a_cluster_that_a_script_would_make_itself_is_the_gang(bench, gang: Callable[..., Replica]) -> None:
    ended = run(bench, gang("raise TypeError(\"Unexpected keyword arguments: ['n_workers']\")"))
    assert "write Client() without n_workers" in ended.report.verdict.advice


def test_a_head_whose_end_is_seen_after_its_drivers_is_the_reason(
    bench, gang: Callable[..., Replica]
) -> None:
    ended = run(bench, gang(UNDER_A_WATCHER_THAT_SLEEPS))
    assert (ended.code, ended.report.verdict.message) == (ExitCode.RANK_LOST, LOST), ended.log


def test_a_head_that_its_driver_shuts_down_is_the_drivers_own_doing(
    bench, gang: Callable[..., Replica], tmp_path: Path
) -> None:
    head = tmp_path / "image" / "distributed" / "cli" / "dask_scheduler.py"
    head.write_text(f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{HEAD}")
    wait = "while Path('/proc', head).exists():\n    time.sleep(0.01)"
    ended = run(
        bench,
        gang(
            "import os, signal, time\nfrom pathlib import Path\n"
            "head = Path(os.environ['TMPDIR'], 'head').read_text()\nos.kill(int(head), signal.SIGTERM)\n"
            f"{wait}\nraise ConnectionError('nobody answers')"
        ),
    )
    assert ended.code == ExitCode.USER_ERROR, ended.log
    assert ended.report.verdict.message == "ConnectionError: nobody answers"


# It ends after the driver, as Spark's JVM does.
LEAVES_A_CHILD = """
import subprocess, sys

child = subprocess.Popen([sys.executable, "-c", '''
import os, socket, sys, time
print("begun", file=sys.stderr, flush=True)
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.001)
time.sleep(0.6)  # as a JVM's end may take
host, _, port = os.environ["DASK_SCHEDULER_ADDRESS"].removeprefix("tcp://").partition(":")
socket.create_connection((host, int(port))).close()
print("the head still answers")
''', str(os.getpid())], stderr=subprocess.PIPE)
child.stderr.readline()
"""


def test_a_head_outlives_what_its_driver_leaves_behind(bench, gang: Callable[..., Replica]) -> None:
    ended = run(bench, gang(f"import os\n{LEAVES_A_CHILD}"))
    assert ended.code == ExitCode.SEALED, ended.log
    assert [line for line in ended.lines if line.startswith("[rank")] == ["[rank 0] the head still answers"]


def test_a_driver_that_is_done_needs_no_head(bench, gang: Callable[..., Replica]) -> None:
    ended = run(bench, gang(KILLS_THE_HEAD))
    assert ended.code == ExitCode.SEALED, ended.log


def test_a_driver_that_fails_with_a_head_that_lives_is_told_as_any(
    bench, gang: Callable[..., Replica]
) -> None:
    ended = run(bench, gang("raise ValueError('no rows')"))
    assert ended.report.verdict.message == "ValueError: no rows"


def test_a_taken_port_is_told_before_any_script_runs(
    bench, gang: Callable[..., Replica], monkeypatch
) -> None:
    monkeypatch.setattr(engine, "FREE_SECONDS", 0.0)
    replica = gang()
    with (
        socket.create_server(("127.0.0.1", replica.master_port)),
        pytest.raises(
            OSError, match=rf"cannot listen at 127.0.0.1:{replica.master_port}: another program does"
        ),
    ):
        engine.lead(replica, ("true",), os.environ, host="127.0.0.1")


@pytest.mark.parametrize("launcher", ["dask", "ray", "spark"])
def test_a_worker_that_comes_after_the_end_meets_nobody_and_ends_well(
    gang: Callable[..., Replica], launcher: str, tmp_path: Path, monkeypatch
) -> None:
    late = gang(index=1, launcher=launcher)
    Path(late.sealed).with_name("main-0.json").touch()
    monkeypatch.setattr(engine, "package", lambda name, **_: str(tmp_path))
    environment = {"SPARK_HOME": "/spark", "SPARK_CONF_DIR": str(tmp_path)}
    module = launcher_of(Launcher(launcher))
    assert module.meet(late, [environment]) == []
    rank = subprocess.run(module.worker(late, environment), check=False, timeout=GUARD_SECONDS)
    assert rank.returncode == 0


def test_a_worker_that_comes_before_the_head_waits_for_it(gang: Callable[..., Replica], monkeypatch) -> None:
    asked: list[str] = []

    def look_up(host: str) -> str:
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror("not known yet")
        return "127.0.0.1"

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    early = replace(gang(index=1), master_address="count-main-0-0")
    with socket.create_server(("127.0.0.1", early.master_port)):
        engine.await_head(early, host=early.master_address)
    assert asked == ["count-main-0-0"] * 2


def kept(
    replica: Replica, program: str, monkeypatch, limits: str, *, head: bool = True
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setattr(engine, "LIMITS", limits)
    words = engine.kept(replica, (sys.executable, "-c", program, replica.sealed), host="127.0.0.1")
    with socket.create_server(("127.0.0.1", replica.master_port)) if head else nullcontext():
        return subprocess.run(words, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False)


# Its last word says where it writes how often it has begun.
COUNTS = """
import sys, time
from pathlib import Path

begun = Path(sys.argv[-1]).with_name("begun")
number = int(begun.read_text()) + 1 if begun.exists() else 1
begun.write_text(str(number))
"""


def test_a_worker_that_lived_a_while_may_fail_as_often_as_a_new_one(
    gang: Callable[..., Replica], monkeypatch
) -> None:
    replica = gang(index=1)
    program = f"{COUNTS}\nif number == 3: time.sleep(3.1)\nsys.exit(3)"
    ended = kept(replica, program, monkeypatch, "3 3 5 0 0.02")
    assert "it ended 3 times within 3 s of its start, with exit status 3" in ended.stderr
    assert ended.returncode == 1
    assert Path(replica.sealed).with_name("begun").read_text() == "6"  # two, the one that lived, three


def test_a_worker_that_is_told_to_end_is_begun_anew_more_often(
    gang: Callable[..., Replica], monkeypatch
) -> None:
    replica = gang(index=1)
    seals = f"{COUNTS}\nif number == 6: Path(sys.argv[-1]).with_name('main-0.json').touch()"
    assert kept(replica, seals, monkeypatch, "20 3 9 0 0.02").returncode == 0
    ended = kept(gang(index=1, attempt=2), "pass", monkeypatch, "20 3 4 0 0.02")
    assert ended.returncode == 0, "the first replica has sealed"
    Path(replica.sealed).with_name("main-0.json").unlink()
    ended = kept(replica, "pass", monkeypatch, "20 3 4 0 0.02")
    assert "it ended 4 times within 20 s of its start, with exit status 0" in ended.stderr


def test_no_worker_is_begun_anew_once_the_head_has_gone(gang: Callable[..., Replica], monkeypatch) -> None:
    replica = gang(index=1)
    seals = "import subprocess; subprocess.Popen(['sh', '-c', f'sleep 1; touch {sys.argv[-1]}'])"
    program = f"{COUNTS}\nsys.argv[-1] = sys.argv[-1].replace('main-1', 'main-0')\n{seals}"
    ended = kept(replica, program, monkeypatch, "20 3 99 0 0.02", head=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert Path(replica.sealed).with_name("begun").read_text() == "1"


def test_a_worker_that_never_reaches_a_head_is_an_error(gang: Callable[..., Replica], monkeypatch) -> None:
    ended = kept(gang(index=1), "raise SystemExit(3)", monkeypatch, "2 2 99 0 0.02", head=False)
    assert ended.returncode == 1
    assert "it ended 2 times within 2 s of its start, with exit status 3" in ended.stderr


def test_each_task_of_spark_has_its_part_of_pythons_memory(gang: Callable[..., Replica]) -> None:
    settings = spark.settings_of(gang(index=1, launcher="spark"))
    assert settings["spark.executor.cores"] == "3"
    assert settings["spark.executor.memory"] == "2048m"
    assert settings["spark.executor.pyspark.memory"] == f"{3 * 768}m"  # two fifths of 4 GiB are 1638


def test_a_ray_that_asks_for_no_token_is_refused(tmp_path: Path, monkeypatch) -> None:
    for name, text in (
        ("ray/__init__.py", ""),
        ("ray-2.9.0.dist-info/METADATA", "Name: ray\nVersion: 2.9.0\n"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert engine.package("ray", image="mine", least=(2, 9)) == str(tmp_path / "ray")
    with pytest.raises(
        SpecError, match=r"^image mine has ray 2\.9\.0: need 2\.52 or newer, lock the image again"
    ):
        engine.package("ray", image="mine", least=(2, 52))


def test_the_head_of_ray_has_no_cpus_and_no_gpus(
    gang: Callable[..., Replica], monkeypatch, tmp_path: Path
) -> None:
    words: list[str] = []
    monkeypatch.setattr(engine, "package", lambda name, **_: str(tmp_path))
    monkeypatch.setattr(engine, "lead", lambda replica, given, environment, host: words.extend(given) or 1)
    assert launcher_of(Launcher.RAY).meet(gang(launcher="ray", gpus=("0",)), [{}]) == [1]
    for name in ("--num-cpus", "--num-gpus"):
        assert words[words.index(name) + 1] == "0"
