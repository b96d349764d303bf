"""A site with a Dag of one slow job for each way to wait for it, and runs of these Dags whose jobs a test lets end."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.site import Site
from tests.waiting import until

from muster.backends.local.places import Places
from muster.backends.local.processes import marked
from muster.core.status import JobState
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

# The task's process reads the option when it waits, so each Dag has an inline wait of its own.
DAG = """
    import os
    import signal
    from datetime import datetime, timedelta
    from pathlib import Path

    from airflow.sdk import dag

    from muster.airflow import JobOperator, Resources
    from muster.backends.base import Backend

    os.environ["AIRFLOW__MUSTER__INLINE_WAIT"] = "{wait}"
    {more}

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={{"gate": ""}}, {dag})
    def {name}():
        JobOperator(
            task_id="slow", image="python", entrypoint="{name}.steps:slow",
            params={{"gate": "{{{{ params.gate }}}}"}}, outputs={{"out": "{name}/out"}},
            resources=Resources(cpus=0.2, memory_gib=0.2), retry_delay=timedelta(seconds=1), {task}
        )

    {name}()
"""
STEPS = """
    import time
    from pathlib import Path

    def slow(out: Path, gate: str) -> None:
        print("begun", flush=True)
        for number in range(10_000):
            if Path(gate).exists():
                break
            if number % 50 == 0:
                print(f"line {number // 50}", flush=True)
            time.sleep(0.02)
        (out / "x").write_text("done")
"""
# The process is killed before or after its first submit, and says so by a file.
DIES = """
    submit = Backend.submit

    def dying(self, job, *, job_id, **more):
        marker = Path(__file__).parent / "died"
        first = not marker.exists()
        marker.touch()
        if {after} or not first:
            submit(self, job, job_id=job_id, **more)
        if first:
            os.kill(os.getpid(), signal.SIGKILL)

    Backend.submit = dying
"""


class Waiting(Site):
    """A site with a Dag of one slow job for each way to wait for it."""

    def add(self, name: str, *, wait: float, dag: str = "", task: str = "", more: str = "") -> None:
        """Write a Dag that waits `wait` seconds inline."""
        text = DAG.format(name=name, wait=wait, dag=dag, task=task, more=more)
        self.write(name, text, steps=STEPS)

    def begin(self, dag_id: str, state: str) -> Run:
        """Trigger a run and return it when its task is in `state` and its job has begun."""
        gate = self.folder / f"gate-{dag_id}-{len(list(self.folder.glob('gate*')))}.wait"
        gate.touch()
        run = Run(self, dag_id, self.trigger(dag_id, {"gate": str(gate.with_suffix(".open"))}), gate)
        self.wait_task(dag_id, run.run_id, "slow", (state,))
        assert until(run.begun)
        if state == "deferred":  # and the triggerer knows it
            assert until(lambda: "[rank 0]" in self.trigger_log(run))
        return run

    def hand_over(self, dag_id: str) -> Run:
        """Trigger a run and return it in the moment in which its task is deferred: no trigger waits yet."""
        gate = self.folder / f"gate-{dag_id}-{len(list(self.folder.glob('gate*')))}.wait"
        gate.touch()
        run = Run(self, dag_id, self.trigger(dag_id, {"gate": str(gate.with_suffix(".open"))}), gate)
        self.wait_task(dag_id, run.run_id, "slow", ("deferred",))
        return run

    def trigger_log(self, run: Run) -> str:
        """What the triggerer wrote into the task's log."""
        return self.task_log(run.dag_id, run.run_id, "slow").partition(" starting\n")[2]


class Run:
    """One run of a Dag with one slow job."""

    def __init__(self, site: Waiting, dag_id: str, run_id: str, gate: Path) -> None:
        self.site, self.dag_id, self.run_id, self.gate = site, dag_id, run_id, gate
        self.store = FolderStore(site.home / "store")
        self._run_of = cache(lambda job_id: self.store.ledger.spec(job_id).origin.run_id)

    def jobs(self) -> list[str]:
        """The run's jobs, oldest first."""
        return [name for name in self.store.ledger.jobs() if self._run_of(name) == self.run_id]

    def begun(self) -> bool:
        jobs = self.jobs()
        return bool(jobs) and b"begun" in self.store.ledger.read(jobs[-1])[0]

    def open(self) -> None:
        """Let its jobs end."""
        self.gate.with_suffix(".open").touch()

    def state(self, job_id: str) -> JobState:
        return self.store.ledger.status(job_id).state

    def processes(self, job_id: str) -> list[int]:
        return marked(Places(self.site.home).mark(job_id))

    def ends_well(self) -> list[str]:
        """Open the gate, see the run succeed with one version, and return its jobs."""
        before = {version.number for version in self.versions()}
        self.open()
        assert self.site.wait(self.dag_id, self.run_id) == "success"
        assert len({version.number for version in self.versions()} - before) == 1
        return self.jobs()

    def versions(self) -> list[Version]:
        name = f"{self.dag_id}/out"
        return self.store.versions(name) if name in self.store.volumes() else []

    def is_cancelled(self, job_id: str) -> None:
        """Nothing of the job is left after a while."""
        assert until(lambda: self.state(job_id) is JobState.CANCELLED), self.state(job_id)
        assert until(lambda: not self.processes(job_id))
