"""A whole Airflow whose runs wait: 200 Dags, 2,000 runs, 500 of whose gangs wait in Kueue behind a full quota.

The Airflow is that of ``muster up``, on PostgreSQL: one scheduler, one triggerer, whose gangs go to the cluster. Its figures are taken
with a few waiting gangs, with a fifth of them, half and all, each time in a window in which nothing is triggered but probes: what grows
with the number that waits, though it need not, is seen by that.

The first gangs come to wait by workers, as all do. For the others that is done by hand, since a worker takes seconds of a core for each:
their tasks stay in a pool without slots, and are written down as deferred, with job, trigger and state as the first ones have them.

- *heartbeat*: the longest time that the scheduler's row in the database was old.
- *trigger to queued*, *to running*: of a task of a Dag without a gang, that is triggered meanwhile.
- *transactions*: of Airflow's database, by all of its processes.
- *calls at the API server*: by its own counter, but for leases and what nodes tell; *reads* are those that no controller of Kueue's makes.
- *calls at the store*: through a proxy that counts the heads of requests.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from socket import SHUT_WR, create_connection, create_server, socket
from typing import Any
from urllib.parse import urlsplit

import psutil
from tests.cluster import kubectl
from tests.cluster.author import write_file
from tests.site import Site as Airflow

from benchmarks.cluster_site import FOLDER, Site
from benchmarks.cluster_waiting import Crowd
from benchmarks.pairs import Ratio, ratio

DAGS, RUNS_OF_EACH, GANG_DAGS = 200, 10, 50
FEW = 10
AT_ONCE = 4
PROBES = 8
SETTLE_SECONDS, WINDOW_SECONDS = 15.0, 60.0
SECONDS = 3600.0
BEAT_SECONDS, LAG_SECONDS, MEMORY_MB = 30.0, 11.6, 400.0
"""Airflow's own limit of a scheduler that counts as alive; its developers' figure of 1,000 tasks; as in cluster_waiting."""
CALLS_RATIO = 1.25
_OTHERS = ("leases", "events", "nodes", "endpointslices", "endpoints", "subjectaccessreviews", "tokenreviews")

HEAD = """
from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from muster.airflow import GangOperator, Resources

NEEDS = Resources(cpus=0.05, memory_gib=0.125, gpus=8, gpu_class=("gpu-a100",))
"""
WAITS, ENDS = (
    f"""{HEAD}
with DAG("{{name}}", schedule=None, start_date=datetime(2024, 1, 1), max_active_runs=20):
    EmptyOperator(task_id="begin") >> {task}
"""
    for task in (
        'GangOperator(task_id="train", image="python", command=("python", "-c", "pass"), replicas=2, resources=NEEDS, pool="gangs")',
        'EmptyOperator(task_id="end")',
    )
)
PROBE = f"""{HEAD}
with DAG("probe", schedule=None, start_date=datetime(2024, 1, 1), max_active_runs=100):
    @task
    def once():
        return 1
    once()
"""


@dataclass
class Look:
    """What one window showed. :ivar calls: by verb and kind, in the window."""

    waiting: int
    beat_seconds: float = 0.0
    queued_seconds: list[float] = field(default_factory=list)
    running_seconds: list[float] = field(default_factory=list)
    triggers: int = 0
    triggerer_mb: float = 0.0
    triggerer_cpu_ms: float = 0.0
    scheduler_cpu_ms: float = 0.0
    transactions: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    store: Counter[str] = field(default_factory=Counter)

    @property
    def reads(self) -> float:
        """A minute."""
        asked = (n for name, n in self.calls.items() if name.split()[0] in ("GET", "LIST", "WATCH"))
        return sum(asked) * 60 / WINDOW_SECONDS

    def tell(self) -> None:
        a_minute = 60 / WINDOW_SECONDS
        print(
            f"{self.waiting} wait: heartbeat {self.beat_seconds:.1f} s; trigger to queued "
            f"{statistics.median(self.queued_seconds):.1f} s (worst {max(self.queued_seconds):.1f}), to running "
            f"{statistics.median(self.running_seconds):.1f} s (worst {max(self.running_seconds):.1f}); {self.triggers} triggers in "
            f"{self.triggerer_mb:.0f} MB, {self.triggerer_cpu_ms:.0f} ms of CPU a second, scheduler {self.scheduler_cpu_ms:.0f}; "
            f"{self.transactions * a_minute:.0f} transactions a minute; API server {self.calls.total() * a_minute:.0f} calls a "
            f"minute, {self.reads:.0f} of them reads; store {self.store.total() * a_minute:.0f}",
            file=sys.stderr,
        )
        for what, counted in (("API server", self.calls), ("store", self.store)):
            said = ", ".join(f"{n * a_minute:.1f} {name}" for name, n in counted.most_common(14))
            print(f"  {what}: {said}", file=sys.stderr, flush=True)


def measure(site: Site, *, waiting: int) -> list[Ratio]:
    """Return the promised figures with this number of gangs that wait, of a twentieth of the Dags and four times the runs."""
    gangs, each = GANG_DAGS, max(1, waiting // GANG_DAGS)
    site.digest("python")
    Crowd(site).hold()
    folder = site.folder / "airflow"
    folder.mkdir()
    with counted(site.cluster.store_url) as (url, asked):
        file = write_file(site.layout, folder, folder=FOLDER, store_url=url)
        with Airflow(folder, MUSTER_CLUSTER=str(file)) as airflow:
            names = [f"d{number:03}" for number in range(DAGS)]
            for number, name in enumerate(names):
                airflow.write(name, (WAITS if number < gangs else ENDS).format(name=name))
            airflow.write("probe", PROBE)
            airflow.set("core", parallelism=AT_ONCE)
            airflow.up(seconds=600)
            watch = Watch(site, airflow, asked)
            airflow.ask_api("POST", "pools", json={"name": "gangs", "slots": FEW})
            kubectl.until("all Dags are known", lambda: watch.count("dag") > DAGS, seconds=SECONDS)
            looks = []
            begun = 0
            ends = [name for name in names[gangs:] for _ in range(RUNS_OF_EACH)]
            for wanted in sorted({FEW, max(FEW, waiting // 5), max(FEW, waiting // 2), waiting}):
                if looks and ends:  # the other runs, beside those that come to wait
                    triggering = threading.Thread(target=watch.trigger, args=(ends.copy(),), daemon=True)
                    triggering.start()
                    ends.clear()
                begun = watch.wait(begun, wanted, names[:gangs], each)
                if wanted == waiting:
                    watch.ended(RUNS_OF_EACH * (DAGS - gangs))
                looks.append(watch.look(wanted))
                looks[-1].tell()
    few, all_of_them = looks[0], looks[-1]
    return [
        ratio(
            "heartbeat of the scheduler, to 30 s",
            [BEAT_SECONDS],
            [all_of_them.beat_seconds],
            unit="s",
            limit=1.0,
        ),
        ratio(
            "trigger to running, to 11.6 s",
            [LAG_SECONDS],
            [max(all_of_them.running_seconds)],
            unit="s",
            limit=1.0,
        ),
        ratio(
            "memory of the triggerer, to 400 MB",
            [MEMORY_MB],
            [all_of_them.triggerer_mb],
            unit="MB",
            limit=1.0,
        ),
        ratio(
            f"reads at the API server, to {FEW} gangs",
            [few.reads],
            [all_of_them.reads],
            unit="1/min",
            limit=CALLS_RATIO,
        ),
        ratio(
            f"calls at the store, to {FEW} gangs",
            [few.store.total() * 60 / WINDOW_SECONDS],
            [all_of_them.store.total() * 60 / WINDOW_SECONDS],
            unit="1/min",
            limit=CALLS_RATIO,
        ),
    ]


_SCHEDULED = (
    "SELECT t.id, t.dag_id, t.run_id, r.id FROM task_instance t JOIN dag_run r ON t.dag_id = r.dag_id AND t.run_id = r.run_id "
    "WHERE t.task_id = 'train' AND t.state = 'scheduled'"
)


class Watch:
    """An Airflow, and what is counted of it."""

    def __init__(self, site: Site, airflow: Airflow, asked: Counter[str]) -> None:
        self._site, self._airflow, self._asked = site, airflow, asked

    def trigger(self, names: list[str]) -> None:
        """Begin a run of each, several at once."""
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._begin, names))
        print(f"{len(names)} triggered, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def _begin(self, name: str) -> None:
        self._airflow.ask_api("POST", f"dags/{name}/dagRuns", json={"logical_date": None})

    def wait(self, begun: int, wanted: int, dags: list[str], each: int) -> int:
        """Have this number of gangs wait, those of before among them; return the number."""
        order = [name for _ in range(each + 1) for name in dags]
        if begun:
            with self._airflow.database() as database:
                database.execute("UPDATE slot_pool SET slots = 0 WHERE pool = 'gangs'")
        self.trigger(order[begun:wanted])
        began = time.monotonic()
        waits = "task_instance WHERE state = 'deferred'"
        if begun:
            there = lambda: len(self._ask(_SCHEDULED)) >= wanted - begun  # noqa: E731
            kubectl.until(f"{wanted - begun} more are scheduled", there, seconds=SECONDS)
            with ThreadPoolExecutor(2 * AT_ONCE) as pool:
                list(pool.map(self._defer, self._ask(_SCHEDULED)))
        kubectl.until(f"{wanted} are deferred", lambda: self.count(waits) >= wanted, seconds=SECONDS)
        print(f"{wanted} deferred, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return wanted

    def _defer(self, row: tuple[Any, ...]) -> None:
        """Submit a task's job, and write it down as deferred, like one that a worker has deferred."""
        own_id, dag_id, run_id, dag_run_id = row
        first, first_id = self._first()
        spec = self._site.backend.store.ledger.spec(first["job_id"])
        spec = replace(
            spec, name=f"{dag_id}.train", origin=replace(spec.origin, dag_id=dag_id, run_id=run_id)
        )
        job_id = f"{dag_id}-train-{str(own_id)[-12:]}-1"
        self._site.backend.submit(spec, job_id=job_id, owner=str(own_id))
        kwargs = json.dumps({**first, "job_id": job_id, "owner": str(own_id)})
        with self._airflow.database() as database:
            database.execute(
                "INSERT INTO task_state_store (dag_run_id, task_id, map_index, key, dag_id, run_id, value, updated_at, expires_at) "
                "SELECT %s, task_id, map_index, key, %s, %s, value, updated_at, expires_at FROM task_state_store "
                "WHERE (dag_id, run_id) = (SELECT dag_id, run_id FROM task_instance WHERE id = %s)",
                (dag_run_id, dag_id, run_id, first_id),
            )
            database.execute(
                "INSERT INTO trigger (classpath, kwargs, created_date) SELECT classpath, %s, now() FROM trigger "
                "WHERE id = (SELECT trigger_id FROM task_instance WHERE id = %s) RETURNING id",
                (kwargs, first_id),
            )
            (trigger,) = database.fetchone()
            database.execute(
                "UPDATE task_instance t SET state = 'deferred', trigger_id = %s, try_number = f.try_number, next_method = f.next_method, "
                "next_kwargs = f.next_kwargs, start_date = now(), queued_dttm = now(), hostname = f.hostname, pid = f.pid, "
                "queued_by_job_id = f.queued_by_job_id FROM task_instance f WHERE f.id = %s AND t.id = %s",
                (trigger, first_id, str(own_id)),
            )

    @cache  # noqa: B019 - there is one, and it lives as long as the benchmark
    def _first(self) -> tuple[dict[str, Any], str]:
        """What the trigger of the first gang was given, and its task instance."""
        ((kwargs, own_id),) = self._ask(
            "SELECT g.kwargs, t.id FROM trigger g JOIN task_instance t ON t.trigger_id = g.id WHERE t.state = 'deferred' LIMIT 1"
        )
        return json.loads(kwargs), str(own_id)

    def ended(self, runs: int) -> None:
        """Wait until this number of runs has succeeded."""
        ended = lambda: self.count("dag_run WHERE state = 'success'") >= runs  # noqa: E731
        kubectl.until(f"{runs} runs have ended", ended, seconds=SECONDS)

    def count(self, what: str) -> int:
        return int(self._ask(f"SELECT count(*) FROM {what}")[0][0])

    def look(self, waiting: int) -> Look:
        """Measure for a window, in which probes are triggered."""
        time.sleep(SETTLE_SECONDS)  # the calls of the last submissions do not count
        found = Look(waiting=waiting, triggers=self.count("trigger"))
        calls, store, began = self._calls(), Counter(self._asked), self._transactions()
        cpu = {name: self._cpu(name) for name in ("triggerer", "scheduler")}
        end = time.monotonic() + WINDOW_SECONDS
        probes = iter([end - WINDOW_SECONDS * (number + 1) / (PROBES + 1) for number in range(PROBES)][::-1])
        due, probed = next(probes, None), 0
        while time.monotonic() < end:
            beat = self._ask(
                "SELECT extract(epoch FROM now() - max(latest_heartbeat)) FROM job WHERE job_type = 'SchedulerJob' AND state = 'running'"
            )
            found.beat_seconds = max(found.beat_seconds, float(beat[0][0]))
            if due is not None and time.monotonic() > due:
                self._begin("probe")
                due, probed = next(probes, None), probed + 1
            time.sleep(1)  # the pace of looking at the heartbeat
        found.calls = Counter(self._calls())
        found.calls.subtract(calls)
        found.calls = +found.calls
        found.store = Counter(self._asked) - store
        found.transactions = self._transactions() - began
        found.triggerer_cpu_ms, found.scheduler_cpu_ms = (
            (self._cpu(name) - cpu[name]) / WINDOW_SECONDS * 1000 for name in ("triggerer", "scheduler")
        )
        found.triggerer_mb = sum(each.memory_full_info().pss / 1e6 for each in self._processes("triggerer"))
        rows = self._ask(
            "SELECT extract(epoch FROM t.queued_dttm - r.queued_at), extract(epoch FROM t.start_date - r.queued_at) "
            "FROM task_instance t JOIN dag_run r ON t.dag_id = r.dag_id AND t.run_id = r.run_id "
            f"WHERE t.dag_id = 'probe' AND t.start_date IS NOT NULL ORDER BY r.id DESC LIMIT {probed}"
        )
        found.queued_seconds = [float(row[0]) for row in rows]
        found.running_seconds = [float(row[1]) for row in rows]
        return found

    def _ask(self, query: str) -> list[Any]:
        with self._airflow.database() as database:
            database.execute(query)
            return list(database.fetchall())

    def _transactions(self) -> float:
        return float(
            self._ask("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0][0]
        )

    def _processes(self, name: str) -> list[psutil.Process]:
        pids = [self._airflow.component(name), *self._airflow.below(name)]
        return [psutil.Process(pid) for pid in pids if pid is not None]

    def _cpu(self, name: str) -> float:
        return sum(sum(each.cpu_times()[:4]) for each in self._processes(name))

    def _calls(self) -> Counter[str]:
        """What the API server has answered so far, by verb and kind."""
        found = Counter[str]()
        text = kubectl.ask(self._site.layout, "get", "--raw", "/metrics")
        for labels, count in re.findall(r"^apiserver_request_total\{(.*?)\} (\S+)$", text, re.MULTILINE):
            named = dict(re.findall(r'(\w+)="(.*?)"', labels))
            if named["resource"] and named["resource"] not in _OTHERS:
                part = "/" + named["subresource"] if named["subresource"] else ""
                found[f"{named['verb']} {named['resource']}{part}"] += int(float(count))
        return found


@contextmanager
def counted(url: str) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the address of a proxy of a service, and the requests that passed, by method and path without what it names."""
    there, found = urlsplit(url), Counter[str]()

    def pump(source: socket, sink: socket, *, count: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if count:
                    for verb, path in re.findall(rb"(?:^|\n)([A-Z]{3,6}) (/\S*) HTTP/1.1\r\n", data):
                        kept = re.sub(r"(/v1/\w+)(/[^/?]+)?(/\w+)?.*", r"\1\3", path.decode())
                        found[f"{verb.decode()} {kept}"] += 1
                sink.sendall(data)
            sink.shutdown(SHUT_WR)
        except OSError:
            pass

    def accept(server: socket) -> None:
        while True:
            try:
                client, _ = server.accept()
                service = create_connection((there.hostname, there.port or 80))
            except OSError:
                return
            for source, sink, count in ((client, service, True), (service, client, False)):
                words = {"target": pump, "args": (source, sink), "kwargs": {"count": count}, "daemon": True}
                threading.Thread(**words).start()  # type: ignore[arg-type]

    with create_server(("127.0.0.1", 0), backlog=512) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", found
