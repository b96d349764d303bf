"""Data engines as gangs: the first replica drives, the others work, and what they write is one version."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.cluster import queues
from tests.cluster.layout import Layout
from tests.contract.forked import forked
from tests.contract.named import Named
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish as finish_within
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.places import Places
from muster.cli.foreground import python_of_image, serve
from muster.core.data import OutputTarget
from muster.core.errors import ImageError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.ext.engines.commands import SERVER
from muster.images.folders import find_image, image_folders, put_image

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.smoke]

# As in the engines' own documentation: nothing says where the cluster is.
DASK = """
import os, socket, sys, time
from dask.distributed import Client

def place():
    return socket.gethostname(), os.getpid()  # each pod counts its processes from 1

def square(x):
    time.sleep(0.05)
    return x * x, place()

with Client() as client:
    client.wait_for_workers(2)
    print("workers", len(client.scheduler_info()["workers"]), flush=True)
    HOOK
    found = client.gather(client.map(square, range(40)))
    assert place() not in {at for _, at in found}
    with open(sys.argv[1] + "/sum", "w") as file:
        file.write(str(sum(x for x, _ in found)))
    print("by", len({at for _, at in found}), "workers", flush=True)
"""
SPARK = """
import sys
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.appName("rows").getOrCreate()
print("master", spark.sparkContext.master.partition(":")[0], flush=True)
rows = spark.range(100_000, numPartitions=8).withColumn("odd", functions.col("id") % 2)
rows.repartition(4).write.parquet(sys.argv[1] + "/rows")
total = {row["odd"]: row["total"] for row in rows.groupBy("odd").agg(functions.sum("id").alias("total")).collect()}
twice = rows.rdd.map(lambda row: row.id * 2).sum()
print("totals", total[0], total[1], twice, flush=True)
"""

RAY_RETRIES = """
import sys, time
import ray

ray.init()
while sum(node["Alive"] for node in ray.nodes()) < 3:
    time.sleep(0.1)
print("nodes 3", flush=True)

@ray.remote(max_retries=5)
def slow(x):
    time.sleep(8)  # so that some are not done when a node is killed
    return x

assert sum(ray.get([slow.remote(x) for x in range(6)])) == 15
while sum(node["Alive"] for node in ray.nodes()) < 3:
    time.sleep(0.1)
open(sys.argv[1] + "/sum", "w").write("15")
"""
# Each worker that comes is ended at once.
BREAKS_WORKERS = """
import os, time
from dask.distributed import Client

client = Client()
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        client.run(os._exit, 3)
    except Exception:
        pass  # a worker that has ended does not answer: that is what is asked of it
    time.sleep(0.1)
"""
WAITS = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("waits").getOrCreate()
spark.range(1000).write.parquet(sys.argv[1] + "/rows")
print("counted", flush=True)
while not Path("GATE").exists():
    time.sleep(0.1)
spark.stop()
"""
# The driver's JVM has half of its replica's memory, and each row is of 12 MB.
COLLECTS = """
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.appName("collects").config("spark.driver.maxResultSize", "0").getOrCreate()
long = functions.repeat(functions.sha2(functions.col("id").cast("string"), 512), 100_000)
print(len(spark.range(200, numPartitions=100).select(long).collect()))
"""
ENGINE_SECONDS = 360.0  # the JVMs of three replicas start at once
PAGE_SECONDS = 180.0  # a JVM, which reads logs every few seconds
SCRIPTS = Path(__file__).parent / "engine_scripts"

Made = Callable[..., JobSpec]
QUEUE = "engines"


def finish(backend: Backend, job_id: str) -> tuple[JobStatus, list[str]]:
    return finish_within(backend, job_id, seconds=ENGINE_SECONDS)


class EnginesContract(Named):
    """Inherit it and give a `backend` with room for three replicas."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        raise NotImplementedError

    @pytest.fixture
    def gang(self, backend: Backend, tmp_path: Path) -> Made:
        """Makes a gang of an engine: one driver, two workers."""

        def make(
            launcher: Launcher,
            program: str,
            *,
            image: str = "",
            replicas: int = 3,
            outputs: Sequence[str] = ("made",),
            memory_gib: float = 1.5,
            **changes: Any,
        ) -> JobSpec:
            name = image or launcher.value
            folders = image_folders(Settings(home=tmp_path, cache=tmp_path))
            role = Role(
                command=("python", "-c", program, "{outputs.made}"),
                replicas=replicas,
                resources=Resources(memory_gib=memory_gib),
            )
            return JobSpec(
                name="test.engine",
                image=name,
                image_digest=put_image(backend.store, find_image(name, folders)),
                roles=(role,),
                launcher=launcher,
                outputs={name: OutputTarget(volume=f"a/{self.own(name)}") for name in outputs},
                **changes,
            )

        return make

    def test_dask_finds_its_scheduler_and_its_workers(self, backend: Backend, gang: Made) -> None:
        backend.submit(gang(Launcher.DASK, DASK.replace("HOOK", "pass")), job_id=self.own("dask"))
        status, log = finish(backend, self.own("dask"))
        assert status.state is JobState.SUCCEEDED, log[-20:]
        assert "[rank 0] workers 2" in log
        assert "[rank 0] by 2 workers" in log
        assert not [line for line in log if re.search("distributed|Warning", line)], (
            "Dask tells what is wrong"
        )
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert (backend.store.path(made) / "sum").read_text() == str(sum(x * x for x in range(40)))

    def test_spark_finds_its_master_and_writes_with_its_workers(self, backend: Backend, gang: Made) -> None:
        backend.submit(
            gang(Launcher.SPARK, SPARK, outputs=("made", "spark_events")), job_id=self.own("spark")
        )
        status, log = finish(backend, self.own("spark"))
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert "[rank 0] master spark" in log
        assert (
            f"[rank 0] totals {sum(range(0, 100_000, 2))} {sum(range(1, 100_000, 2))} {2 * sum(range(100_000))}"
            in log
        )
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert len(list((backend.store.path(made) / "rows").glob("part-*.parquet"))) == 4
        assert not [
            line for line in log if re.search(" ERROR |Master|to master|Spark cluster|Exception", line)
        ], "driver and workers see the master go, and that is no error"
        self.has_events(backend, status)

    @pytest.mark.nightly
    def test_spark_submit_is_a_command_as_any(self, backend: Backend, gang: Made) -> None:
        submits = 'printf %s "$1" > "$TMPDIR/job.py" && exec spark-submit --name rows "$TMPDIR/job.py" "$0"'
        spec = gang(Launcher.SPARK, SPARK)
        role = replace(spec.roles[0], command=("sh", "-c", submits, "{outputs.made}", SPARK))
        backend.submit(replace(spec, roles=(role,)), job_id=self.own("submitted"))
        status, log = finish(backend, self.own("submitted"))
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert "[rank 0] master spark" in log
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert len(list((backend.store.path(made) / "rows").glob("part-*.parquet"))) == 4

    def has_events(self, backend: Backend, status: JobStatus) -> None:
        """The event log is a version: whole, and without the secret that Spark's processes share."""
        assert status.result is not None
        (kept,) = status.result.outputs["spark_events"]
        (log,) = backend.store.path(kept).glob("eventlog_v2_*")
        names = sorted(path.name.partition("_")[0] for path in log.iterdir() if path.name[0] != ".")
        assert names == ["appstatus", "events"]
        assert not list(log.glob("*.inprogress"))

    @pytest.mark.parametrize(
        "launcher",
        [
            Launcher.DASK,
            pytest.param(Launcher.RAY, marks=pytest.mark.nightly),
            pytest.param(Launcher.SPARK, marks=pytest.mark.nightly),
        ],
    )
    def test_an_entrypoints_functions_are_there_for_workers(
        self, backend: Backend, gang: Made, launcher: Launcher
    ) -> None:
        job_id = self.own(f"entry-{launcher.value}")
        spec = gang(launcher, "", code=backend.store.put(SCRIPTS, ["counts/count.py"]))
        entry = f"counts.count:with_{launcher.value}"
        resources = replace(spec.roles[0].resources, cpus=2)
        role = replace(spec.roles[0], command=None, entrypoint=entry, resources=resources)
        backend.submit(replace(spec, roles=(role,)), job_id=job_id)
        status, log = finish(backend, job_id)
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert (backend.store.path(made) / "sum").read_text() == str(sum(x * x for x in range(40)))

    @pytest.mark.parametrize(
        "launcher", [Launcher.DASK, Launcher.RAY, pytest.param(Launcher.SPARK, marks=pytest.mark.nightly)]
    )
    def test_what_a_worker_raises_is_found_in_the_authors_code(
        self, backend: Backend, gang: Made, launcher: Launcher
    ) -> None:
        job_id = self.own(f"fails-{launcher.value}")
        spec = gang(launcher, "", code=backend.store.put(SCRIPTS, ["counts/count.py"]))
        entry = f"counts.count:fail_with_{launcher.value}"
        backend.submit(
            replace(spec, roles=(replace(spec.roles[0], command=None, entrypoint=entry),)), job_id=job_id
        )
        status, log = finish(backend, job_id)
        assert status.verdict is not None
        assert status.verdict.advice.startswith("mend the code at counts/count.py:15 "), log[-40:]
        assert not [line for line in log if "another one begins" in line]

    def test_a_script_for_dask_runs_as_it_is(self, backend: Backend, gang: Made) -> None:
        backend.submit(gang(Launcher.DASK, script("dask")), job_id=self.own("dask-script"))
        status, log = finish(backend, self.own("dask-script"))
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert f"[rank 0] sum {sum(x * x for x in range(40))} by 2 workers" in log
        assert "[rank 0] rows 200" in log
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert len(list((backend.store.path(made) / "rows").glob("*.parquet"))) == 20

    @pytest.mark.nightly  # a gang of Ray is above, a script that runs as it is, too
    def test_a_script_for_ray_runs_as_it_is(self, backend: Backend, gang: Made) -> None:
        backend.submit(gang(Launcher.RAY, script("ray")), job_id=self.own("ray-script"))
        status, log = finish(backend, self.own("ray-script"))
        assert status.state is JobState.SUCCEEDED, log[-60:]
        assert f"[rank 0] sum {sum(x * x for x in range(30))} counted 30" in log
        assert "[rank 0] the driver's node works: False" in log
        assert any(line.endswith(" trained by 2 workers") for line in log)
        assert "[rank 0] the training ended well" in log
        assert status.result is not None
        (made,) = status.result.outputs["made"]
        assert list((backend.store.path(made) / "rows").glob("*.parquet"))


@pytest.fixture(scope="module")
def cache() -> Path:
    """The machine's own: environments of engines are large."""
    return Settings.load().cache


class TestEnginesOnThisMachine(EnginesContract):
    @pytest.fixture
    def places(self, tmp_path: Path) -> Places:
        return Places(tmp_path / "home")

    @pytest.fixture
    def backend(self, places: Places, cache: Path) -> Iterator[Backend]:
        yield from one_machine(places, cache, memory_gib=8)

    def test_a_lost_worker_is_the_engines_to_survive(
        self, backend: Backend, gang: Made, places: Places
    ) -> None:
        waits = "time.sleep(2)"
        backend.submit(
            gang(Launcher.DASK, DASK.replace("HOOK", waits), max_restarts=0), job_id=self.own("dask")
        )
        eventually(lambda: b"workers 2" in backend.store.ledger.read(self.own("dask"))[0])
        rank = kill_worker(places.mark(self.own("dask")), b"dask_worker")
        status, log = finish(backend, self.own("dask"))
        assert status.state is JobState.SUCCEEDED, log[-20:]
        assert names_lost(status.reason, rank, "killed by SIGKILL"), log
        shown = muster(places, "jobs", "show", self.own("dask"))
        assert names_lost(" ".join(shown.split()), rank, "killed by SIGKILL"), shown

    @pytest.mark.nightly
    def test_a_driver_that_fails_after_a_lost_worker_tells_both(
        self, backend: Backend, gang: Made, places: Places, tmp_path: Path
    ) -> None:
        job_id, gate = self.own("both"), tmp_path / "gate"
        code = f"{WAITS.replace('GATE', str(gate))}\nraise ValueError('no rows')"
        backend.submit(gang(Launcher.SPARK, code, max_restarts=0), job_id=job_id)
        eventually(lambda: b"counted" in backend.store.ledger.read(job_id)[0])
        rank = kill_worker(places.mark(job_id), b"deploy.worker.Worker")
        eventually(lambda: b"another one begins" in backend.store.ledger.read(job_id)[0])
        gate.touch()
        status, log = finish(backend, job_id)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.USER_ERROR, log[-40:]
        assert status.verdict.rank == 0
        assert status.verdict.message.startswith("ValueError: no rows; before, the worker of replica ")
        assert names_lost(status.verdict.message, rank, "killed by SIGKILL")
        assert status.verdict.message in log

    @pytest.mark.nightly  # unit/worker/test_engines.py kills a head; below one ends at its start
    def test_a_lost_head_starts_the_gang_again(
        self, backend: Backend, gang: Made, places: Places, tmp_path: Path
    ) -> None:
        job_id, gate = self.own("head"), tmp_path / "gate"
        backend.submit(gang(Launcher.SPARK, WAITS.replace("GATE", str(gate)), max_restarts=0), job_id=job_id)
        eventually(lambda: b"counted" in backend.store.ledger.read(job_id)[0])
        heads = [
            pid for pid in processes.marked(places.mark(job_id)) if b"deploy.master.Master" in words(pid)
        ]
        os.kill(heads[0], signal.SIGKILL)
        status, log = finish(backend, job_id)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.RANK_LOST, log[-40:]
        assert "the engine's head ended (killed by SIGKILL) while the driver ran" in status.verdict.message

    @pytest.mark.nightly
    def test_a_lost_executor_is_named_as_a_lost_worker_is(
        self, backend: Backend, gang: Made, places: Places, tmp_path: Path
    ) -> None:
        job_id, gate = self.own("executor"), tmp_path / "gate"
        backend.submit(gang(Launcher.SPARK, WAITS.replace("GATE", str(gate)), max_restarts=0), job_id=job_id)
        eventually(lambda: b"counted" in backend.store.ledger.read(job_id)[0])
        rank = kill_worker(places.mark(job_id), b"CoarseGrainedExecutorBackend")
        eventually(lambda: b"an executor of Spark's was lost" in backend.store.ledger.read(job_id)[0])
        gate.touch()
        status, log = finish(backend, job_id)
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert names_lost(status.reason, rank, "killed by SIGKILL", what="an executor"), log
        assert not [line for line in log if "INFO" in line]

    @pytest.mark.nightly
    def test_a_lost_node_of_ray_comes_again(self, backend: Backend, gang: Made, places: Places) -> None:
        backend.submit(gang(Launcher.RAY, RAY_RETRIES, max_restarts=0), job_id=self.own("ray"))
        eventually(lambda: b"nodes 3" in backend.store.ledger.read(self.own("ray"))[0])
        mark = places.mark(self.own("ray"))
        node = next(pid for pid in processes.marked(mark) if b"raylet\0" in words(pid) and is_node(pid))
        due = time.monotonic() + 20  # one that ends sooner may never have come
        eventually(lambda: time.monotonic() > due)
        os.kill(node, signal.SIGKILL)
        status, log = finish(backend, self.own("ray"))
        assert status.state is JobState.SUCCEEDED, log[-40:]
        assert " was lost at " in status.reason, log
        assert status.reason.endswith(" (exit status 1), and the driver went on without it")
        own = [
            line for line in log if "(raylet) Task slow failed" not in line
        ]  # which says where a dashboard would be
        assert not [line for line in own if "autoscaler" in line or "dashboard" in line]

    def test_a_worker_that_never_comes_is_an_error(self, backend: Backend, gang: Made) -> None:
        java = {"JAVA_HOME": "/nowhere"}
        backend.submit(gang(Launcher.SPARK, SPARK, env=java), job_id=self.own("no-java"))
        status, log = finish(backend, self.own("no-java"))
        assert status.verdict is not None
        assert "the engine's head, beside the first replica, ended at its start" in status.verdict.message, (
            log
        )
        backend.submit(gang(Launcher.DASK, BREAKS_WORKERS), job_id=self.own("no-worker"))
        status, log = finish(backend, self.own("no-worker"))
        assert status.verdict is not None
        assert status.verdict.rank in (1, 2)
        assert "the engine's worker never comes: it ended 5 times" in status.verdict.message
        assert "before," not in status.verdict.message  # one that never came was not lost

    @pytest.mark.nightly
    def test_an_event_log_is_shown_while_the_job_runs_and_after_its_end(
        self, backend: Backend, gang: Made, places: Places, tmp_path: Path
    ) -> None:
        job_id, gate = self.own("shown"), tmp_path / "gate"
        code = WAITS.replace("GATE", str(gate))
        backend.submit(gang(Launcher.SPARK, code, outputs=("made", "spark_events")), job_id=job_id)
        eventually(lambda: b"counted" in backend.store.ledger.read(job_id)[0])
        link = dict(backend.status(job_id).links)["Spark UI"]
        assert applications(link) == [("waits", False)]
        with history(places, job_id) as page:
            eventually(lambda: applications(page) == [("waits", False)], seconds=PAGE_SECONDS)
            gate.touch()
            status, log = finish(backend, job_id)
            assert status.state is JobState.SUCCEEDED, log[-40:]
            eventually(lambda: applications(page) == [("waits", True)], seconds=PAGE_SECONDS)
        with history(places, job_id) as page:
            eventually(lambda: applications(page) == [("waits", True)], seconds=PAGE_SECONDS)

    @pytest.mark.nightly  # a minute; contract/test_backend.py has a rank that needs too much
    def test_a_driver_out_of_memory_is_told_as_that_and_its_event_log_stays(
        self, backend: Backend, gang: Made, places: Places
    ) -> None:
        outputs = ("made", "spark_events")
        backend.submit(gang(Launcher.SPARK, COLLECTS, memory_gib=1, outputs=outputs), job_id=self.own("heap"))
        status, log = finish(backend, self.own("heap"))
        assert status.verdict is not None
        assert status.verdict.cause is Cause.OUT_OF_MEMORY, log[-40:]
        assert status.verdict.rank == 0
        assert status.verdict.message.endswith("java.lang.OutOfMemoryError: Java heap space")
        assert "memory_gib" in status.verdict.advice
        assert dict(status.links)["Spark UI"].startswith("http://127.0.0.1:")
        with history(places, self.own("heap")) as page:
            eventually(lambda: applications(page) == [("collects", True)], seconds=PAGE_SECONDS)

    def test_too_little_memory_for_a_jvm_is_refused_by_name(self, backend: Backend, gang: Made) -> None:
        backend.submit(gang(Launcher.SPARK, SPARK, memory_gib=0.5), job_id=self.own("small"))
        status, _ = finish(backend, self.own("small"))
        assert status.verdict is not None
        assert status.verdict.cause is Cause.SPEC_ERROR
        assert "memory_gib=0.5" in status.verdict.message

    def test_a_driver_that_fails_is_told_as_any_rank(self, backend: Backend, gang: Made) -> None:
        backend.submit(gang(Launcher.DASK, "raise ValueError('no rows')"), job_id=self.own("dask"))
        status, _ = finish(backend, self.own("dask"))
        assert status.verdict is not None
        assert status.verdict.cause is Cause.USER_ERROR
        assert status.verdict.rank == 0
        assert "no rows" in status.verdict.message

    def test_an_image_without_the_engine_is_called_that(self, backend: Backend, gang: Made) -> None:
        for launcher, lacks in (
            (Launcher.SPARK, "pyspark"),
            (Launcher.DASK, "distributed"),
            (Launcher.RAY, "ray"),
        ):
            job_id = launcher.value
            backend.submit(gang(launcher, "pass", image="python"), job_id=job_id)
            status, _ = finish(backend, job_id)
            assert status.verdict is not None
            assert status.verdict.cause is Cause.SPEC_ERROR
            assert f"image python has no {lacks}" in status.verdict.message


def test_a_history_server_whose_port_is_taken_says_so_and_takes_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = python_of_image("spark")
    ended = "Spark's history server ended with exit code 1: its last lines above say why"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [python, "-c", SERVER, str(tmp_path), str(taken.getsockname()[1])]
        with pytest.raises(ImageError, match=ended):
            serve("Spark's history server", words, variables={"SPARK_LOCAL_IP": "127.0.0.1"})
    assert "Failed to bind to /127.0.0.1" in capfd.readouterr().err


@pytest.mark.nightly
class TestEnginesOnForks(EnginesContract):
    """The small complete place, ``tests/contract/forked.py``."""

    @pytest.fixture
    def backend(self, tmp_path: Path, cache: Path) -> Iterator[Backend]:
        yield from forked(tmp_path / "home", cache, memory_gib=8)


@pytest.mark.cluster
@pytest.mark.nightly
class TestEnginesOnCluster(EnginesContract):
    @pytest.fixture
    def backend(self, here: Layout, tmp_path: Path) -> Iterator[Backend]:
        with queues.backend_in(QUEUE, here, tmp_path, unique=self.unique) as backend:
            yield backend


@pytest.fixture(scope="module")
def here() -> Iterator[Layout]:
    """A cluster with the store service, and with a queue in which a gang has room."""
    with queues.with_room(QUEUE, memory_gib=8) as of:
        yield of


def script(engine: str) -> str:
    """A script as the engine's documentation has them."""
    return (SCRIPTS / f"{engine}_script.py").read_text()


@contextmanager
def history(places: Places, job_id: str) -> Iterator[str]:
    """The page that ``muster spark`` serves for a job."""
    port = free_port()
    shown = subprocess.Popen(
        [Path(sys.executable).with_name("muster"), "spark", job_id, "--port", str(port)],
        env={**os.environ, "MUSTER_HOME": str(places.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        shown.terminate()
        assert shown.wait(GUARD_SECONDS) in (0, 143)


def applications(page: str) -> list[tuple[str, bool]]:
    """The name of each application that a page of Spark shows, and whether it is over."""
    try:
        with urlopen(f"{page}api/v1/applications", timeout=GUARD_SECONDS) as answer:
            found = json.load(answer)
    except (OSError, ValueError):  # it starts
        return []
    return [(each["name"], each["attempts"][0]["completed"]) for each in found]


def kill_worker(mark: str, program: bytes) -> int:
    """Kill one of an engine's workers, and return its rank."""
    worker = next(pid for pid in processes.marked(mark) if program in words(pid) and not keeps(pid))
    variables = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    os.kill(worker, signal.SIGKILL)
    return next(int(each.partition(b"=")[2]) for each in variables if each.startswith(b"MUSTER_RANK="))


def names_lost(text: str, rank: int, how: str, *, what: str = "the worker") -> bool:
    """Whether a text says what was lost, when and how, and that the driver went on."""
    told = rf"{what} of replica {rank} was lost at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \({how}\), and the driver went on without it"
    return re.search(told, text) is not None


def muster(places: Places, *arguments: str) -> str:
    """What a command prints."""
    program = Path(sys.executable).with_name("muster")
    ended = subprocess.run(
        [program, *arguments],
        env={**os.environ, "MUSTER_HOME": str(places.home), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=True,
    )
    return ended.stdout


def words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def is_node(pid: int) -> bool:
    """Whether a raylet is not the head's."""
    return b"--head" not in words(pid)


def keeps(pid: int) -> bool:
    """Whether it is the rank that runs an engine's worker, not that one itself."""
    return b"-c" in words(pid).split(b"\0")
