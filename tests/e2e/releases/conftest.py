"""Earlier releases, built from the repository's history; what was tried with them is told at the end, as a table."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.releases.machine import ROOT, Machine
from tests.e2e.releases.table import EARLIER, NAME, rows, table, tried_by
from tests.ports import free_port
from tests.waiting import eventually

from muster.core.settings import Settings


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


@pytest.fixture(scope="session", params=EARLIER)
def earlier(request: pytest.FixtureRequest) -> Path:
    """The folder into which an earlier release's wheel is installed, without what it needs, which is the same."""
    commit = str(request.param)
    found = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        said = f"commit {commit} is not in this checkout's history: git fetch --unshallow brings it"
        if os.environ.get("MUSTER_REQUIRE_HISTORY") == "1":
            pytest.fail(said)
        pytest.skip(said)
    return _built(found.stdout.decode().strip())


def _built(commit: str) -> Path:
    """Build a commit's wheel, once, into the cache."""
    from uv import find_uv_bin

    home = Settings.load().cache / "releases" / commit
    if not home.is_dir():
        home.parent.mkdir(exist_ok=True)
        source, made = (home.with_name(f"{home.name}.{os.getpid()}.{part}") for part in ("source", "made"))
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=git("archive", commit).stdout, check=True)
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


@pytest.fixture
def machine(tmp_path: Path, earlier: Path) -> Machine:
    return Machine(tmp_path, earlier)


@pytest.fixture
def serve(machine: Machine) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Start the store service of a release, in place of the one before; its URL and an operator's token."""
    key = machine.folder / "key"
    key.write_text("k" * 32)
    running: list[subprocess.Popen[bytes]] = []
    port = free_port()

    def go(release: str) -> tuple[str, str]:
        stop()
        service = ["-m", "muster.volumes.service", "--key", str(key)]
        token = machine.run(release, [*service, "--print-token", "1"]).stdout.strip()
        served = ["--store", str(machine.folder / "store"), "--port", str(port)]
        running.append(machine.start(release, [*service, *served]))

        def answers() -> bool:
            assert running[0].poll() is None, (machine.folder / "service.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(answers)
        return f"http://127.0.0.1:{port}", token

    def stop() -> None:
        for process in running:
            process.kill()
            process.wait()
        running.clear()

    yield go
    stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note with a test's report what it tried."""
    report = yield
    if row := tried_by(item):
        report.user_properties.append((NAME, row))
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found := rows(terminalreporter):
        terminalreporter.section("two releases side by side")
        terminalreporter.write_line(table(found))
