"""Gangs that wait for room on a cluster, followed by one triggerer's hub: what 1,000 cost, against 100.

``python -m tests.cluster exec python -m benchmarks.crowd [--gangs N] [--json]``

The queue is held, so that none begins. Counted is what the hub's own process asks the API server and the
store service within a minute, once it knows all of them. The lag is from an end that somebody records in the
ledger to the trigger that hears of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster import author, kubectl
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.layout import Layout

from muster.backends.base import Backend
from muster.backends.choose import choose_backend
from muster.backends.local.environments import find_image, image_folders, put_image
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState

FEW = 100
WINDOW_SECONDS = 60.0
ENDED = 20
LAG_SECONDS = 2.0
MEMORY_MIB = 400.0
MORE_REQUESTS = 1.2
AT_ONCE = 4


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd")
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.follow:
        print(json.dumps(asyncio.run(_follow(json.loads(options.follow.read_text())))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), gangs=options.gangs)
    print(json.dumps(figures) if options.json else _table(figures))
    return 0 if _kept(figures) else 1


def measure(folder: Path, *, gangs: int) -> list[dict[str, float]]:
    """Return the figures of a few and of all."""
    of = layout()
    with author.served(of), _held(of):
        settings = Settings(
            home=folder / "home", cache=folder / "cache", cluster=author.write_file(of, folder)
        )
        backend = choose_backend(settings)
        names = [f"crowd-{number}" for number in range(gangs)]
        try:
            job = _job(backend)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda name: backend.submit(replace(job, name=name), job_id=name), names))
            return [_measured(folder, settings, some) for some in (names[:FEW], names[ENDED:])]
        finally:
            backend.close()
            words = ("jobsets", f"--namespace={NAMESPACE}", f"--selector={author.OURS}", "--wait")
            kubectl.run(of, "delete", *words)


@contextmanager
def _held(of: Layout) -> Iterator[None]:
    """Let nothing begin."""

    def policy(name: str) -> None:
        change = json.dumps({"spec": {"stopPolicy": name}})
        kubectl.run(
            of, "patch", "clusterqueues.kueue.x-k8s.io", "team-a", "--type=merge", f"--patch={change}"
        )

    policy("Hold")
    try:
        yield
    finally:
        policy("None")


def _job(backend: Backend) -> JobSpec:
    image = put_image(backend.store, find_image("python", image_folders(Settings.load())))
    cards = Resources(cpus=0.1, memory_gib=0.25, gpus=1)
    role = Role(command=("python3", "-c", "pass"), replicas=2, resources=cards)
    return JobSpec(name="crowd", image="python", image_digest=image, roles=(role,))


def _measured(folder: Path, settings: Settings, names: Sequence[str]) -> dict[str, float]:
    """Follow some jobs in a process of its own, as a triggerer does."""
    asked = folder / "asked.json"
    asked.write_text(
        json.dumps({"cluster": str(settings.cluster), "home": str(folder), "names": list(names)})
    )
    words = [sys.executable, "-m", "benchmarks.crowd", "--follow", str(asked)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    print(ran.stdout.splitlines()[-1], file=sys.stderr)  # to clear away takes minutes
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


async def _follow(asked: dict[str, Any]) -> dict[str, float]:
    import airflow.triggers.base  # noqa: F401 - a triggerer has it

    from muster.airflow.attempts import hub as module

    module._SWEEP_AFTER_SECONDS = math.inf  # it asks Airflow, which is not here
    cluster, folder, names = Path(asked["cluster"]), Path(asked["home"]), asked["names"]
    settings = Settings(home=folder / "home", cache=folder / "cache", cluster=cluster)
    counted = _count_requests()
    hub = module.Hub(lambda: choose_backend(settings))
    known, ended = set[str](), dict[str, float]()

    async def follow(name: str) -> None:
        async for news in hub.follow(name):
            known.add(name)
            if news.last:
                ended[name] = time.monotonic()

    began = time.monotonic()
    tasks = [asyncio.create_task(follow(name)) for name in names]
    while len(known) < len(names):
        await asyncio.sleep(0.1)
    first = time.monotonic() - began
    counted.clear()
    cpu = time.process_time()
    await asyncio.sleep(WINDOW_SECONDS)
    cpu = (time.process_time() - cpu) / WINDOW_SECONDS
    requests = dict(counted)
    begun = await asyncio.to_thread(_end_some, settings, names[:ENDED])
    while not begun.keys() <= ended.keys():
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    lags = [ended[name] - begun[name] for name in begun]
    return {
        "gangs": len(names),
        "api_requests_a_minute": requests.get("api", 0) * 60 / WINDOW_SECONDS,
        "store_requests_a_minute": requests.get("store", 0) * 60 / WINDOW_SECONDS,
        "lag_median_seconds": statistics.median(lags),
        "lag_longest_seconds": max(lags),
        "cpu_ms_a_second": cpu * 1000,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "all_known_seconds": first,
    }


def _end_some(settings: Settings, names: Sequence[str]) -> dict[str, float]:
    """Record the end of some jobs, as whoever comes to know of it does; return when each was."""
    backend, begun = choose_backend(settings), {}
    for name in names:
        status = backend.store.ledger.status(name)
        backend.store.ledger.update(replace(status, state=JobState.SUCCEEDED, ended=time.time()))
        begun[name] = time.monotonic()
    backend.close()
    return begun


def _count_requests() -> Counter[str]:
    """Count what this process asks from now on, by whom it asks."""
    from muster.backends.kubernetes.transport import Transport
    from muster.volumes.service.connection import Connection

    counted: Counter[str] = Counter()
    lock, send, sent = threading.Lock(), Transport._send, Connection._sent

    def count(what: str) -> None:
        with lock:
            counted[what] += 1

    def asked_api(self: Transport, *words: Any, **how: Any) -> Any:
        count("api")
        return send(self, *words, **how)

    def asked_store(self: Connection, *words: Any, **how: Any) -> Any:
        count("store")
        return sent(self, *words, **how)

    Transport._send, Connection._sent = asked_api, asked_store  # type: ignore[method-assign]
    return counted


def _kept(figures: Sequence[dict[str, float]]) -> bool:
    few, all_ = figures
    return (
        all_["api_requests_a_minute"] <= MORE_REQUESTS * few["api_requests_a_minute"] + 1
        and all_["lag_longest_seconds"] <= LAG_SECONDS
        and all_["memory_mib"] <= MEMORY_MIB
    )


def _table(figures: Sequence[dict[str, float]]) -> str:
    head = f"{'':28}" + "".join(f"{int(each['gangs']):>10}" for each in figures)
    rows = [
        f"{name.replace('_', ' '):28}" + "".join(f"{each[name]:10.2f}" for each in figures)
        for name in figures[0]
        if name != "gangs"
    ]
    bounds = f"promised: the same API requests, lag below {LAG_SECONDS:g} s, below {MEMORY_MIB:g} MiB"
    return "\n".join([head, *rows, bounds + ("" if _kept(figures) else "  MISSED")])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
