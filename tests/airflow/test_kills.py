"""Airflow's processes die or are stopped at any moment: every run ends alike, no job runs twice, nothing is left."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.site import Site
from tests.waiting import until

from muster.core.status import JobState
from muster.volumes.folder import FolderStore

# test_deferral.py and test_up.py kill each of these once.
pytestmark = [pytest.mark.data, pytest.mark.nightly]
INLINE_WAIT_SECONDS = 5
HEAD = """
    from datetime import datetime, timedelta
    from pathlib import Path
    from airflow.sdk import dag
    from muster.airflow import GangOperator, JobOperator, Output, Resources
    from muster.airflow.operators.sweep import SweepOperator

    SMALL = Resources(cpus=0.2, memory_gib=0.2)
    AUTHOR = {"image": "python", "retries": 30, "retry_delay": timedelta(seconds=1)}
"""
CHAIN = (
    HEAD
    + """
    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"part": "p0"})
    def chain():
        rows = JobOperator(
            task_id="rows", entrypoint="chain.steps:rows", resources=SMALL,
            outputs={"rows": Output(volume="chain/rows", partition="{{ params.part }}")}, **AUTHOR,
        )
        model = GangOperator(
            task_id="fit", entrypoint="chain.steps:fit", replicas=2, resources=SMALL,
            inputs={"rows": rows.versions["rows"]}, params={"steps": 24},
            outputs={"model": Output(volume="chain/model", partition="{{ params.part }}")}, **AUTHOR,
        )
        JobOperator(
            task_id="report", entrypoint="chain.steps:report", resources=SMALL,
            inputs={"model": model.versions["model"]},
            outputs={"report": Output(volume="chain/report", partition="{{ params.part }}")}, **AUTHOR,
        )

    chain()
"""
)
STEPS = """
    import os
    import time
    from pathlib import Path


    def rows(rows: Path) -> None:
        (rows / "rows.txt").write_text("1 2 3")
        time.sleep(0.5)


    def fit(rows: Path, model: Path, *, steps: int) -> None:
        for step in range(steps):
            print(f"step {step}", flush=True)
            time.sleep(0.3)
        if os.environ["RANK"] == "0":
            (model / "model.txt").write_text((rows / "rows.txt").read_text() * steps)


    def report(model: Path, report: Path) -> dict[str, float]:
        (report / "report.txt").write_text((model / "model.txt").read_text())
        return {"size": float((model / "model.txt").stat().st_size)}
"""
LONG = (
    HEAD
    + """
    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def long():
        JobOperator(
            task_id="wait", command=["python", "-c", "import time; time.sleep(36000)"], resources=SMALL, **AUTHOR
        )

    long()

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def sweeping():
        SweepOperator(task_id="sweep")

    sweeping()
"""
)
TASKS = ("rows", "fit", "report")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.write("chain", CHAIN, steps=STEPS)
        site.write("long", LONG)
        site.set("muster", inline_wait=INLINE_WAIT_SECONDS)
        site.up()
        yield site


@pytest.fixture(scope="module")
def store(site: Site) -> FolderStore:
    return FolderStore(site.home / "store")


def jobs_of(store: FolderStore, run_id: str) -> list[str]:
    return [job_id for job_id in store.ledger.jobs() if store.ledger.spec(job_id).origin.run_id == run_id]


def the_job(store: FolderStore, run_id: str) -> str:
    """The one job of a run, once its process runs."""
    assert until(
        lambda: any(store.ledger.status(j).state is JobState.RUNNING for j in jobs_of(store, run_id))
    )
    (job_id,) = jobs_of(store, run_id)
    return job_id


class Faults:
    """What is done to the processes of a site, in an order and at moments that a seed decides."""

    def __init__(self, site: Site, *, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.done: list[str] = []

    def targets(self) -> dict[str, Callable[[], list[int]]]:
        """Who may be hit, by name."""
        return {
            "task": self.site.tasks,
            "worker": self.site.workers,
            "scheduler": lambda: [pid] if (pid := self.site.component("scheduler")) else [],
            "triggerer": lambda: [pid] if (pid := self.site.component("triggerer")) else [],
        }

    def some(self, count: int) -> list[tuple[str, signal.Signals]]:
        """Every target with both signals, again and again, in a random order."""
        every = [(name, number) for name in self.targets() for number in (signal.SIGKILL, signal.SIGTERM)]
        chosen = (every * (count // len(every) + 1))[:count]
        self.random.shuffle(chosen)
        return chosen

    def strike(self, name: str, number: signal.Signals) -> bool:
        """Send one process of a kind a signal; whether there was one."""
        try:
            os.kill(self.random.choice(self.targets()[name]() or [0]) or self._none(), number)
        except ProcessLookupError:  # it ended by itself
            return False
        self.done.append(f"{number.name} to {name}")
        return True

    @staticmethod
    def _none() -> int:
        raise ProcessLookupError

    def pause(self, seconds: float) -> None:
        """Let things go on until a random moment."""
        until(lambda: False, seconds=self.random.uniform(0, seconds))


def survive(site: Site, store: FolderStore, *, count: int, seed: int) -> None:
    """Strike `count` times while runs go on, and look at what became of all of them, and of an orphan."""
    orphan = leave_orphan(site, store)
    faults, runs, going = Faults(site, seed=seed), list[str](), list[str]()

    def two_go_on() -> None:
        going[:] = [run for run in going if site.run_state("chain", run) in ("queued", "running")]
        while len(going) < 2:
            going.append(site.trigger("chain", {"part": f"s{seed}r{len(runs)}"}))
            runs.append(going[-1])

    def struck(name: str, number: signal.Signals) -> bool:
        two_go_on()  # where both have ended meanwhile, no task would ever come to be struck
        return faults.strike(name, number)

    for name, number in faults.some(count):
        two_go_on()
        faults.pause(4)
        assert until(partial(struck, name, number)), f"there is no {name}"
    for part, run in enumerate(runs):
        assert site.wait("chain", run, seconds=240) == "success", (run, faults.done)
        check(store, run, part=f"s{seed}r{part}", faults=faults.done)
    gone(site, store, orphan)
    sweep = site.trigger("sweeping")
    assert site.wait("sweeping", sweep) == "success"
    assert site.xcom("sweeping", sweep, "sweep")["swept"] == [], "the triggerer ends all that is left"
    assert until(lambda: set(site.processes()) <= {site.pid, *site.airflow()}), site.processes()
    assert site.is_clean()


def leave_orphan(site: Site, store: FolderStore) -> str:
    """A job whose task is marked failed while the triggerer is down: no process is told to end it."""
    run_id = site.trigger("long")
    job_id = the_job(store, run_id)
    site.wait_task("long", run_id, "wait", ("deferred",))
    os.kill(site.component("triggerer") or 0, signal.SIGKILL)
    site.mark("long", run_id, "wait", "failed")
    return job_id


def check(store: FolderStore, run_id: str, *, part: str, faults: list[str]) -> None:
    """One job and one commit for each task of a run, and the one result."""
    jobs = jobs_of(store, run_id)
    tasks = Counter(store.ledger.spec(job_id).origin.task_id for job_id in jobs)
    assert tasks == dict.fromkeys(TASKS, 1), (run_id, faults)
    assert {store.ledger.status(job_id).state for job_id in jobs} == {JobState.SUCCEEDED}
    for volume in ("chain/rows", "chain/model", "chain/report"):
        versions = [version for version in store.versions(volume) if version.partition == part]
        assert len(versions) == 1, (volume, part, faults)
    assert (store.path(f"volume://chain/report@{part}") / "report.txt").read_text() == "1 2 3" * 24


def test_ten_faults_at_random_moments(site: Site, store: FolderStore) -> None:
    survive(site, store, count=10, seed=1)


@pytest.mark.soak
def test_fifty_faults_at_random_moments(site: Site, store: FolderStore) -> None:
    survive(site, store, count=50, seed=random.SystemRandom().randrange(1 << 16))


def gone(site: Site, store: FolderStore, job_id: str) -> None:
    """Nothing of a job is left within ten seconds, and how it ended is written down."""
    assert until(lambda: not site.of_job(job_id)), site.of_job(job_id)
    assert until(lambda: store.ledger.status(job_id).state.ended)
    assert store.ledger.status(job_id).state is JobState.CANCELLED
