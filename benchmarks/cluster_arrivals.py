"""Gangs that arrive faster than they can run: cards that are idle while a gang waits, beside those of an ideal queue.

40 gangs of 6 to 16 cards arrive within 160 s at a quota of 16. An ideal queue gets the same gangs at the same moments, takes as
long to start and to end each of them as it took here, and lets each in at the very moment at which its room is free. What is
lost between one gang's end and the next one's start is the difference, in points of all cards; two rows:

- *above an ideal queue*: one that lets a gang that fits pass earlier ones that do not, as the cluster's does.
- *above an ideal FIFO*: one in which each gang waits for all before it. It leaves more cards idle.

On stderr stand the shares themselves, also beside an ideal queue in which each gang starts and ends as one that is alone on
the cluster, and where the time goes from one gang's end to the next one's start.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from textwrap import dedent

from tests.cluster import kubectl
from tests.cluster.replay import AdmissionSample, Recorder

from benchmarks import gang_steps
from benchmarks.cluster_site import Site
from benchmarks.gang_steps import Steps, steps_of
from benchmarks.idle_cards import Demand, Idle, Run, idle, played
from benchmarks.pairs import Ratio, ratio
from benchmarks.restarts import log_of
from muster.core.job import JobSpec, Role
from muster.core.patience import Patience
from muster.core.resources import Resources
from muster.core.status import JobState

SEED = 20131121
QUOTA, CLASS = 16, "gpu-a100"  # team-a's 12 of the new cards, and the 4 that it may borrow
SHAPES = ((3, 2), (2, 4), (5, 2), (3, 4), (4, 4))  # replicas, and cards of each
SPACING_SECONDS = 4.0  # between two arrivals, on average
RUN_SECONDS = (5.0, 12.0)
LOST_POINTS = 5.0
LOOK_SECONDS = 1.0  # as a triggerer looks at what waits
SECONDS_A_GANG, LEAST_SECONDS = 20.0, 120.0

RANK = """
    import sys, time

    print("rank began", time.time(), flush=True)
    time.sleep(float(sys.argv[1]))  # a training
    print("rank ended", time.time(), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One gang of the trace.

    :param after_seconds: when it arrives. :param cards: of each replica. :param run_seconds: of its ranks.
    """

    name: str
    after_seconds: float
    replicas: int
    cards: int
    run_seconds: float

    @property
    def all_cards(self) -> int:
        return self.replicas * self.cards


def measure(site: Site, *, gangs: int) -> list[Ratio]:
    """Return how many points of the cards are lost between gangs."""
    alone = _alone(site)
    trace = arrivals(gangs)
    began, steps = _replayed(site, trace)
    runs = [
        Run(
            cards=each.all_cards,
            arrived=began + each.after_seconds,
            began=steps[each.name].began,
            ended=steps[each.name].ended,
        )
        for each in trace
    ]
    demands = [_demand(run, steps[each.name]) for run, each in zip(runs, trace, strict=True)]
    real = idle(runs, quota=QUOTA)
    ideals = {
        passing: idle(played(demands, quota=QUOTA, passing=passing), quota=QUOTA) for passing in (True, False)
    }
    _tell(real, ideals, _as_alone(demands, alone), list(steps.values()))
    names = {True: "above an ideal queue", False: "above an ideal FIFO"}
    return [
        ratio(names[passing], [LOST_POINTS], [100 * (real.share - ideal.share)], unit="points", limit=1.0)
        for passing, ideal in ideals.items()
    ]


def arrivals(count: int) -> list[Arrival]:
    """Return the trace, the same one for the same count."""
    chance = random.Random(SEED)
    moments = sorted(chance.uniform(0, count * SPACING_SECONDS) for _ in range(count))
    found = []
    for number, after_seconds in enumerate(moments):
        replicas, cards = chance.choice(SHAPES)
        found.append(
            Arrival(
                name=f"arrives-{number}",
                after_seconds=after_seconds,
                replicas=replicas,
                cards=cards,
                run_seconds=chance.uniform(*RUN_SECONDS),
            )
        )
    return found


def _alone(site: Site) -> Steps:
    """Run one gang alone, the second of two: the first fills the caches."""
    for name in ("first", "alone"):
        only = Arrival(name=f"arrives-{name}", after_seconds=0.0, replicas=3, cards=4, run_seconds=5.0)
        _, steps = _replayed(site, [only])
    return steps[only.name]


def _replayed(site: Site, trace: Sequence[Arrival]) -> tuple[float, Mapping[str, Steps]]:
    """Submit each gang at its moment; return when the trace began, and each one's steps, when all have ended."""
    image = site.digest("python")
    with Recorder(site.layout) as recorder, ThreadPoolExecutor(len(trace)) as pool:
        began = time.time()

        def submit(arrival: Arrival) -> None:
            time.sleep(max(0.0, began + arrival.after_seconds - time.time()))  # the trace's own time
            site.backend.submit(_spec(arrival, image), job_id=arrival.name)

        _ended(site, {arrival.name: pool.submit(submit, arrival) for arrival in trace})
        site.clear()
        kubectl.until("the room of all is free", lambda: _released(recorder) >= {each.name for each in trace})
    samples = recorder.samples
    return began, {
        each.name: steps_of(each.name, samples, log_of(site.backend.store, each.name)) for each in trace
    }


def _released(recorder: Recorder) -> set[str]:
    ends = (each for each in recorder.samples if isinstance(each, AdmissionSample) and each.finished)
    return {each.gang for each in ends}


def _spec(arrival: Arrival, image: str) -> JobSpec:
    resources = Resources(cpus=0.05, memory_gib=0.125, gpus=arrival.cards, gpu_class=(CLASS,))
    words = ("python", "-c", dedent(RANK), str(arrival.run_seconds))
    return JobSpec(
        name=f"benchmark.{arrival.name}",
        image="python",
        image_digest=image,
        roles=(Role(replicas=arrival.replicas, command=words, resources=resources),),
        grace_seconds=2.0,
    )


def _ended(site: Site, submitted: Mapping[str, Future[None]]) -> None:
    """Look at the gangs, and clear ended ones away as their tasks would, until all have ended.

    :raises RuntimeError: one failed, or started again, or they take too long.
    """
    limit = LEAST_SECONDS + SECONDS_A_GANG * len(submitted)
    patience = Patience(limit, first=LOOK_SECONDS)
    while True:
        for each in submitted.values():
            if each.done():
                each.result()  # one that was refused will never end
        found = site.backend.statuses(submitted)
        bad = [
            f"{name}: {status.state.value}, {status.restarts} restarts, {status.verdict}"
            for name, status in found.items()
            if status.restarts or (status.state.ended and status.state is not JobState.SUCCEEDED)
        ]
        if bad:
            raise RuntimeError("\n".join(bad))
        site.backend.sweep()
        left = set(submitted) - {name for name, status in found.items() if status.state.ended}
        if not left:
            return
        if not patience.wait():
            raise RuntimeError(f"after {limit:.0f} s {len(left)} gangs have not ended: {sorted(left)[:5]}")


def _demand(run: Run, steps: Steps) -> Demand:
    """Return what a gang would need of an ideal queue."""
    return Demand(
        cards=run.cards,
        arrived=run.arrived,
        start_seconds=steps.began - steps.admitted,
        run_seconds=steps.ended - steps.began,
        end_seconds=steps.finished - steps.ended,
    )


def _as_alone(demands: Sequence[Demand], alone: Steps) -> list[Demand]:
    start, end = alone.began - alone.admitted, alone.finished - alone.ended
    print(f"a gang alone: {start:.1f} s to start, {end:.1f} s to end", file=sys.stderr)
    return [replace(demand, start_seconds=start, end_seconds=end) for demand in demands]


def _tell(
    real: Idle, ideals: Mapping[bool, Idle], as_alone: Sequence[Demand], steps: Sequence[Steps]
) -> None:
    """Print the shares, and where the time goes."""
    print(
        f"{'cards while a gang waits':38} {'idle':>7} {'and one fits':>13} {'mean wait':>10}", file=sys.stderr
    )
    told = [("as it was", real)]
    for passing, name in ((True, "an ideal queue"), (False, "an ideal FIFO")):
        alone = idle(played(as_alone, quota=QUOTA, passing=passing), quota=QUOTA)
        told += [(name, ideals[passing]), ("  that starts each as one alone", alone)]
    for name, found in told:
        print(
            f"{name:38} {found.share:7.1%} {found.fitting:13.1%} {found.wait_seconds:8.0f} s", file=sys.stderr
        )
    print(f"{'from one gang to the next':38} {'of':26} {'mean s':>7} {'longest':>7}", file=sys.stderr)
    for row in gang_steps.rows(steps):
        print(row, file=sys.stderr)
