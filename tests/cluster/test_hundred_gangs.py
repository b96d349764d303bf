"""Many gangs of random size at once, against a quota that holds a few, watched for the whole run.

A gang cannot begin in one instant: room is set aside for it, then its pods are made, bound and started one
after the other. What must never be is a gang that has begun and cannot go on:

1. a gang is let in once, with room for all of its pods, which is never taken away again;
2. no pod of it is there before that;
3. at no sample does one of its pods run while another has no room;
4. what is let in at once never exceeds the quota;
5. the ranks of all its pods run at the same time: each waits for all others before it ends;
6. it has as many pods as replicas, none of them made twice;

and that each comes to its good end, and leaves nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.cluster import kubectl, left
from tests.cluster.backend import backend
from tests.cluster.inside import layout
from tests.cluster.replay import Recorder, Replay

from muster.backends.base import Backend
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState, JobStatus
from muster.images.folders import find_image, put_image

pytestmark = pytest.mark.cluster

SEED = 20131121
CLASS = "gpu-a100"
QUOTA = 16  # team-a's 12 of the new cards, and the 4 that it may borrow
AT_ONCE = 16  # submitters
SECONDS_A_GANG = 30.0

MEET = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
until = time.monotonic() + 180
if rank:
    while True:
        try:
            rank_0 = socket.create_connection(place, timeout=180)
            break
        except OSError:
            assert time.monotonic() < until, "rank 0 does not answer"
            time.sleep(0.1)
    assert rank_0.recv(1) == b"!", "the others did not come"
else:
    server = socket.create_server(("", place[1]), backlog=world)
    server.settimeout(180)
    others = [server.accept()[0] for _ in range(world - 1)]
    for other in others:
        other.sendall(b"!")
time.sleep(2)  # a node tells whole seconds
"""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a gang is. :param cards: of each replica."""

    replicas: int
    cards: int


def sizes(count: int) -> dict[str, Size]:
    """Return gangs by job_id, the same ones for the same count; each fits into the quota alone."""
    chance, run = random.Random(SEED), os.urandom(2).hex()
    return {
        f"g{number:03}-{run}": Size(replicas=chance.randint(1, 6), cards=chance.choice((1, 2)))
        for number in range(count)
    }


def spec(job_id: str, size: Size, image_digest: str) -> JobSpec:
    resources = Resources(cpus=0.05, memory_gib=0.125, gpus=size.cards, gpu_class=(CLASS,))
    role = Role(replicas=size.replicas, command=("python", "-c", MEET), resources=resources)
    return JobSpec(
        name=f"hundred.{job_id}",
        image="python",
        image_digest=image_digest,
        roles=(role,),
        launcher=Launcher.TORCHRUN,
        grace_seconds=2.0,
    )


HEADING = (
    "gangs  pods  samples  gangs at once  cards at once  s in the queue  s from first pod to last  "
    "(of each: never a part of it)"
)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with backend(layout(), tmp_path_factory.mktemp("gangs")) as made:
        yield made


def submit(there: Backend, gangs: dict[str, Size]) -> None:
    """Submit all of them at once."""
    image = put_image(there.store, find_image("python", [shipped("images")]))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(there.submit, spec(job_id, size, image), job_id=job_id)
            for job_id, size in gangs.items()
        ]
    for job in jobs:
        job.result()


def ended(there: Backend, gangs: dict[str, Size]) -> dict[str, JobStatus]:
    """Return how each ended, when all have."""
    found: dict[str, JobStatus] = {}

    def all_have() -> bool:
        found.update(there.statuses(gangs))
        return len(found) == len(gangs) and all(status.state.ended for status in found.values())

    kubectl.until("all gangs have ended", all_have, seconds=120 + SECONDS_A_GANG * len(gangs))
    return found


def leaked(gangs: dict[str, Size]) -> list[str]:
    """What there is of them on the cluster: objects of any kind, and processes on any node."""
    return [*left.objects(layout(), gangs), *left.processes(layout(), b"rank 0 does not answer")]


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.soak)])
def test_never_a_part_of_a_gang(
    count: int, there: Backend, record_property: Callable[[str, object], None]
) -> None:
    gangs = sizes(count)
    with Recorder(layout()) as recorder:
        submit(there, gangs)
        statuses = ended(there, gangs)
        there.sweep()
        kubectl.until("nothing is left of them", lambda: not leaked(gangs), seconds=120)

    bad = {job_id: status for job_id, status in statuses.items() if status.state is not JobState.SUCCEEDED}
    assert not bad, {job_id: str(status.verdict) for job_id, status in bad.items()}
    assert {job_id: status.restarts for job_id, status in statuses.items() if status.restarts} == {}

    replay = Replay(
        sizes={job_id: size.replicas for job_id, size in gangs.items()},
        cards={job_id: size.cards for job_id, size in gangs.items()},
    ).run(recorder.samples)
    for job_id, gang in replay.gangs.items():
        assert not gang.wrong, (job_id, gang.wrong)
        assert gang.admitted == [gang.size], (job_id, gang.admitted)
        assert len(gang.pods) == gang.size, (job_id, sorted(gang.pods))
        assert gang.together(), (job_id, [pod.ran for pod in gang.pods.values()])
    assert 1 < replay.most_gangs < count  # a quota that holds a few
    assert replay.most_cards <= QUOTA
    waits = sorted((status.started or 0.0) - status.submitted for status in statuses.values())
    spread = max(gang.spread_seconds() for gang in replay.gangs.values())
    record_property(
        HEADING,
        f"{count:5} {sum(replay.sizes.values()):5} {replay.samples:8} {replay.most_gangs:13} "
        f"{replay.most_cards:7} of {QUOTA} {waits[0]:6.0f} to {waits[-1]:4.0f} {spread:22.0f}",
    )
