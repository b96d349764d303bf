"""What a restart costs in the test cluster: a rank killed, a pod deleted, a gang preempted.

The rows of :mod:`benchmarks.restarts`; a deleted pod is beside that of an equal JobSet by hand, whose pods mount the
same claim and have an init container.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from tests.cluster import kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.replay import Recorder

from benchmarks.cluster_gangs import Beside
from benchmarks.cluster_site import Site, site
from benchmarks.pairs import Ratio
from benchmarks.restarts import (
    DELETED_SECONDS,
    FEWER_SECONDS,
    KILLED_SECONDS,
    PREEMPTED_SECONDS,
    SAME_SECONDS,
    URGENT_SECONDS,
    begun,
    gang,
    one_fewer,
    rank_killed,
    row,
    same,
    until,
)
from muster.backends.kubernetes.labels import JOB
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

CARDS = Resources(cpus=0.1, memory_gib=1, gpus=2, gpu_class=("gpu-k80",))
ALL_CARDS = Resources(cpus=0.1, memory_gib=0.25, gpus=4, gpu_class=("gpu-k80",))


def in_the_cluster(root: Path | None, sizes: Sequence[int], *, runs: int) -> Iterator[Ratio]:
    """Yield a row for each fault."""
    names = (f"restarts-{number}" for number in count())
    with site(root) as there:
        medians = []
        for megabytes in sizes:
            took = []
            for name in (next(names) for _ in range(runs)):
                lose = partial(rank_killed, there.backend, name, megabytes=megabytes, resources=CARDS)
                took.append(lose())
                _end(there, name)
            made = row(f"cluster: rank killed, {megabytes} MB", took, promised=KILLED_SECONDS)
            medians.append(made.ours)
            yield made
        if len(medians) > 1:
            yield same(medians, promised=SAME_SECONDS)
        fewer = [_one_fewer(there, next(names)) for _ in range(runs)]
        yield row("cluster: a job waits, goes on with n - 1", fewer, promised=FEWER_SECONDS)
        took = [_preempted(there, next(names)) for _ in range(runs)]
        yield row("cluster: preempted, from when there is room", took, promised=PREEMPTED_SECONDS)
        with Recorder(there.layout) as recorder:
            beside = Beside(there, recorder)
            by_hand, ours = beside.restarts(beside.apply_furnished, pairs=runs)
        more = [mine - theirs for theirs, mine in zip(by_hand, ours, strict=True)]
        print(f"by hand: {by_hand}\nmuster: {ours}", file=sys.stderr)
        yield row("cluster: pod deleted, above a JobSet by hand", more, promised=DELETED_SECONDS)


def _one_fewer(there: Site, name: str) -> float:
    """Have an elastic gang of all cards give a replica to a job that waits."""
    try:
        return one_fewer(there.backend, name, resources=CARDS)
    finally:
        _end(there, name)


def _preempted(there: Site, name: str) -> float:
    """Have a gang preempted for some seconds; return those from when there is room again to its next step."""
    backend, store = there.backend, there.backend.store
    spec = gang(store, megabytes=10, fault="none", resources=CARDS, priority="low")
    backend.submit(spec, job_id=name)
    begun(backend, name, number=1)
    # The job that takes the place of others; it does nothing, for as long as the measurement needs it.
    idle = (
        f"import time; time.sleep({URGENT_SECONDS}); print('end', time.time())"  # the time it has the cards
    )
    words = ("python", "-u", "-c", idle)
    urgent = JobSpec(
        name="benchmark.urgent",
        image="python",
        image_digest=there.digest("python"),
        roles=(Role(command=words, resources=ALL_CARDS),),
        priority="high",
    )
    backend.submit(urgent, job_id=f"{name}-urgent")
    selector = f"--selector={JOB}={name}-urgent"
    ask = ("get", "pods", selector, f"--namespace={NAMESPACE}", "--output=jsonpath={.items[*].status.phase}")
    until(
        f"{name} has room again",
        lambda: set(kubectl.ask(there.layout, *ask).split()) == {"Succeeded"},
    )
    room = time.time()
    took = begun(backend, name, number=2)[-1].after(room)
    _end(there, name)
    return took


def _end(there: Site, name: str) -> None:
    """Let a gang end, and clear away all that it left."""
    until(f"{name} has ended", lambda: there.backend.status(name).state.ended)
    there.clear()
