"""What a person at a terminal reads while `muster run` waits on the cluster, and how each wait ends."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kubectl, left
from tests.cluster.author import served, write_file
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.e2e.author import MUSTER, Author

pytestmark = pytest.mark.cluster

DAG = """\
    from datetime import timedelta
    from airflow.sdk import dag
    from muster.airflow import GangOperator, Resources

    @dag(default_args={{"muster": {{"image": "{image}"}}}})
    def {name}():
        GangOperator(
            task_id="hold", command=["sleep", "600"], replicas=2, retries=0, queue_timeout=timedelta(seconds={seconds}),
            resources=Resources(cpus=0.1, memory_gib=0.25, gpus={gpus}, gpu_class={gpu_class}),
        )

    {name}()
"""
A100, K80 = ("gpu-a100",), ("gpu-k80",)


class Runs:
    """Runs of Dags that wait, side by side."""

    def __init__(self, author: Author) -> None:
        self.author = author
        self._begun: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, *, gpus: int, gpu_class: tuple[str, ...], seconds: int = 600, image: str = "python"
    ) -> None:
        text = DAG.format(name=name, gpus=gpus, gpu_class=gpu_class, seconds=seconds, image=image)
        self.author.write(name, text)
        if image != "python":
            folder = self.author.folder / "dags" / name / "images" / image
            folder.mkdir(parents=True)
            (folder / "requirements.txt").write_text("# an environment that is not built\n")
        with self._log(name).open("wb") as log:
            self._begun[name] = subprocess.Popen(
                [MUSTER, "run", name],
                cwd=self.author.folder,
                env=self.author.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def plan(self, name: str, *, gpus: int, gpu_class: tuple[str, ...]) -> dict[str, Any]:
        """Return when the gang of a Dag would start, as `muster plan` says."""
        text = DAG.format(name=name, gpus=gpus, gpu_class=gpu_class, seconds=600, image="python")
        self.author.write(name, text)
        plan = self.author.ask("plan", name)
        print(plan)
        return dict(plan["stages"][0]["start"])

    def reads(self, name: str, pattern: str, *, seconds: float = 120) -> str:
        """Return the line of a run that says so, once it is there."""

        def line() -> str:
            lines = self._log(name).read_text().splitlines()
            return next((each for each in lines if re.search(pattern, each)), "")

        try:
            kubectl.until(f"{name} says {pattern}", lambda: bool(line()), seconds=seconds)
        finally:
            print(self._log(name).read_text())
        return line()

    def ends(self, name: str, *, seconds: float = 120) -> list[str]:
        """Return the verdict with which a run fails."""
        assert self._begun[name].wait(timeout=seconds) == 1
        said = self._log(name).read_text()
        print(said)
        return said.partition("\nmuster: ")[2].splitlines()

    def end(self) -> None:
        """Kill what still waits."""
        self.author.kill_everything()
        for each in self._begun.values():
            each.wait()

    def _log(self, name: str) -> Path:
        return self.author.folder / f"{name}.said"


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture
def runs(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("author")
    with served(here), Author(folder, MUSTER_CLUSTER=str(write_file(here, folder))) as author:
        begun = Runs(author)
        yield begun
        begun.end()
        for job in author.ask("jobs", "ls"):
            if job["state"] not in ("succeeded", "failed", "cancelled"):
                author.muster("jobs", "cancel", job["job_id"])
        kubectl.until("nothing is left", lambda: not left.of_anybody(here), seconds=180)


@pytest.mark.nightly  # unit/backends/kubernetes/lifecycle/test_jobs.py has the words, contract/test_preemption.py the queue
def test_a_queue_that_is_short_is_told_and_how_long_was_waited(runs: Runs) -> None:
    runs.start("holds", gpus=8, gpu_class=A100)
    runs.reads("holds", "hold: started")
    before = runs.author.ask("jobs", "ls")
    now, behind, never = (
        runs.plan(name, gpus=gpus, gpu_class=each)
        for name, gpus, each in (("fits", 1, K80), ("behind", 8, A100), ("never", 99, A100))
    )
    assert (now["when"], behind["when"], never["when"]) == ("now", "waits", "never")
    assert (behind["queue"], behind["ahead"]) == ("team-a", [])
    assert behind["starts"]["p50"] > 0, "the gang that holds them has to end first"
    assert "gpu" in never["why"]
    assert [job["job_id"] for job in runs.author.ask("jobs", "ls")] == [job["job_id"] for job in before]
    runs.start("waits", gpus=8, gpu_class=A100, seconds=15)
    runs.reads(
        "waits",
        r"hold: queued: in queue team-a, place 1 of 1: needs 16 more nvidia\.com/gpu of flavor gpu-a100$",
    )
    head, message, *_ = runs.ends("waits")
    assert head == "hold: queue timeout"
    assert "it waited longer than its queue_timeout of 15 s" in message


@pytest.mark.nightly  # test_verdicts.py has the words
def test_an_image_that_cannot_be_had_is_told_in_the_kubelet_s_words(runs: Runs) -> None:
    """In seconds; the verdict is `no_image`'s of test_faulty: the registry has minutes to come back."""
    runs.start("unbuilt", gpus=1, gpu_class=K80, image="elsewhere")
    line = runs.reads("unbuilt", r"(ErrImagePull|ImagePullBackOff)")
    assert re.search(
        r"hold: preparing: 0 of 2 replicas run; main-\d on node k80-0: .*localhost/elsewhere", line
    ), line


def test_a_node_that_takes_no_pod_is_told(here: Layout, runs: Runs) -> None:
    kubectl.run(here, "cordon", "k80-0")
    try:
        runs.start("homeless", gpus=1, gpu_class=K80, seconds=15)
        runs.reads("homeless", r"hold: queued: .*: no node that it may use takes pods now")
        head, message, *_ = runs.ends("homeless")
    finally:
        kubectl.run(here, "uncordon", "k80-0")
    assert head == "hold: queue timeout"
    assert "queue_timeout of 15 s" in message
