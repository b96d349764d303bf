"""Ranks that raise, are killed or outgrow their memory: what a person sees of it, and what becomes of the gang."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.author import Author
from tests.waiting import GUARD_SECONDS, until

ROOT = Path(__file__).parents[2]
DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, Resources

SMALL = Resources(memory_gib=0.25)
TORCH = Resources(memory_gib=2)


@dag
def faults():
    def gang(name, function, image="train", resources=TORCH, **more):
        GangOperator(
            task_id=name, image=image, entrypoint=f"faults.{function}", resources=resources, retries=0, **more
        )

    gang("apart", "raising:train", replicas=2)
    gang("together", "waiting:train", ranks=2, image="python", resources=SMALL)
    gang("grows", "growing:train", replicas=2, image="python", resources=SMALL)
    for name, waits_at in (("undisturbed", 0), ("killed", 20)):
        gang(
            name, "fitting:fit", replicas=2, image="python", resources=SMALL, params={"waits_at": waits_at},
            outputs={"model": f"faults/{name}"},
        )


faults()
"""
RAISING = """\
import torch
import torch.distributed as dist


def train() -> None:
    dist.init_process_group("gloo")
    for step in range(30):
        print(f"step {step}", flush=True)
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        check([3, -1])
    dist.all_reduce(torch.ones(4))


def check(rows: list[int]) -> None:
    for row in rows:
        if row < 0:
            raise ValueError(f"row {row} is negative")
"""
GROWING = """\
import os
import signal


def train() -> None:
    held = []
    if os.environ["RANK"] == "0":
        signal.pause()
    for step in range(1, 65):
        held.append(bytearray(b"x" * (16 << 20)))
        print(f"{16 * step} MiB held", flush=True)
"""
WAITING = """\
import os
import signal


def train() -> None:
    if os.environ["RANK"] == "1":
        check([3, -1])
    signal.pause()


def check(rows: list[int]) -> None:
    for row in rows:
        if row < 0:
            raise ValueError(f"row {row} is negative")
"""
FITTING = """\
import json
import os
import random
import signal
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

STEPS, WIDTH, RATE = 40, 8, 0.05


def fit(model: Path, checkpoints: Path, *, waits_at: int) -> dict[str, float]:
    rank, last = int(os.environ["RANK"]), checkpoints / "last.json"
    begin, weights = json.loads(last.read_text()) if last.exists() else (0, [0.0] * WIDTH)
    print(f"pid {os.getpid()} begins with step {begin}", flush=True)
    peer = meet(rank)
    for step in range(begin, STEPS):
        if rank == 1 and begin < waits_at == step:
            signal.pause()  # until it is killed, while the other waits for it
        mine = gradient(weights, random.Random(2 * step + rank))
        peer.send(mine)
        weights = [w - RATE * (a + b) / 2 for w, a, b in zip(weights, mine, peer.recv())]
        if rank == 0:
            part = last.with_suffix(".part")
            part.write_text(json.dumps([step + 1, weights]))
            part.replace(last)
            print(f"step {step} is done", flush=True)
    if rank == 0:
        (model / "weights").write_text(json.dumps(weights))
    return {"began_with": begin}


def meet(rank: int) -> Connection:
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        return Listener(address).accept()
    while True:
        try:
            return Client(address)
        except ConnectionRefusedError:
            time.sleep(0.05)


def gradient(weights: list[float], draw: random.Random) -> list[float]:
    row = [draw.gauss(0, 1) for _ in weights]
    error = sum((w - 1) * x for w, x in zip(weights, row))
    return [error * x for x in row]
"""


def kill_rank(author: Author, task: str, rank: int, *, after: str) -> None:
    """Kill -9 the process of a rank, whose pid it has printed, once a rank of its gang has said `after`."""

    def said(pattern: str) -> list[str]:
        return re.findall(rf"^{task} \| {pattern}", author.log.read_text(), re.MULTILINE)

    assert until(lambda: said(rf"\[rank \d+\] {after}"), seconds=300), author.log.read_text()[-3000:]
    (pid,) = said(rf"\[rank {rank}\] pid (\d+)")
    os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of all faults, one rank of one gang killed while it ran."""
    with Author(tmp_path_factory.mktemp("faults")) as author:
        author.write("faults", DAG, raising=RAISING, waiting=WAITING, growing=GROWING, fitting=FITTING)
        running = author.start("run", "faults")
        kill_rank(author, "killed", 1, after="step 9 is done")
        assert running.wait(timeout=GUARD_SECONDS) == 1
        assert author.is_quiet(), author.processes()
        assert author.is_clean()
        yield author


def job_of(author: Author, task: str) -> str:
    (job,) = [job for job in author.jobs() if job.startswith(f"faults-{task}-")]
    return job


def last_lines(author: Author, task: str) -> list[str]:
    return author.muster("jobs", "logs", job_of(author, task)).stdout.splitlines()[-20:]


def ends_with_verdict(lines: list[str], verdict: Mapping[str, str], job: str) -> bool:
    """Whether cause and rank, message and next step are the last lines, together, with nothing after them."""
    *said, log = lines[-4:]
    return log == f"full log: muster jobs logs {job}" and all(
        re.fullmatch(wanted, line) for wanted, line in zip(verdict.values(), said, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("task", "at"), [("apart", r"raising\.py:18"), ("together", r"waiting\.py:14")])
@pytest.mark.nightly  # test_task_log.py has each of these causes
def test_a_rank_that_raises_while_another_waits(ran: Author, task: str, at: str) -> None:
    """The one is in a collective of torch, whose own error comes at the same time; the other just sleeps."""
    lines = last_lines(ran, task)
    assert ends_with_verdict(
        lines,
        {
            "cause": "user error, rank 1",
            "message": "ValueError: row -1 is negative",
            "advice": rf"mend the code at faults/{at} and `muster run faults --resume`; earlier stages are kept",
        },
        job_of(ran, task),
    ), "\n".join(lines)
    log = ran.muster("jobs", "logs", job_of(ran, task)).stdout
    assert log.count("Traceback (most recent call last)") == 1  # the culprit's own, and no follower's
    # by what ended it first: its peer's loss, or our SIGTERM to it or to its replica
    assert any(line.startswith(("rank 0 followed", "replica main-0 was told to stop")) for line in lines)
    assert ran.log.read_text().count(f"{task}: user error, rank 1") == 1


@pytest.mark.slow
@pytest.mark.nightly  # test_task_log.py has each of these causes
def test_a_rank_over_its_memory(ran: Author) -> None:
    lines = last_lines(ran, "grows")
    assert ends_with_verdict(
        lines,
        {
            "cause": "out of memory, rank 1",
            "message": r"replica main-1 used 0\.\d+ GiB, its limit is 0\.25 GiB",
            "advice": "raise memory_gib in its resources, or hold less at once .*",
        },
        job_of(ran, "grows"),
    ), "\n".join(lines)


@pytest.mark.slow
@pytest.mark.nightly  # contract/test_backend.py has a gang that goes on from its checkpoint
def test_a_gang_whose_rank_was_killed_ends_with_the_same_weights(ran: Author) -> None:
    killed, undisturbed = (
        ran.ask("volumes", "show", f"faults/{task}@1") for task in ("killed", "undisturbed")
    )
    job = ran.ask("jobs", "show", job_of(ran, "killed"))["status"]
    assert (job["state"], job["restarts"]) == ("succeeded", 1)
    assert job["result"]["metrics"]["began_with"] >= 10  # it went on from its checkpoint
    assert killed["digest"] == undisturbed["digest"]
    log = ran.muster("jobs", "logs", job_of(ran, "killed")).stdout
    assert "the whole gang starts again from its checkpoint" in log


@pytest.mark.slow
@pytest.mark.nightly  # test_task_log.py has each of these causes
def test_the_last_lines_of_the_run_name_each_fault(ran: Author) -> None:
    said = ran.log.read_text()
    for task, cause in (
        ("apart", "user error, rank 1"),
        ("together", "user error, rank 1"),
        ("grows", "out of memory, rank 1"),
    ):
        assert f"muster: {task}: {cause}\n" in said[-2500:]


FLIGHTS = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, JobOperator, Output, Resources


@dag
def flights():
    features = JobOperator(
        task_id="features", image="etl", entrypoint="flights.etl:features",
        outputs={"features": Output(volume="flights/features", partition="*")},
        params={"since": "2013-01", "month": "2013-03"}, resources=Resources(cpus=2, memory_gib=4),
    )
    for name in ("undisturbed", "killed"):
        features >> GangOperator(
            task_id=name, image="train", entrypoint="flights.told:train", replicas=2, retries=0,
            resources=Resources(memory_gib=4),
            inputs={"train": "flights/features@<2013-03", "test": "flights/features@>=2013-03"},
            outputs={"model": f"flights/{name}"}, params={"epochs": 6, "seed": 7},
        )


flights()
"""

TOLD = """\
import os
from pathlib import Path

from flights import train as flights


def train(train: list[Path], test: list[Path], model: Path, checkpoints: Path, *, epochs: int, seed: int):
    print(f"pid {os.getpid()}", flush=True)
    return flights.train(train, test, model, checkpoints, epochs=epochs, seed=seed)
"""


@pytest.mark.soak
def test_the_flights_model_is_the_same_after_a_rank_was_killed(author: Author) -> None:
    folder = author.folder / "dags" / "flights"
    shutil.copytree(ROOT / "dags" / "flights", folder, ignore=shutil.ignore_patterns("__pycache__"))
    author.write("flights", FLIGHTS, told=TOLD)
    running = author.start("run", "flights")
    kill_rank(author, "killed", 1, after="muster: epoch=2/6")
    assert running.wait(timeout=300) == 0, author.log.read_text()[-3000:]
    (job,) = [job for job in author.ask("jobs", "ls") if job["name"] == "flights.killed"]
    assert author.ask("jobs", "show", job["job_id"])["status"]["restarts"] == 1
    models = [author.ask("volumes", "show", f"flights/{name}") for name in ("undisturbed", "killed")]
    hashes = [{entry["path"]: entry["hash"] for entry in model["entries"]} for model in models]
    assert hashes[0]["model.onnx"] == hashes[1]["model.onnx"]
    assert hashes[0]["report.json"] == hashes[1]["report.json"]
    assert author.is_clean()
    assert author.is_quiet(), author.processes()
