"""The release before this one and this one on one store, one ledger and one machine, each in processes of its own.

The earlier one is built from the repository's history, once, into the cache.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from muster.core.settings import Settings

ROOT = Path(__file__).parents[3]
ACT = Path(__file__).with_name("act.py")
EARLIER = "3c73ecb"
PAIRS = [("earlier", "this"), ("this", "earlier")]

pytestmark = pytest.mark.slow


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


@pytest.fixture(scope="module")
def earlier() -> Path:
    """The folder into which the earlier release's wheel is installed, without what it needs, which is the same."""
    from uv import find_uv_bin

    found = git("rev-parse", "--verify", "--quiet", f"{EARLIER}^{{commit}}")
    if found.returncode:
        pytest.skip(f"commit {EARLIER} is not in this checkout's history: git fetch --unshallow brings it")
    home = Settings.load().cache / "releases" / found.stdout.decode().strip()
    if not home.is_dir():
        home.parent.mkdir(exist_ok=True)
        source, made = (home.with_name(f"{home.name}.{os.getpid()}.{part}") for part in ("source", "made"))
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=git("archive", EARLIER).stdout, check=True)
        python = ["--python", sys.executable]
        build = [find_uv_bin(), "build", "--quiet", "--wheel", "--no-build-isolation", *python, "--out-dir"]
        subprocess.run([*build, source / "dist", source], check=True)
        (wheel,) = (source / "dist").glob("*.whl")
        install = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", *python, "--target", made, wheel]
        subprocess.run(install, check=True)
        subprocess.run(["rm", "-r", source], check=True)
        try:
            made.rename(home)
        except OSError:  # another process of these tests was first
            subprocess.run(["rm", "-r", made], check=True)
    return home


class Machine:
    """A home that both releases use."""

    def __init__(self, folder: Path, earlier: Path) -> None:
        self.folder = folder
        self._paths = {"earlier": str(earlier), "this": str(ROOT / "operators")}

    def act(self, release: str, act: str, *words: str) -> Any:
        """Have a release do something; see act.py."""
        done = self.run(release, [str(ACT), str(self.folder), act, *words])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def command(self, release: str, *words: str) -> str:
        """Run ``muster`` of a release; what it printed."""
        done = self.run(release, ["-m", "muster", *words])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def put(self, release: str, text: str) -> str:
        """Commit a version of two/rows that holds `text`; its address."""
        source = self.folder / f"source-{text}"
        source.mkdir()
        (source / "rows.csv").write_text(text)
        self.command(release, "volumes", "put", str(source), "two/rows")
        return str(self.act(release, "versions", "two/rows")[-1])

    def ask(self, release: str, url: str, token: str, act: str) -> Any:
        """Have a release ask a store service; see ask.py."""
        done = self.run(release, [str(ACT.with_name("ask.py")), url, token, str(self.folder), act])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def run(self, release: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run Python with a release on its import path."""
        return subprocess.run(
            [sys.executable, *words],
            env=self._environment(release),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, release: str, words: list[str]) -> subprocess.Popen[bytes]:
        """The same, not waited for; its output is in service.log."""
        with (self.folder / "service.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                env=self._environment(release),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def _environment(self, release: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": self._paths[release],
            "MUSTER_HOME": str(self.folder / "home"),
            "MUSTER_CACHE": str(Settings.load().cache),
        }


@pytest.fixture
def machine(tmp_path: Path, earlier: Path) -> Machine:
    return Machine(tmp_path, earlier)


def test_these_are_two_releases(machine: Machine) -> None:
    where = "import muster, sys; print(muster.__file__, file=sys.stdout)"
    found = {name: machine.run(name, ["-c", where]).stdout for name in ("earlier", "this")}
    assert EARLIER in found["earlier"]
    assert found["this"].startswith(str(ROOT))


@pytest.mark.parametrize(("writes", "reads"), PAIRS)
def test_what_one_commits_the_other_reads_and_checks(machine: Machine, writes: str, reads: str) -> None:
    address = machine.put(writes, "first")
    assert machine.act(reads, "read", address)["files"] == {"rows.csv": "first"}
    second = machine.put(reads, "second")
    assert machine.act(writes, "versions", "two/rows") == [address, second]
    for release in (reads, writes):
        machine.command(release, "volumes", "fsck", "--deep")


@pytest.mark.parametrize(("begins", "goes_on"), PAIRS)
def test_a_gang_that_one_started_is_followed_to_its_end_by_the_other(
    machine: Machine, begins: str, goes_on: str
) -> None:
    """An upgrade in the middle of a running gang, and a rollback."""
    rows = machine.put(begins, "rows")
    machine.act(begins, "submit", "gang-1", rows)
    eventually(lambda: machine.act(goes_on, "look", "gang-1") == "running", seconds=60)
    found = machine.act(goes_on, "end", "gang-1")
    assert (found["state"], found["made"]) == ("succeeded", ["volume://two/made@1"])
    assert any("up 0" in line for line in found["lines"])
    assert any("up 1" in line for line in found["lines"])
    made = machine.act(goes_on, "read", "two/made@1")
    assert made == {"files": {"0": "rank 0", "1": "rank 1"}, "job": "gang-1"}
    assert machine.act(begins, "look", "gang-1") == "succeeded"


@pytest.mark.parametrize(("begins", "ends"), PAIRS)
def test_a_gang_that_one_started_is_cancelled_by_the_other(machine: Machine, begins: str, ends: str) -> None:
    machine.act(begins, "submit", "gang-2", machine.put(begins, "rows"))
    assert machine.act(ends, "cancel", "gang-2") == "cancelled"
    assert machine.act(begins, "look", "gang-2") == "cancelled"
    assert machine.act(begins, "versions", "two/rows") == ["volume://two/rows@1"]


@pytest.mark.parametrize(("writes", "reads"), PAIRS)
def test_a_trigger_that_one_kept_is_made_by_the_other(machine: Machine, writes: str, reads: str) -> None:
    """The triggerer may be upgraded, or rolled back, while tasks wait."""
    keep = (
        "import json; from muster.airflow.attempts.trigger import JobTrigger; "
        "print(json.dumps(JobTrigger(job_id='a-1', owner='o', cursor='7', deadline=5.0).serialize()))"
    )
    kept = machine.run(writes, ["-c", keep])
    path, given = json.loads(kept.stdout.splitlines()[-1])
    module, _, name = path.rpartition(".")
    make = f"import json; from {module} import {name} as T; print(json.dumps(T(**{given!r}).serialize()))"
    made = machine.run(reads, ["-c", make])
    assert made.returncode == 0, made.stderr
    again = json.loads(made.stdout.splitlines()[-1])
    assert {name: value for name, value in again[1].items() if value is not None} == given


@pytest.fixture
def serve(machine: Machine) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Start the store service of a release, in place of the one before; its URL and an operator's token."""
    key = machine.folder / "key"
    key.write_text("k" * 32)
    running: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def go(release: str) -> tuple[str, str]:
        stop()
        service = ["-m", "muster.volumes.service", "--key", str(key)]
        token = machine.run(release, [*service, "--print-token", "1"]).stdout.strip()
        served = ["--store", str(machine.folder / "store"), "--port", str(port)]
        running.append(machine.start(release, [*service, *served]))

        def answers() -> bool:
            assert running[0].poll() is None
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(answers, seconds=30)
        return f"http://127.0.0.1:{port}", token

    def stop() -> None:
        for process in running:
            process.kill()
            process.wait()
        running.clear()

    yield go
    stop()


@pytest.mark.parametrize(("serves", "asks"), PAIRS)
def test_a_service_of_one_is_asked_by_the_other(
    machine: Machine, serve: Callable[[str], tuple[str, str]], serves: str, asks: str
) -> None:
    """The chart may be upgraded before Airflow, and Airflow before the chart; then the service changes."""
    whole = {
        "rows": "rows",
        "pins": ["in the paper"],
        "partition": "2013-01",
        "note": "by hand",
        "spec": True,
        "state": "running",
        "owner": "try-1",
        "log": "a line\n",
        "attempt": 1,
        "kept": ["volume://two/rows@1"],
        "sound": True,
    }
    where = serve(serves)
    assert machine.ask(asks, *where, "write") == "volume://two/rows@1"
    assert machine.ask(asks, *where, "read") == whole
    assert machine.ask(serves, *where, "read") == whole
    assert machine.ask(serves, *serve(asks), "read") == whole
