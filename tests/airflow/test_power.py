"""The database of `muster up` is killed, and the power goes, while tasks run: nothing is lost, and no success is done again.

Each task writes a line into a file outside of the home, on another disk. `pytest -rP` shows the figures.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.disk import Disk, own_disk
from tests.site import Site
from tests.waiting import until

pytestmark = pytest.mark.soak
KILLS, CUTS, MANY = 20, 10, 12
DAG = """
    import os
    from datetime import datetime, timedelta
    from pathlib import Path
    from time import sleep
    from airflow.sdk import dag, get_current_context, task

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def many():
        @task(retries={retries}, retry_delay=timedelta(seconds=1))
        def one(number):
            sleep(1)  # a task that runs while the database is killed
            with Path("{lines}").open("a") as file:
                file.write(f"{{get_current_context()['run_id']}} {{number}}\\n")

        one.expand(number=list(range({many})))

    many()
"""


class Witness:
    """A site whose tasks say elsewhere that they were done."""

    def __init__(self, site: Site, lines: Path, *, retries: int) -> None:
        self.site, self._lines = site, lines
        self.runs: list[str] = []
        self.known: list[tuple[set[tuple[str, str]], Counter[tuple[str, str]]]] = []
        lines.touch()
        site.write("many", DAG.format(lines=lines, many=MANY, retries=retries))

    def trigger(self) -> None:
        self.runs.append(self.site.trigger("many"))

    def successes(self) -> set[tuple[str, str]]:
        """The instances that Airflow calls a success now."""
        return {
            (run_id, name.removeprefix("one[").removesuffix("]"))
            for run_id in self.runs
            for name, state in self.site.states("many", run_id).items()
            if state == "success"
        }

    def done(self) -> Counter[tuple[str, str]]:
        """How often each instance was done."""
        return Counter((run, number) for run, number in map(str.split, self._lines.read_text().splitlines()))

    def all_end_well(self) -> None:
        """Wait for all runs: each task of each is a success, was done, and not again once Airflow had called it one."""
        assert {self.site.wait("many", run_id, seconds=600) for run_id in self.runs} == {"success"}
        wanted = {(run_id, str(number)) for run_id in self.runs for number in range(MANY)}
        done = self.done()
        assert self.successes() == wanted == done.keys()
        for successes, before in self.known:
            assert {each for each in successes if done[each] > before[each]} == set()

    def await_one_more(self) -> None:
        """Wait until a further task was done, of a new run where the last one has no more."""
        done = self.done()
        if not self.runs or sum(run_id == self.runs[-1] for run_id, _ in done) == MANY:
            self.trigger()
        assert until(lambda: self.done().total() > done.total())

    def done_again(self) -> int:
        """How many tasks were done and lost their process before Airflow knew."""
        return self.done().total() - len(self.runs) * MANY


def _server(site: Site) -> int:
    """The process of the site's PostgreSQL; 0 while it is started again."""
    with suppress(FileNotFoundError, IndexError):
        return int((site.home / "up" / "postgres" / "postmaster.pid").read_text().split()[0])
    return 0


def test_no_success_is_lost_or_done_again_however_often_the_database_is_killed(tmp_path: Path) -> None:
    with Site(tmp_path / "site") as site:
        witness = Witness(site, tmp_path / "lines", retries=0)
        site.up()
        healed = []
        for _ in range(KILLS):
            witness.await_one_more()
            kept, done = witness.successes(), witness.done()
            before, began = _server(site), time.monotonic()
            os.kill(before, signal.SIGKILL)
            assert until(lambda before=before: _server(site) not in (0, before))  # type: ignore[misc]
            assert kept <= witness.successes(), "what was told is true"  # asks until it is answered
            healed.append(time.monotonic() - began)
            witness.known.append((kept, done))
        witness.all_end_well()
        print(
            f"{KILLS} kills, {len(witness.runs)} runs, {len(witness.runs) * MANY} tasks: none lost; {witness.done_again()} were done again, "
            f"whose end Airflow had not called a success; answers again after {sorted(healed)[KILLS // 2]:.1f} s (median), {max(healed):.1f} s (longest)"
        )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with own_disk(tmp_path, size_mib=1024) as disk:
        yield disk


def _cut(site: Site, disk: Disk) -> None:
    """Play a power cut: nothing reaches the disk any more, all processes are gone."""
    disk.cut()
    os.kill(site.pid, signal.SIGKILL)  # the kernel ends all that it has begun

    def off() -> bool:
        for pid in site.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return disk.off()

    assert until(off)
    disk.power_on()


def test_what_airflow_has_called_a_success_outlives_each_power_cut(tmp_path: Path, disk: Disk) -> None:
    moments = random.Random(0)
    with Site(disk.mount / "site") as site:
        witness = Witness(site, tmp_path / "lines", retries=2 * CUTS)
        again = []
        os.sync()
        site.up()
        for _ in range(CUTS):
            witness.await_one_more()
            time.sleep(moments.uniform(0, 1))  # a moment, not a wait for something
            kept = witness.successes()
            _cut(site, disk)
            before = witness.done()
            began = time.monotonic()
            site.up(seconds=600)
            again.append(time.monotonic() - began)
            assert kept <= witness.successes(), "what was told is true"
            witness.known.append((kept, before))
        witness.all_end_well()
        print(
            f"{CUTS} power cuts, {len(witness.runs)} runs, {len(witness.runs) * MANY} tasks: none lost; "
            f"{witness.done_again()} were done again, whose end Airflow had not called a success; up again after "
            f"{sorted(again)[CUTS // 2]:.1f} s (median), {max(again):.1f} s (longest)"
        )
