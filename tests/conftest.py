"""A home for the Airflow of the test session, set before Airflow is imported: it reads its home only once."""

from __future__ import annotations

import gc
import heapq
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.settings import Settings

LONG_RUN_SECONDS = 60.0
SLOWEST = 10

_MARKS = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)", re.MULTILINE)  # of all tests of a file
_HOME = pytest.StashKey[EmbeddedHome]()


def pytest_configure(config: pytest.Config) -> None:
    """Name the home; it is made ready, which takes longer, for the tests that ask for it."""
    gc.disable()  # what is collected stays: to look through it again and again would take a quarter of the time
    root = Path(tempfile.mkdtemp(prefix="muster-airflow-"))
    (root / "dags").mkdir()
    settings = Settings(home=root / ".muster", cache=Settings.load().cache)
    home = config.stash[_HOME] = EmbeddedHome(settings=settings, dags=root / "dags")
    os.environ["MUSTER_NO_WARM"] = (
        "1"  # no command of a test leaves a process behind, but where that is what is tested
    )
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime writes into ~/.cache/Microsoft otherwise
    worker = hasattr(config, "workerinput")
    if not worker:
        signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN or (worker and number == signal.SIGHUP):
            # By nohup, or `make test &` in a script. What is ignored would be in each program that a test starts, too, and no
            # Ctrl-C would end it; what has a handler is as usual there.
            signal.signal(number, lambda *_: None)
    os.environ.update(
        {name: value for name, value in home.environment().items() if name.startswith("AIRFLOW")}
    )


def _interrupt(*_: object) -> None:
    """End the tests as Ctrl-C does, which reaches the workers too, so that fixtures end the servers that they started."""
    for worker in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(worker), signal.SIGINT)
    raise KeyboardInterrupt


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files of which no test is wanted, by their marks: each worker would import them first."""
    terms = config.option.markexpr.split(" and ")
    unwanted = {each.removeprefix("not ") for each in terms if each.startswith("not ")}
    if collection_path.suffix != ".py" or not all(re.fullmatch(r"(not )?\w+", each) for each in terms):
        return None
    marks = _MARKS.search(collection_path.read_text(encoding="utf-8"))
    return True if marks and unwanted.intersection(re.findall(r"mark\.(\w+)", marks[1])) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave for the night what a contract shows more quickly in another place."""
    if any(item.get_closest_marker(each.args[0]) for each in item.iter_markers("nightly_on")):
        item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the files that hold a slow test first: begun last, one of them keeps a core idle while it waits."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Have garbage collected from here on, without a look at what was made before."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    shutil.rmtree(config.stash[_HOME].dags.parent, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slowest files, of a run that takes its time, so that what a new test costs is seen."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] = seconds.get(file, 0.0) + report.duration
    if sum(seconds.values()) >= LONG_RUN_SECONDS:
        terminalreporter.section(f"slowest {SLOWEST} files")
        for file in heapq.nlargest(SLOWEST, seconds, key=seconds.__getitem__):
            terminalreporter.write_line(f"{seconds[file]:7.1f} s  {file}")


@pytest.fixture(scope="session")
def home(pytestconfig: pytest.Config) -> EmbeddedHome:
    """Make this process an Airflow."""
    made = pytestconfig.stash[_HOME]
    made.enter()
    return made
