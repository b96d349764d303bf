"""What may happen to a gang in training: it ends with the weights of one that nothing happened to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster import cluster, daemons, kubectl, nodes, store
from tests.cluster.accounts import NAMESPACE
from tests.cluster.backend import backend
from tests.cluster.control_plane import NODE_GRACE_SECONDS
from tests.cluster.inside import layout
from tests.cluster.training import MANY, NEW, OLD, Training
from tests.waiting import until

from muster.backends.base import Backend
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState
from muster.images.folders import find_image, put_image

pytestmark = pytest.mark.cluster

NODE_SECONDS = NODE_GRACE_SECONDS + 30.0
ELECTED = ("kube-controller-manager", "kube-scheduler", "jobset", "kueue")
# The first process is the pod's, its child the worker, and the worker's children are the ranks.
KILL_A_RANK = """
import os, signal
parents = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        parents[int(pid)] = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
ranks = [pid for pid, parent in parents.items() if parents.get(parent) == 1]
os.kill(max(ranks), signal.SIGKILL)
"""


def nothing(_: Training) -> None:
    """Heal what heals by itself."""


def kill_a_rank(training: Training) -> None:
    words = ("exec", training.pod(OLD), "--container=base", f"--namespace={NAMESPACE}")
    kubectl.run(training.layout, *words, "--", "python3", "-c", KILL_A_RANK)


def delete_a_pod(training: Training) -> None:
    words = ("delete", "pod", training.pod(NEW), "--wait=false", f"--namespace={NAMESPACE}")
    kubectl.run(training.layout, *words)


class LoseANode:
    """A node of the gang is lost, and comes back when the gang has ended; or while it waits for it.

    :param cut: its network is, and what runs there goes on; else its power.
    """

    def __init__(self, role: str, *, cut: bool = False) -> None:
        self._role, self._cut = role, cut

    def strike(self, training: Training) -> None:
        self._node = training.node(self._role)
        lose = nodes.disconnect if self._cut else nodes.power_off
        lose(training.layout, self._node)
        if self._role == OLD:  # there is no other
            kubectl.until("the node is lost", lambda: not nodes.is_ready(training.layout, self._node))
            training.until("waiting", lambda status: status.state is not JobState.RUNNING)
            nodes.power_on(training.layout, self._node)

    def heal(self, training: Training) -> None:
        if self._cut:
            nodes.reconnect(training.layout, self._node)
            kubectl.until(
                "the node is back", lambda: nodes.is_ready(training.layout, self._node), seconds=120
            )
            nodes.wait_ready(training.layout, self._node)
        elif self._role == NEW:
            nodes.power_on(training.layout, self._node)


def preempt(training: Training) -> None:
    """Another job takes all the old cards for some seconds."""
    resources = Resources(cpus=0.1, memory_gib=0.25, gpus=4, gpu_class=("gpu-k80",))
    command = ("python", "-c", "import time; time.sleep(5)")
    image = put_image(training.backend.store, find_image("python", [shipped("images")]))
    urgent = JobSpec(
        name="faults.urgent",
        image="python",
        image_digest=image,
        roles=(Role(command=command, resources=resources),),
        priority="high",
    )
    training.backend.submit(urgent, job_id=_urgent(training))
    training.until("preempted", lambda status: status.state is JobState.QUEUED)


def sweep_up(training: Training) -> None:
    """No process waited for the other job: its objects are for the sweep."""
    kubectl.until("the urgent job has ended", lambda: training.backend.status(_urgent(training)).state.ended)
    assert _urgent(training) in training.backend.sweep()


def _urgent(training: Training) -> str:
    return f"{training.job_id}-urgent"


def restart(program: str) -> Callable[[Training], None]:
    return lambda training: cluster.restart(training.layout, program)


def leave_for_a_minute(training: Training) -> None:
    """The API server is away for so long: longer than a node may be silent, and than most of the training.

    Controllers that are elected, as a site's are, end when they cannot renew their lease, and are started again.
    Here none is elected: one that lived on would go by what it knew before, for minutes.
    """
    programs = ("kube-apiserver", *ELECTED)
    for program in programs:
        daemons.stop(training.layout, program)
    until(lambda: False, seconds=60.0)
    for program in programs:
        cluster.start(training.layout, program)


def kill_the_store(training: Training) -> None:
    store.kill(training.layout)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens during training.

    :param again: the gang has to start again, once.
    :param counts: that is one of its job's `max_restarts`. What is promised to be free has none of them to spare:
        eviction, preemption, a deleted pod and the loss of a node.
    :param in_place: it does so in the pods that it has.
    :param heal: what is done when it has ended.
    :param soak: not even one of it in make test-cluster: it takes too long.
    :param nightly: left out of CI: it takes long, and others show what it does: test_gangs.py deletes a pod and kills the store,
        contract/test_backend.py loses a rank, test_client.py kills the API server and Kueue, test_cluster.py cuts a node off.
    :param within_seconds: of the fault the whole gang is to run again; held in soak.
    """

    strike: Callable[[Training], None]
    heal: Callable[[Training], None] = nothing
    again: bool = True
    counts: bool = False
    in_place: bool = False
    within_seconds: float | None = None
    soak: bool = False
    nightly: bool = False


def faults() -> dict[str, Fault]:
    lost, cut, only = LoseANode(NEW), LoseANode(NEW, cut=True), LoseANode(OLD)
    return {
        "API server restarted": Fault(strike=restart("kube-apiserver"), again=False, nightly=True),
        "API server away for 60 s": Fault(strike=leave_for_a_minute, again=False, soak=True),
        "rank killed": Fault(strike=kill_a_rank, counts=True, in_place=True, nightly=True),
        "pod deleted": Fault(strike=delete_a_pod, nightly=True),
        "node without power": Fault(strike=lost.strike, heal=lost.heal, within_seconds=NODE_SECONDS),
        "node without network": Fault(
            strike=cut.strike, heal=cut.heal, within_seconds=NODE_SECONDS, nightly=True
        ),
        "only node of its class": Fault(strike=only.strike, nightly=True),
        "preempted": Fault(strike=preempt, heal=sweep_up),
        "Kueue restarted": Fault(strike=restart("kueue"), again=False, nightly=True),
        "store service killed": Fault(strike=kill_the_store, again=False, nightly=True),
    }


FAULTS = faults()


HEADING = (
    f"{'fault':24} {'restarts':>8} {'began at steps':>16} {'runs again s':>12} {'of s':>7} {'in all s':>9}"
    "   (of each: the same weights, one version, nothing left)"
)


@dataclass(frozen=True)
class Row:
    fault: str
    restarts: int
    began_at: str
    again_seconds: float
    whole_seconds: float
    within_seconds: float | None = None

    def __str__(self) -> str:
        within = "" if self.within_seconds is None else f"{self.within_seconds:.0f}"
        return (
            f"{self.fault:24} {self.restarts:8} {self.began_at:>16} {self.again_seconds:12.1f} {within:>7}"
            f" {self.whole_seconds:9.1f}"
        )


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with backend(layout(), tmp_path_factory.mktemp("faults")) as made:
        yield made


def begin(there: Backend, name: str, *, max_restarts: int = 0) -> Training:
    words = name.lower().replace(" ", "-")
    job_id = f"f-{words}-{int(time.time()) % 100_000}"[-40:].lstrip("-")
    training = Training(
        layout=layout(), backend=there, job_id=job_id, volume=f"faults/{job_id}", max_restarts=max_restarts
    )
    training.begin()
    return training


@pytest.fixture(scope="module")
def undisturbed(there: Backend) -> tuple[str, Row]:
    """The weights of a run to which nothing happens, and how it went."""
    began = time.monotonic()
    training = begin(there, "undisturbed")
    ended = training.until_ended()
    assert ended.state is JobState.SUCCEEDED, (ended, training.lines[-20:])
    assert training.began_at() == [0]
    seconds = time.monotonic() - began
    return training.digest(), Row("none", ended.restarts, "0", 0.0, seconds)


def test_nothing_happens(
    undisturbed: tuple[str, Row], record_property: Callable[[str, object], None]
) -> None:
    _, row = undisturbed
    record_property(HEADING, str(row))


def asked() -> Iterator[Any]:
    """Each fault once, and many times in soak."""
    for name, fault in FAULTS.items():
        marks = [pytest.mark.soak] * fault.soak + [pytest.mark.nightly] * fault.nightly
        yield pytest.param(name, 0, marks=marks)
        for number in range(1, MANY + 1):
            yield pytest.param(name, number, marks=pytest.mark.soak)


@pytest.mark.parametrize(("name", "number"), list(asked()))
def test_the_weights_are_the_same_after(
    name: str,
    number: int,
    undisturbed: tuple[str, Row],
    there: Backend,
    record_property: Callable[[str, object], None],
) -> None:
    fault, began = FAULTS[name], time.monotonic()
    weights, _ = undisturbed
    training = begin(there, f"{name}-{number}", max_restarts=int(fault.counts))
    training.until_step(5 + number)
    before = training.pods()
    struck = time.monotonic()
    fault.strike(training)
    try:
        again = training.until_runs_again(struck, restarts=int(fault.again))
        if fault.again:
            assert (training.pods() == before) == fault.in_place
        ended = training.until_ended()
    finally:
        fault.heal(training)
    seconds = time.monotonic() - began

    assert ended.state is JobState.SUCCEEDED, (ended.verdict, training.lines[-20:])
    first, *later = training.began_at()
    assert (first, bool(later), ended.restarts) == (0, fault.again, int(fault.again))
    assert all(step > 0 for step in later)
    assert training.digest() == weights
    kubectl.until("nothing is left of it", lambda: not training.leaked(), seconds=120)
    began_at = ", ".join(map(str, (first, *later)))
    row = Row(name, ended.restarts, began_at, again, seconds, fault.within_seconds)
    record_property(HEADING, str(row))
    # On a machine that runs other tests beside this one, seconds are a figure: they are held where it runs alone.
    assert fault.within_seconds is None or again <= fault.within_seconds or number == 0
