"""A Dag whose tasks each fail in a way of their own, and what the page shows of them.

``python -m tests.e2e.faulty`` runs it under a whole Airflow and prints the last 20 lines of each task's log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.site import Site
from tests.waiting import until

LAST_LINES = 20
SHOWN = ("user_error", "killed", "grows", "hangs", "missing_input", "cancelled")
DAG = """\
from datetime import timedelta

from airflow.sdk import dag

from muster.airflow import GangOperator, Resources

SMALL = Resources(memory_gib=0.25)


def gang(name, **more):
    more = {"image": "python", "resources": SMALL, "replicas": 2, "entrypoint": f"faults.bad:{name}"} | more
    return GangOperator(task_id=name, **more)


@dag(schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)})
def faults():
    gang("user_error")
    gang("killed", max_restarts=1)
    gang("killed_once", outputs={"model": "faults/model"}, max_restarts=1)
    gang("grows")
    gang("hangs", hang_timeout=timedelta(seconds=6), max_restarts=1)  # nine gangs start at once
    gang("diverged")
    gang("missing_input", inputs={"features": "volume://no/such@7"})
    gang("cancelled", entrypoint="faults.bad:sleeps")
    gang("too_slow", entrypoint="faults.bad:sleeps", run_timeout=timedelta(seconds=2))
    gang("too_big", entrypoint="faults.bad:sleeps", resources=Resources(memory_gib=100_000))
    gang("no_image", entrypoint="faults.bad:sleeps", image="broken")


@dag(schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)})
def misspelt():  # no stage of such a Dag is started
    gang("before", entrypoint="faults.bad:sleeps") >> gang("spec_error", params={"epoch": 3})


faults()
misspelt()
"""
BAD = """\
import os
import signal
import time
from pathlib import Path

RANK = os.environ.get("RANK")


def user_error() -> None:
    for step in range(20):
        print(f"step {step}", flush=True)
    if RANK == "1":
        time.sleep(0.5)
        check([3, -1])
    time.sleep(60)


def check(rows: list[int]) -> None:
    for row in rows:
        if row < 0:
            raise ValueError(f"row {row} is negative")


def killed() -> None:
    print("training", flush=True)
    time.sleep(0.3)
    if RANK == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def killed_once(model: Path, checkpoints: Path) -> dict[str, float]:
    first = not (checkpoints / f"seen-{RANK}").exists()
    (checkpoints / f"seen-{RANK}").touch()
    (model / f"weights-{RANK}").write_text("1")
    if first:
        killed()
    return {"auc": 0.5}


def grows() -> None:
    held = []
    for step in range(1, 65):
        if RANK == "1":
            held.append(bytearray(b"x" * (16 << 20)))
            print(f"{16 * step} MiB held", flush=True)
        time.sleep(0.05)
    time.sleep(60)


def hangs() -> None:
    print("muster: epoch=1/3", flush=True)
    if RANK == "0":
        gathers()
    waits()


def gathers() -> None:
    time.sleep(600)


def waits() -> None:
    time.sleep(600)


def spec_error(*, epochs: int) -> None:
    pass


def diverged() -> dict[str, float]:
    return {"loss": float("nan")}


def missing_input(features: Path) -> None:
    pass


def sleeps() -> None:
    print("up", flush=True)
    time.sleep(600)
"""
# What the page shows above the log once and not in each line: Airflow's own list, "Task Identity".
_IDENTITY = ("ti_id", "dag_id", "task_id", "run_id", "try_number", "map_index")
_SOURCE = ("logger", "chan", "lineno", "filename", "loc")  # what it shows only where asked for


def write(site: Site) -> None:
    """Write the Dag, its code and its image that cannot be built."""
    folder = site.write("faults", DAG, bad=BAD)
    (folder / "images" / "broken").mkdir(parents=True)
    (folder / "images" / "broken" / "requirements.txt").write_text(
        "!! this is no requirement --hash=sha256:0\n"
    )


def run(site: Site) -> str:
    """Run the Dag to its end, cancelling what waits for that, and return the run's id."""
    run_id = site.trigger("faults")
    assert until(lambda: site.running("faults.cancelled"), seconds=120), site.jobs()
    (job,) = site.running("faults.cancelled")
    assert site.muster("jobs", "cancel", job).returncode == 0
    site.wait("faults", run_id)
    return run_id


def shown(site: Site, run_id: str, task: str, *, dag: str = "faults", try_number: int = 1) -> list[str]:
    """A task's log, line by line, in the words and the order in which the page shows it."""
    path = f"dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/{try_number}"
    events = site.ask_api("GET", path, params={"full_content": True})["content"]
    return [line for event in events for line in _lines(event)]


def _lines(event: Mapping[str, Any] | str) -> list[str]:
    if isinstance(event, str):
        return event.splitlines()
    more = {name: value for name, value in event.items() if name not in _IDENTITY + _SOURCE}
    level, text = str(more.pop("level", "")).upper(), more.pop("event")
    more.pop("timestamp", None)
    details = more.pop("error_detail", None) or ()
    said = "".join(f" {name}={value}" for name, value in more.items())
    lines = f"{level} - {text}{said}".splitlines()
    for detail in details:
        lines += f"{detail['exc_type']}: {detail['exc_value']}".splitlines()
        lines += [
            f"    File {at['filename']}, line {at['lineno']} in {at['name']}" for at in detail["frames"]
        ]
    return lines


def told(title: str, lines: Sequence[str]) -> str:
    """Write what a log ends with, below a title."""
    return "\n".join(["", f"===== {title}", *lines[-LAST_LINES:]])


def main() -> None:
    """Print the last 20 lines of each log that a newcomer has to understand."""
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder)) as site:
        write(site)
        site.up()
        run_id = run(site)
        for task in SHOWN:
            tries = site.task("faults", run_id, task)["try_number"]
            print(told(f"{task}, try {tries}", shown(site, run_id, task, try_number=tries)))


if __name__ == "__main__":
    main()
