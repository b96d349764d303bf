"""Gangs that wait in a queue, on one triggerer: its API calls, its lag after a job's end, and its memory.

The triggerer is a process with Airflow, the provider's connection and muster's triggers in one event loop,
without a triggerer's own database queries. It counts its API calls, by verb and kind. A window begins when the gangs
are listed, and is as long as a watch. The API server ends each watch once in that time, so that windows of this
length count the same number of watches and of sweeps; shorter ones would vary.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

from tests.cluster import kubectl
from tests.cluster.inside import phases

from benchmarks.cluster_site import MUSTER, Site
from benchmarks.pairs import Ratio, ratio
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

FEW = 10
PROBES = 5
AT_ONCE = 8
SETTLE_SECONDS, WINDOW_SECONDS = 45.0, 300.0  # a watch ends after 300
LAG_SECONDS, MEMORY_MB, COMMAND_SECONDS = 2.0, 400.0, 1.0
CALLS_RATIO = 1.25  # one call more: a connection that broke
SECONDS = 300.0
COMMANDS = 5

_TRIGGERER = """
import asyncio, json, os, sys, threading, time
from collections import Counter
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what is logged
from airflow.sdk import DAG
from airflow.triggers.base import BaseTrigger
import muster.airflow.attempts.run
from muster.airflow.attempts import task_state
from muster.airflow.attempts.trigger import JobTrigger
from muster.backends.kubernetes.api.transport import Transport
from muster.volumes.service.connection import Connection

asked = Counter()

def tell(kind, *words):
    print(json.dumps([kind, *words]), file=told, flush=True)

def counted(send, name):
    def count(self, *words, **how):
        asked[name(*words)] += 1
        return send(self, *words, **how)
    return count

Transport._send = counted(Transport._send, lambda request, *_: f"{request.verb} {request.kind.plural if request.kind else ''}")
Connection.sent = counted(Connection.sent, lambda *_: "store")
task_state.ask = lambda origin: "deferred"  # what Airflow says; it is not here

async def wait(job_id):
    async for _ in JobTrigger(job_id=job_id, owner="benchmark").run():
        tell("fired", job_id, time.time())

def answer():
    for _ in sys.stdin:
        tell("asked", dict(asked))

async def main():
    names = json.loads(sys.stdin.readline())
    threading.Thread(target=answer, daemon=True).start()
    await asyncio.gather(*map(wait, names))

asyncio.run(main())
"""


def measure(site: Site, *, waiting: int) -> list[Ratio]:
    """Return the promised figures with this number of waiting gangs."""
    crowd = Crowd(site)
    crowd.hold()
    probes = crowd.submit(
        "probe", PROBES, Role(command=("python", "-c", "pass"), resources=_cards("gpu-k80", 4))
    )
    gangs = crowd.submit("waits", FEW, _gang())
    with Triggerer(site, [*gangs, *probes]) as triggerer:
        few = triggerer.calls_a_minute()
    gangs += crowd.submit("waits", waiting - FEW, _gang(), first=FEW)
    with Triggerer(site, [*gangs, *probes]) as triggerer:
        many = triggerer.calls_a_minute()
        commands = [crowd.gpus_seconds() for _ in range(COMMANDS)]
        lags = crowd.lags(triggerer, probes)
        memory = triggerer.memory_mb()
    return [
        ratio(f"API calls, to {FEW} gangs", [few], [many], unit="1/min", limit=CALLS_RATIO),
        ratio(f"worst lag of {PROBES} ends, to 2 s", [LAG_SECONDS], [max(lags)], unit="s", limit=1.0),
        ratio("memory, to 400 MB", [MEMORY_MB], [memory], unit="MB", limit=1.0),
        ratio("muster gpus, to 1 s", [COMMAND_SECONDS] * COMMANDS, commands, unit="s", limit=1.0),
    ]


def _cards(gpu_class: str, gpus: int) -> Resources:
    return Resources(cpus=0.05, memory_gib=0.125, gpus=gpus, gpu_class=(gpu_class,))


def _gang() -> Role:
    """Return a gang of two replicas that need all the new cards."""
    return Role(replicas=2, command=("python", "-c", "pass"), resources=_cards("gpu-a100", 8))


class Crowd:
    """The gangs: two that hold all cards, and those that wait for them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._image = site.digest("python")

    def hold(self) -> None:
        """Occupy all cards; return once they are occupied."""
        sleep = ("python", "-c", "import time; time.sleep(36000)")  # a job that goes on
        self.submit("holds-new", 1, Role(replicas=2, command=sleep, resources=_cards("gpu-a100", 8)))
        self.submit("holds-old", 1, Role(command=sleep, resources=_cards("gpu-k80", 4)))
        for name, pods in (("holds-new-0", 2), ("holds-old-0", 1)):
            running = ["Running"] * pods
            kubectl.until(
                f"{name} runs", lambda name=name, running=running: phases(self._site.layout, name) == running
            )

    def submit(self, name: str, count: int, role: Role, *, first: int = 0) -> list[str]:
        """Submit gangs, several at once; return their job_ids."""
        spec = JobSpec(
            name=f"benchmark.{name}",
            image="python",
            image_digest=self._image,
            roles=(role,),
            grace_seconds=1.0,
        )
        names = [f"{name}-{number}" for number in range(first, first + count)]
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done, _ in enumerate(
                pool.map(lambda each: self._site.backend.submit(spec, job_id=each), names)
            ):
                if done % 100 == 99:
                    print(
                        f"{done + 1} submitted, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                    )
        return names

    def gpus_seconds(self) -> float:
        """Seconds of ``muster gpus``."""
        began = time.monotonic()
        subprocess.run(
            [MUSTER, "gpus", "--json"], env=self._site.environment(), stdout=subprocess.DEVNULL, check=True
        )
        return time.monotonic() - began

    def lags(self, triggerer: Triggerer, probes: Sequence[str]) -> list[float]:
        """Let the probes run; return the seconds from each probe's end to its trigger's event."""
        self._site.backend.cancel("holds-old-0", wait=False)
        fired = triggerer.fired(probes)
        ended = {each: self._site.backend.store.ledger.status(each).ended for each in probes}
        return [fired[each] - (ended[each] or 0.0) for each in probes]


@dataclass
class Triggerer:
    """A triggerer's event loop in a process of its own, while its block runs."""

    site: Site
    names: Sequence[str]
    events: dict[str, float] = field(default_factory=dict)
    answers: Queue[Counter[str]] = field(default_factory=Queue)

    def __enter__(self) -> Triggerer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TRIGGERER],
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._tell(list(self.names))
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    @property
    def _log(self) -> Path:
        return self.site.folder / "triggerer.log"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def calls_a_minute(self) -> float:
        """Return its API calls a minute once it has listed all gangs; print them by verb and kind."""
        kubectl.until("the triggerer watches", lambda: self._asked()["watch workloads"], seconds=SECONDS)
        time.sleep(SETTLE_SECONDS)  # the calls at its start do not count
        before, worked = self._asked(), self._cpu_seconds()
        time.sleep(WINDOW_SECONDS)  # the time that is measured
        calls, worked = self._asked() - before, (self._cpu_seconds() - worked) / WINDOW_SECONDS
        said = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()))
        print(f"{len(self.names)} triggers, {WINDOW_SECONDS:g} s: {said}", file=sys.stderr)
        print(f"{worked * 1000:.0f} ms of CPU a second", file=sys.stderr, flush=True)
        return (calls.total() - calls["store"]) * 60 / WINDOW_SECONDS

    def _asked(self) -> Counter[str]:
        """Return its API calls since its start."""
        self._tell("asked?")
        try:
            return self.answers.get(timeout=SECONDS)
        except Empty:
            said = self._log.read_text()[-4000:]
            raise RuntimeError(f"the triggerer does not answer ({self._process.poll()}):\n{said}") from None

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def memory_mb(self) -> float:
        """Return the process's peak memory, shared pages included."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fired(self, names: Sequence[str]) -> dict[str, float]:
        """Wait until the triggers of these gangs have fired; return the times."""
        kubectl.until("all have fired", lambda: all(each in self.events for each in names), seconds=SECONDS)
        return {each: self.events[each] for each in names}

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match json.loads(line):
                case ["fired", job_id, at]:
                    self.events[job_id] = at
                case ["asked", calls]:
                    self.answers.put(Counter(calls))

    def _environment(self) -> dict[str, str]:
        """Airflow's, with a connection of the provider's type."""
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("AIRFLOW", "MUSTER_"))
        }
        extra = {"kube_config_path": str(self.site.folder / "kubeconfig"), "muster": self.site.settings}
        return kept | {
            "AIRFLOW_HOME": str(self.site.folder / "airflow"),
            "MUSTER_HOME": str(self.site.folder / ".muster"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__MUSTER__CONNECTION": "cluster",
            "AIRFLOW__MUSTER__INSTANCE": "benchmark",
            "AIRFLOW_CONN_CLUSTER": json.dumps({"conn_type": "kubernetes", "extra": extra}),
        }
