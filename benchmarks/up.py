"""``muster up`` on its own PostgreSQL and on SQLite, side by side: its start, its rest, clicks beside tasks, and a long schedule.

``python -m benchmarks.up [--minutes 10]``. A click is a PATCH of a Dag or a POST of a run, sent eight at once while 60 mapped tasks run;
``--minutes`` adds as many minutes of clicks, 200 a minute, beside a Dag that Airflow starts each minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import httpx
import psutil
from tests.airflow.clicked import AT_ONCE, SMALL, dags
from tests.site import Site

MANY, CLICKS, REST_SECONDS, A_MINUTE = 60, 50, 30.0, 200
DAGS = (
    dags(MANY)
    + """
@dag(schedule=None, start_date=datetime(2024, 1, 1))
def seven():
    @task
    def stage(number):
        return number + 1

    number = 0
    for _ in range(7):
        number = stage(number)

seven()

@dag(schedule="* * * * *", start_date=datetime(2024, 1, 1), catchup=False)
def minutely():
    @task
    def once():
        return 1

    once()

minutely()
"""
)


class Up(Site):
    """A site on one of the two databases, which is asked over its API alone."""

    def run_to_its_end(self, dag_id: str, run_id: str, *, seconds: float = 900) -> None:
        """Wait for a run by its API: SQLite has no server to ask."""
        end = time.monotonic() + seconds
        while self.run_state(dag_id, run_id) not in ("success", "failed"):
            assert time.monotonic() < end, self.states(dag_id, run_id)
            time.sleep(0.1)

    def of_all(self, what: Callable[[psutil.Process], float]) -> float:
        """The sum of a figure over `muster up` and all of its processes."""
        top = psutil.Process(self.pid)
        found = 0.0
        for process in (top, *top.children(recursive=True)):
            try:
                found += what(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def cpu(self) -> float:
        """CPU-seconds of all that lives now and of what its processes have waited for."""
        return self.of_all(lambda process: sum(process.cpu_times()[:4]))

    def memory(self) -> float:
        """MiB, with what is shared counted once (PSS)."""
        return self.of_all(lambda process: process.memory_full_info().pss) / 2**20


def measure(name: str, minutes: float) -> dict[str, float]:
    """Return the figures of one database."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="muster-up-") as folder, Up(Path(folder)) as site:
        site.write("dags", DAGS)
        if name == "SQLite":
            place = site.home / "up" / "airflow.db"
            site.set("database", sql_alchemy_conn=f"sqlite:///{place}?timeout=30")
        site.up()
        site.stop()
        began = time.monotonic()
        site.up()
        found["up the second time, s"] = time.monotonic() - began
        found["CPU until then, s"] = site.cpu()
        _pause(site, "minutely", True)  # a machine at rest runs nothing
        site.run_to_its_end("seven", site.trigger("seven"))
        began, spent = time.monotonic(), site.cpu()
        site.run_to_its_end("seven", site.trigger("seven"))
        found["seven stages, s"] = time.monotonic() - began
        found["seven stages, CPU-s"] = site.cpu() - spent
        spent = site.cpu()
        time.sleep(REST_SECONDS)
        found["CPU at rest, % of a core"] = 100 * (site.cpu() - spent) / REST_SECONDS
        found["memory, MiB"] = site.memory()
        busy = site.trigger("many")
        found |= _clicks(site, "beside 60 tasks", CLICKS, AT_ONCE)
        site.run_to_its_end("many", busy)
        if minutes:
            _pause(site, "minutely", False)
            found |= _clicks(site, "in the long run", round(minutes * A_MINUTE), AT_ONCE, 60 / A_MINUTE)
        found["tasks tried again"] = _again(site)
    return found


def _pause(site: Up, dag_id: str, paused: bool) -> None:
    while dag_id not in site.dags():
        time.sleep(0.1)
    site.ask_api("PATCH", f"dags/{dag_id}", json={"is_paused": paused})


def _clicks(site: Up, when: str, number: int, at_once: int, pace: float = 0.0) -> dict[str, float]:
    seconds, refused = [], 0
    began = time.monotonic()

    def click(asked: tuple[int, str]) -> None:
        nonlocal refused
        position, dag_id = asked
        time.sleep(max(0.0, began + position * pace - time.monotonic()))
        start = time.monotonic()
        try:
            if position % 2:
                answer = site.client.patch(f"/api/v2/dags/{dag_id}", json={"is_paused": False})
            else:
                answer = site.client.post(f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None})
            refused += answer.status_code >= 500
        except httpx.TransportError:  # no answer in two minutes
            refused += 1
        seconds.append(time.monotonic() - start)

    asked = islice(cycle(dag_id for dag_id in SMALL for _ in range(2)), number)
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(click, enumerate(asked)))
    slowest = sorted(seconds)
    return {
        f"slowest click {when}, s": slowest[-1],
        f"median click {when}, s": slowest[len(slowest) // 2],
        f"5xx or no answer {when}": float(refused),
    }


def _again(site: Up) -> float:
    again, offset = 0, 0
    while True:
        asked = {"limit": 100, "offset": offset}
        page = site.ask_api("GET", "dags/~/dagRuns/~/taskInstances", params=asked)["task_instances"]
        again += sum(ti["try_number"] > 1 or ti["state"] == "failed" for ti in page)
        offset += 100
        if len(page) < 100:
            return float(again)


def main() -> None:
    """Print the figures of both databases, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--only", choices=("PostgreSQL", "SQLite"))
    asked = parser.parse_args()
    for name in [asked.only] if asked.only else ["PostgreSQL", "SQLite"]:
        print(name)
        for what, figure in measure(name, asked.minutes).items():
            print(f"  {what:36}{figure:10.2f}", flush=True)


if __name__ == "__main__":
    main()
