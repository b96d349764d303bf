"""200 waiting jobs: an event loop with muster's triggers, against Airflow's sleeping triggers and against inline waits.

``python -m benchmarks.waiting [--pairs N] [--json]``

A loop's memory is that of its whole process; an inline wait's is only the private memory of a fork. Costs that are the
same in each way (the triggerer's own queries, a worker's supervising process) are left out. An inline wait is a fork of
a process that has imported Airflow, as a LocalExecutor's task is; eight are measured and scaled to 200.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.images.folders import find_image, image_folders, put_image

JOBS = 200
FORKS = 8
SECONDS = 8.0
SETTLE_SECONDS = 3.0

_COMMON = f"""
import asyncio, json, os, sys, time
from datetime import datetime, timedelta, timezone
from pathlib import Path
import logging
logging.disable(logging.CRITICAL)
from airflow.sdk import DAG
from airflow.triggers.base import BaseTrigger
import muster.airflow.attempts.run
names = json.loads(sys.argv[1])

def memory(pid, *kinds):
    rows = dict(line.split(":") for line in Path(f"/proc/{{pid}}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(rows[kind].split()[0]) for kind in kinds) / 1024

def cpu(pid):
    fields = Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def measure(pids, *kinds):
    time.sleep({SETTLE_SECONDS})  # what the start takes is not to be counted
    before = sum(map(cpu, pids))
    time.sleep({SECONDS})  # the time that is measured
    print(json.dumps([sum(memory(pid, *kinds) for pid in pids), (sum(map(cpu, pids)) - before) / {SECONDS} * 1000]))
"""
# The loop runs in a child, like a triggerer's runner, and the parent measures it.
_LOOP = """
child = os.fork()
if child == 0:
    async def drain(trigger):
        async for event in trigger.run():
            pass
    async def main():
        await asyncio.gather(*(drain(trigger) for trigger in triggers()))
    asyncio.run(main())
    os._exit(0)
measure([child], "Rss")
os.kill(child, 9)
"""
_OURS = """
def triggers():
    from muster.airflow.attempts.trigger import JobTrigger
    return [JobTrigger(job_id=name, owner="o") for name in names]
"""
_AIRFLOWS = """
def triggers():
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger
    moment = datetime.now(timezone.utc) + timedelta(hours=4)
    return [DateTimeTrigger(moment=moment) for name in names]
"""
_INLINE = """
children = []
for name in names:
    children.append(os.fork())
    if children[-1] == 0:
        from muster.airflow.attempts.log import TaskLog
        from muster.airflow.site import connect
        from muster.airflow.attempts.waiting import Wait
        log = TaskLog(lambda line: None, job_id=name)
        Wait().follow(connect(), name, lines=log, progress=lambda status: None)
        os._exit(0)
measure(children, "Private_Clean", "Private_Dirty")  # the rest they share
for child in children:
    os.kill(child, 9)
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(Path(folder), pairs=options.pairs)
    return show(f"{JOBS} jobs that wait", ratios, as_json=options.json)


def measure(root: Path, *, pairs: int) -> list[Ratio]:
    """Return the ratios of memory and CPU."""
    settings = Settings.load({**os.environ, "MUSTER_HOME": str(root / "home")})
    backend = Backend(MachinePlace(settings))
    names = _enter(backend, settings)
    try:
        memory, _ = compare(
            lambda: _run(root, _AIRFLOWS + _LOOP, names),
            lambda: _run(root, _OURS + _LOOP, names),
            pairs=pairs,
        )
        inline_memory, inline_cpu = compare(
            lambda: [each * JOBS / FORKS for each in _run(root, _INLINE, names[:FORKS])],
            lambda: _run(root, _OURS + _LOOP, names),
            pairs=pairs,
        )
    finally:
        for name in reversed(names):  # the waiting jobs first, so that none of them gets its turn
            backend.cancel(name)
    return [
        ratio("memory, sleeping triggers", *memory, unit="MiB", limit=1.2),
        ratio("memory, inline waits", *inline_memory, unit="MiB", limit=0.1),
        ratio("CPU, inline waits", *inline_cpu, unit="ms/s", limit=0.05),
    ]


def _enter(backend: Backend, settings: Settings) -> list[str]:
    """Submit jobs of which one runs and all others wait for its memory; return their ids."""
    half = Machine.here().memory_gib * 0.6
    image = put_image(backend.store, find_image("python", image_folders(settings)))
    role = Role(
        command=("python", "-c", "import time; time.sleep(3600)"), resources=Resources(memory_gib=half)
    )
    names = [f"job-{number}" for number in range(JOBS)]
    for name in names:
        spec = JobSpec(name=name, image="python", image_digest=image, roles=(role,))
        backend.submit(spec, job_id=name)
    return names


def _run(root: Path, program: str, names: Sequence[str]) -> list[float]:
    """Run one way to wait and return MiB and milliseconds of CPU a second."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(root / "airflow"),
        "MUSTER_HOME": str(root / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    ran = subprocess.run(
        [sys.executable, "-c", _COMMON + program, json.dumps(list(names))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    figures: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
