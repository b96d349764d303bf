"""What a restart costs: seconds from a fault in training to the gang's next step, above the script's own start.

``python -m benchmarks.restarts [--runs N] [--megabytes A,B] [--cluster] [--root FOLDER] [--json]``

A gang of two writes checkpoints of each size, then loses a rank (`kill -9`), on this machine and with ``--cluster`` in
the test cluster. An elastic gang gives a replica to a job that waits. In the cluster a pod is deleted, too, and the gang is preempted by one that takes all its cards for seconds. The
script itself needs next to nothing from its start to its first step, and says when both were. A row is a median, beside
the promised seconds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Protocol

from benchmarks.pairs import Ratio, ratio, show
from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.core.errors import MusterError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.patience import Patience
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.core.status import JobState
from muster.images.folders import find_image, put_image
from muster.volumes.protocols import Store

KILLED_SECONDS, DELETED_SECONDS, PREEMPTED_SECONDS, FEWER_SECONDS = 1.0, 3.0, 10.0, 5.0
SAME_SECONDS = 1.0
LONGEST_SECONDS = 300.0
URGENT_SECONDS = 3.0

TRAIN = """
    import os, signal, sys, time
    from pathlib import Path

    began, checkpoints, size = time.time(), Path(sys.argv[1]), int(sys.argv[2]) << 20
    rank, fault = int(os.environ["RANK"]), sys.argv[3]
    first = not (checkpoints / f"rank-{rank}").exists()
    if first and rank == 0:
        with open(checkpoints / "part", "wb") as file:
            for _ in range(size >> 20):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        os.rename(checkpoints / "part", checkpoints / "whole")
    while not (checkpoints / "whole").exists():
        time.sleep(0.02)  # rank 0 writes it
    (checkpoints / f"rank-{rank}").touch()
    print("step", began, time.time(), flush=True)
    if first and fault == "kill":
        while not all((checkpoints / f"rank-{number}").exists() for number in range(2)):
            time.sleep(0.02)  # the fault comes after both ranks' step
        time.sleep(1)  # and after both lines are in the log
        if rank == 1:
            print("fault", time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600 if first else 0)  # a training that goes on until the fault
"""
_STEP, _FAULT = re.compile(r"\[rank (\d)\] step (\S+) (\S+)"), re.compile(r"fault (\S+)")


class Trains(Protocol):
    """Where a gang trains, and what happens to it there."""

    @property
    def store(self) -> Store:
        """The store with the job's log."""

    def submit(self, spec: JobSpec, *, job_id: str) -> None:
        """Begin a job."""


def gang(
    store: Store, *, megabytes: int, fault: str, resources: Resources, priority: str | None = None
) -> JobSpec:
    """Return the gang that trains."""
    words = ("python", "-u", "-c", dedent(TRAIN), "{checkpoints}", str(megabytes), fault)
    return JobSpec(
        name="benchmark.restarts",
        image="python",
        image_digest=put_image(store, find_image("python", [shipped("images")])),
        roles=(Role(replicas=2, command=words, resources=resources),),
        launcher=Launcher.TORCHRUN,
        grace_seconds=2.0,
        priority=priority,
    )


@dataclass(frozen=True)
class Start:
    """When each rank of one start of a gang began, and did its first step; seconds since the epoch."""

    began: tuple[float, ...]
    stepped: tuple[float, ...]

    def after(self, fault: float) -> float:
        """Seconds from a fault to this start's first step of all ranks, without the script's own."""
        own = max(stepped - began for began, stepped in zip(self.began, self.stepped, strict=True))
        return max(self.stepped) - fault - own


def starts(log: str) -> list[Start]:
    """Read the starts of a gang of two off its log."""
    steps = [(float(began), float(stepped)) for _, began, stepped in _STEP.findall(log)]
    pairs = zip(steps[::2], steps[1::2], strict=False)
    return [Start((one[0], other[0]), (one[1], other[1])) for one, other in pairs]


def log_of(store: Store, job_id: str) -> str:
    """Return the whole log of a job."""
    text, after = b"", 0
    while True:
        more, after = store.ledger.read(job_id, after=after)
        if not more:
            return text.decode()
        text += more


def until(what: str, condition: Callable[[], bool]) -> None:
    """Return as soon as that is so."""
    patience = Patience(LONGEST_SECONDS, first=0.05)
    while not condition():
        if not patience.wait():
            raise RuntimeError(f"not {what} after {LONGEST_SECONDS:g} s")


def begun(place: Trains, job_id: str, *, number: int) -> list[Start]:
    """Wait until a gang has started so often, and return its starts."""
    until(
        f"{job_id} has {number} starts",
        lambda: (
            len(starts(log_of(place.store, job_id))) >= number
            or place.store.ledger.status(job_id).state.ended
        ),
    )
    found = starts(log_of(place.store, job_id))
    if len(found) < number:
        raise RuntimeError(
            f"{job_id} ended: {place.store.ledger.status(job_id)}\n{log_of(place.store, job_id)[-2000:]}"
        )
    return found


def rank_killed(place: Trains, job_id: str, *, megabytes: int, resources: Resources) -> float:
    """Have a gang lose a rank; return the seconds that its restart cost."""
    spec = gang(place.store, megabytes=megabytes, fault="kill", resources=resources)
    place.submit(spec, job_id=job_id)
    last = begun(place, job_id, number=2)[-1]
    (fault,) = map(float, _FAULT.findall(log_of(place.store, job_id)))
    return last.after(fault)


def on_one_machine(sizes: Sequence[int], *, runs: int, folder: Path) -> Iterator[Ratio]:
    """Lose a rank on this machine, with checkpoints of each size."""
    cache = Settings.load().cache
    settings = Settings(home=folder / "home", cache=cache)
    place = Backend(MachinePlace(settings, machine=Machine(memory_gib=4)))
    names = (f"restart-{number}" for number in count())
    resources = Resources(cpus=0.1, memory_gib=0.25)
    medians: list[float] = []
    for megabytes in sizes:
        took = []
        for name in (next(names) for _ in range(runs)):
            took.append(rank_killed(place, name, megabytes=megabytes, resources=resources))
            until(
                f"{name} has ended",
                lambda name=name: place.store.ledger.status(name).state is JobState.SUCCEEDED,
            )
        medians.append(statistics.median(took))
        yield row(f"one machine: rank killed, {megabytes} MB", took, promised=KILLED_SECONDS)
    if len(medians) > 1:
        yield same(medians, promised=SAME_SECONDS)
    narrow = Backend(MachinePlace(settings, machine=Machine(memory_gib=2 * resources.memory_gib)))
    fewer = [one_fewer(narrow, name, resources=resources) for name in (next(names) for _ in range(runs))]
    yield row("one machine: a job waits, goes on with n - 1", fewer, promised=FEWER_SECONDS)


def one_fewer(place: Backend, job_id: str, *, resources: Resources) -> float:
    """Have an elastic gang give a replica to a job that waits; return the seconds until its next step."""
    spec = gang(place.store, megabytes=10, fault="none", resources=resources)
    (role,) = spec.roles
    place.submit(replace(spec, roles=(replace(role, least_replicas=1),)), job_id=job_id)
    until(f"{job_id} trains with both", lambda: {*steps(place, job_id)[-2:]} == {"0", "1"})
    before = len(steps(place, job_id))
    waits = replace(
        spec, roles=(replace(role, replicas=1, command=("sleep", "0.1")),), launcher=Launcher.PLAIN
    )
    began = time.time()
    place.submit(waits, job_id=f"{job_id}-waits")
    until(f"{job_id} goes on", lambda: len(steps(place, job_id)) > before)
    *_, (_, own, _) = _STEP.findall(log_of(place.store, job_id))
    for each in (job_id, f"{job_id}-waits"):  # the next gang finds all of the room
        until(f"{each} has ended", lambda each=each: place.status(each).state is JobState.SUCCEEDED)
    return float(own) - began


def steps(place: Backend, job_id: str) -> list[str]:
    """Return the ranks that have done their first step, over all starts; who looks has a gang change its size."""
    place.statuses([job_id])
    return [rank for rank, _, _ in _STEP.findall(log_of(place.store, job_id))]


def same(medians: Sequence[float], *, promised: float) -> Ratio:
    """Return the row that compares checkpoints of several sizes."""
    return row("  the same, whatever their size", [max(medians) - min(medians)], promised=promised)


def row(name: str, took: Sequence[float], *, promised: float) -> Ratio:
    """Return seconds beside the promised ones."""
    print(f"{name}: {', '.join(f'{each:.2f}' for each in took)}", file=sys.stderr)
    return ratio(name, [promised] * len(took), took, unit="s", limit=1.0)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restarts")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--megabytes", default="10,1000", help="sizes of the checkpoints, by commas")
    parser.add_argument("--cluster", action="store_true", help="in the test cluster as well (root)")
    parser.add_argument("--only-cluster", action="store_true", help="in the test cluster alone")
    parser.add_argument("--root", type=Path, help="the cluster's folder (below MUSTER_CACHE unless given)")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    sizes = [int(each) for each in asked.megabytes.split(",")]
    try:
        with tempfile.TemporaryDirectory(prefix="muster-restarts-", ignore_cleanup_errors=True) as folder:
            rows = (
                []
                if asked.only_cluster
                else list(on_one_machine(sizes, runs=asked.runs, folder=Path(folder)))
            )
        if asked.cluster or asked.only_cluster:
            from benchmarks.cluster_restarts import in_the_cluster  # it needs root and what the cluster needs

            rows += in_the_cluster(asked.root, sizes, runs=asked.runs)
    except MusterError as error:
        parser.exit(2, f"{error}\n")
    return show("restarts, beside the promised seconds", rows, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
