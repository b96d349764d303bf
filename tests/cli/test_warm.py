"""``muster run`` through the process that waits: what comes out is what a run of its own process gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import GUARD_SECONDS, eventually

from muster.cli.warm.place import Note, waiting

pytestmark = pytest.mark.slow

LOOK = """
import json, locale, os, resource, signal, sys, time
from airflow.sdk import dag, task

@dag(schedule=None, params={"word": "none"})
def look():
    @task
    def around() -> None:
        umask = os.umask(0)
        os.umask(umask)
        print(json.dumps({
            "word": "EDITED", "folder": os.getcwd(), "umask": umask, "set": os.environ.get("LOOKED"),
            "encoding": [sys.getfilesystemencoding(), locale.getpreferredencoding(), os.environ.get("PWD")],
            "variables": sorted(name for name in os.environ if not name.startswith("AIRFLOW")),
            "ignored": sorted(int(each) for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }))
    around()

look()

@dag(schedule=None)
def wait():
    @task
    def pause() -> None:
        print("here", os.getpid(), os.getppid(), flush=True)
        while not os.path.exists(os.environ["GATE"]):
            time.sleep(0.05)
        print("through", flush=True)
    pause()

wait()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project; the processes that wait in it are ended."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "dags").mkdir()
    (folder / "dags" / "look.py").write_text(LOOK)
    yield folder
    for note in waiting(folder / ".muster"):
        os.kill(note.pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    other = (
        "MUSTER_HOME",
        "MUSTER_PATCHES",
        "AIRFLOW",
    )  # a test looks at both, with other packages changed and as they are
    kept = {name: value for name, value in os.environ.items() if not name.startswith(other)}
    del kept["MUSTER_NO_WARM"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"PATH": path, "GATE": str(folder / "gate"), "PWD": str(folder)}


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command; it is ended with the test."""
    every = []

    def go(*words: str, **variables: str) -> subprocess.Popen[str]:
        every.append(
            subprocess.Popen(
                ["muster", "run", *words],
                cwd=folder,
                env=environment | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return every[-1]

    yield go
    for process in every:
        process.kill()
        process.communicate()


def around(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, said = run.communicate(timeout=200)
    assert run.returncode == 0, said
    assert json.loads(out)["state"] == "success"
    (line,) = [line for line in said.splitlines() if line.startswith("around | ")]
    return dict(json.loads(line.removeprefix("around | ")))


def notes(folder: Path) -> list[Note]:
    return list(waiting(folder / ".muster"))


def test_a_fork_is_what_a_process_of_its_own_is_and_misses_no_edit(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    alone = around(start("look", "--json", MUSTER_NO_WARM="1"))
    assert notes(folder) == []
    bare = around(start("look", "--json", MUSTER_NO_WARM="1", MUSTER_PATCHES="off"))
    bare["variables"].remove("MUSTER_PATCHES")
    assert bare == alone, "other packages are as they are, and the run, too"
    alone["variables"].remove("MUSTER_NO_WARM")
    assert around(start("look", "--json")) == alone
    assert around(start("look", "--json")) == alone
    (note,) = notes(folder)
    assert note.runs == 2
    opened = [str(each.readlink()) for each in Path(f"/proc/{note.pid}/fd").iterdir()]
    assert not [path for path in opened if path.endswith((".db", ".db-wal", ".log"))]
    assert len(list(Path(f"/proc/{note.pid}/task").iterdir())) == 1

    edited = folder / "dags" / "look.py"
    edited.write_text(edited.read_text().replace("EDITED", "edited"))
    assert around(start("look", "--json")) == alone | {"word": "edited"}
    (folder / "dags" / "look.py").write_text(LOOK)
    assert around(start("look", "--json", LOOKED="1"))["set"] == "1"
    assert len(notes(folder)) == 2, "another environment has another process"

    refused = start("look", "--param", "odd=1")
    out, said = refused.communicate(timeout=GUARD_SECONDS)
    assert (refused.returncode, out) == (1, "")
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("muster: Dag look has no param 'odd'")


@pytest.mark.nightly  # unit/cli/warm/test_place.py
def test_a_module_that_was_imported_and_is_edited_is_read_again(
    start: Callable[..., subprocess.Popen[str]], folder: Path, tmp_path: Path
) -> None:
    module = tmp_path / "sitecustomize.py"
    module.write_text('import os\nos.environ["LOOKED"] = "before"\n')
    os.utime(module, (1e9, 1e9))
    run = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    assert around(start("look", "--json", **run))["set"] == "before"
    before = {note.pid for note in notes(folder)}
    module.write_text('import os\nos.environ["LOOKED"] = "after"\n')
    assert around(start("look", "--json", **run))["set"] == "after"
    assert {note.pid for note in notes(folder)} - before


def here(run: subprocess.Popen[str]) -> tuple[int, int]:
    """The processes of the waiting task and of its run."""
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("pause | here"):
            task, fork = line.split()[-2:]
            return int(task), int(fork)
    raise AssertionError("it ended before")


def gone(*pids: int) -> bool:
    return not any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in pids)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


@pytest.mark.nightly  # test_run.py ends such a run by Ctrl-C
def test_signals_reach_it_and_it_ends_with_its_client_but_not_with_the_process_that_waits(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    run = start("wait")
    ours = here(run)
    run.send_signal(signal.SIGINT)
    assert "stopping: the running jobs are ended" in (run.stderr.readline() if run.stderr else "")
    run.send_signal(signal.SIGINT)  # the second leaves at once
    run.communicate(timeout=GUARD_SECONDS)
    assert run.returncode == 130
    eventually(lambda: gone(*ours))

    run = start("wait")
    ours = here(run)
    run.send_signal(signal.SIGHUP)
    run.communicate(timeout=GUARD_SECONDS)
    assert run.returncode == -signal.SIGHUP
    eventually(lambda: gone(*ours))

    run = start("wait")
    ours = here(run)
    run.kill()
    eventually(lambda: gone(*ours))

    one, other = start("wait"), start("wait", "--json")
    here(one)
    here(other)
    for note in notes(folder):
        os.kill(note.pid, signal.SIGKILL)
    try:
        (folder / "gate").touch()
        out, said = one.communicate(timeout=GUARD_SECONDS)
        assert (one.returncode, "wait succeeded" in out) == (0, True), said
        assert json.loads(other.communicate(timeout=GUARD_SECONDS)[0])["state"] == "success"
    finally:
        (folder / "gate").unlink()
