"""What a real cluster shows of each fault, and the verdict on it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.cluster import kubectl
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.scripted import SMALL, WAIT, Jobs, job, jobs, record

from muster.backends.kubernetes.api.kinds import POD_GROUP, Document
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.labels import MAIN
from muster.backends.kubernetes.state.observe import ObservedJob, observe
from muster.backends.kubernetes.state.seen import JobObjects
from muster.backends.kubernetes.state.verdicts import verdict
from muster.core.errors import BackendError
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.resources import Resources
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict

pytestmark = pytest.mark.cluster

INDEX = "int(__import__('os').environ['MUSTER_REPLICA'])"
UNTIL_TOLD = "import os, time\nwhile not os.path.exists('/tmp/told'): time.sleep(0.1)"
TELL = "open('/tmp/told', 'w').close()"
LATER = 3600.0  # what is given time to settle has had it by then


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Jobs]:
    with jobs(layout(), groups=True) as found:
        yield found


@pytest.fixture
def here(everywhere: Jobs) -> Iterator[Jobs]:
    yield everywhere
    everywhere.clear()


def ending(code: int, said: str = "") -> str:
    """The first replica ends so; the other waits for it."""
    return f"import sys, time\nif {INDEX} == 0:\n  print({said!r})\n  sys.exit({code})\ntime.sleep(600)"


def image(reference: str, policy: str = "IfNotPresent") -> Callable[[Document], None]:
    def change(pod: Document) -> None:
        for container in (*pod["initContainers"], *pod["containers"]):
            container |= {"image": reference, "imagePullPolicy": policy}

    return change


def without_init(pod: Document) -> None:
    del pod["initContainers"]


def small_disk(pod: Document) -> None:
    for volume in pod["volumes"]:
        if volume.get("emptyDir") == {}:
            volume["emptyDir"] = {"sizeLimit": "1Mi"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done, and the verdict to be had."""

    script: str = WAIT
    spec: JobSpec | None = None
    change: Callable[[Document], None] = lambda pod: None
    start: dict[str, Any] = field(default_factory=dict)
    ahead_seconds: float = 0.0
    cause: Cause
    message: str
    rank: int | None = None
    seconds: float = 60.0


FAULTS = {
    "user-error": Fault(
        script=ending(64, "ValueError: the loss is NaN"),
        cause=Cause.USER_ERROR,
        message=r"the worker of replica main-0 ended with exit code 64: ValueError: the loss is NaN",
        rank=0,
    ),
    "spec-error": Fault(
        script=ending(65, "no module flights"),
        cause=Cause.SPEC_ERROR,
        message=r"the worker of replica main-0 ended with exit code 65: no module flights",
        rank=0,
    ),
    "single": Fault(
        script="import sys; print('KeyError: day'); sys.exit(64)",
        spec=job("single", Role(entrypoint="probe:run", resources=SMALL)),
        cause=Cause.USER_ERROR,
        message=r"the worker of replica main-0 ended with exit code 64: KeyError: day",
        rank=0,
    ),
    "rank-lost": Fault(
        script=ending(68, "gloo: connection closed by peer"),
        cause=Cause.RANK_LOST,
        message=r"the worker of replica main-0 ended with exit code 68: gloo.* \(it was started again once\)",
        rank=0,
        seconds=120,
    ),
    "single-rank-lost": Fault(
        script="import sys; sys.exit(137)",
        spec=job("single", Role(entrypoint="probe:run", resources=SMALL)),
        cause=Cause.RANK_LOST,
        message=r"the worker of replica main-0 was killed by signal 9 \(it was started again once\)",
        rank=0,
        seconds=120,
    ),
    "out-of-memory": Fault(
        script=f"import time\nheld = bytearray(500_000_000 if {INDEX} == 1 else 1)\ntime.sleep(600)",
        cause=Cause.OUT_OF_MEMORY,
        message=r"replica main-1 outgrew its memory limit of 0.0625 GiB on node \S+",
        rank=1,
    ),
    "run-timeout": Fault(
        spec=job("timeout", run_timeout_seconds=2),
        start={"longest_seconds": 2},
        cause=Cause.RUN_TIMEOUT,
        message=r"it ran longer than it may: Job was active longer than specified deadline",
    ),
    "image-not-there": Fault(
        change=image("localhost/absent:1", "Never"),
        cause=Cause.IMAGE_UNAVAILABLE,
        message=r"node \S+ cannot get image localhost/absent:1: .*not present with pull policy of Never",
    ),
    "registry-away": Fault(
        change=image("localhost/absent:1"),
        ahead_seconds=LATER,
        cause=Cause.IMAGE_UNAVAILABLE,
        message=r"node \S+ cannot get image localhost/absent:1: .*",
    ),
    "image-name": Fault(
        change=image("localhost/Not An Image"),
        cause=Cause.SPEC_ERROR,
        message=r"image 'localhost/Not An Image' is no image's name: .*invalid reference format",
    ),
    "no-python": Fault(
        change=image("localhost/shell:1"),
        cause=Cause.SPEC_ERROR,
        message=r"image localhost/shell:1 has no python3: muster's worker runs in the image's own Python",
    ),
    "no-secret": Fault(
        spec=job("secret", secrets={"KEY": SecretRef(source="kubernetes", name="absent/key")}),
        ahead_seconds=LATER,
        cause=Cause.SPEC_ERROR,
        message=r'replica main-\d cannot be made: secret "absent" not found',
    ),
    "disk": Fault(
        script=f"import time\nif {INDEX} == 0: open('/tmp/much', 'wb').write(bytes(50_000_000))\ntime.sleep(600)",
        change=small_disk,
        cause=Cause.SPEC_ERROR,
        message=r'replica main-0 wrote more than it may: Usage of EmptyDir volume "\S+" exceeds the limit',
        rank=0,
        seconds=120,
    ),
    "over-quota": Fault(
        spec=job(
            "quota",
            Role(
                replicas=9, entrypoint="probe:run", resources=replace(SMALL, gpus=2, gpu_class=("gpu-a100",))
            ),
        ),
        cause=Cause.UNSCHEDULABLE,
        message=r"queue team-a can never hold it: asks for too much nvidia.com/gpu of flavor gpu-a100 \(18, it has 16\)",
    ),
    "no-queue": Fault(
        start={"queue": "team-x"},
        ahead_seconds=LATER,
        cause=Cause.SPEC_ERROR,
        message=r"it waits in queue team-x, and LocalQueue team-x doesn't exist",
    ),
    "pod-security": Fault(
        change=lambda pod: pod.pop("securityContext"),  # type: ignore[arg-type, return-value]
        ahead_seconds=LATER,
        cause=Cause.SPEC_ERROR,
        message=r"the cluster admits none of its pods: .*violates PodSecurity",
    ),
}


@pytest.fixture(scope="module")
def faulty(request: pytest.FixtureRequest, everywhere: Jobs) -> Iterator[Jobs]:
    """All that are asked for, started at once: most of what follows is waiting."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    for name in asked.intersection(FAULTS):
        fault = FAULTS[name]
        everywhere.start(name, fault.spec or job(name), fault.script, change=fault.change, **fault.start)
    yield everywhere
    everywhere.clear()


@pytest.mark.parametrize("name", FAULTS)
def test_the_verdict_on(name: str, faulty: Jobs) -> None:
    fault, here = FAULTS[name], faulty
    spec = fault.spec or job(name)

    def judge(seen: JobObjects) -> Verdict | None:
        return verdict(seen, spec, now=time.time() + fault.ahead_seconds, cluster=here.cluster)

    found = here.until(name, "there is a verdict", judge, seconds=fault.seconds)
    record(name, here.seen(name), spec, now=time.time() + fault.ahead_seconds)
    here.clear(name)
    assert (found.cause, found.rank) == (fault.cause, fault.rank)
    assert re.search(fault.message, found.message), found.message


class TestWhatGoesOn:
    """What the cluster gets over by itself has no verdict."""

    def shown(self, here: Jobs, name: str, spec: JobSpec, state: JobState, **wanted: Any) -> ObservedJob:
        def look(seen: JobObjects) -> ObservedJob | None:
            found = observe(seen, spec)
            whole = found.state is state and all(
                getattr(found, key) == value for key, value in wanted.items()
            )
            return found if whole else None

        found: ObservedJob = here.until(name, f"it is {state.value}", look, seconds=90)
        record(f"{name}-{state.value}", here.seen(name), spec, now=time.time())
        assert verdict(here.seen(name), spec, now=time.time(), cluster=here.cluster) is None
        return found

    @pytest.mark.nightly  # contract/test_backend.py has jobs that run and end
    def test_running_and_done(self, here: Jobs) -> None:
        spec = job("well")
        here.start("well", spec, UNTIL_TOLD)
        found = self.shown(here, "well", spec, JobState.RUNNING, reason="2 replicas run")
        assert set(found.nodes) == {"main-0", "main-1"}
        assert found.started is not None
        assert abs(found.started - time.time()) < 30
        for pod in here.seen("well").pods:
            words = (pod["metadata"]["name"], f"--container={MAIN}", f"--namespace={NAMESPACE}")
            with suppress(
                BackendError
            ):  # the container may end, and what runs in it with it, once it is told
                kubectl.run(here.layout, "exec", *words, "--", "python3", "-c", TELL)
        self.shown(here, "well", spec, JobState.COMMITTING)
        assert [(pod.sealed, pod.runs) for pod in here.seen("well").replicas()] == [(True, False)] * 2

    @pytest.mark.nightly  # test_gangs.py deletes one
    def test_a_deleted_pod(self, here: Jobs) -> None:
        spec = job("deleted")
        here.start("deleted", spec, WAIT)
        self.shown(here, "deleted", spec, JobState.RUNNING)
        pod = here.seen("deleted").pods[0]["metadata"]["name"]
        kubectl.run(here.layout, "delete", "pod", pod, f"--namespace={NAMESPACE}", "--wait=false")
        self.shown(here, "deleted", spec, JobState.RUNNING, restarts=1)
        assert [pod.runs for pod in here.seen("deleted").replicas()] == [True, True]

    def test_an_evicted_pod(self, here: Jobs) -> None:
        spec = job("evicted", max_restarts=0)
        here.start("evicted", spec, WAIT)
        self.shown(here, "evicted", spec, JobState.RUNNING)
        metadata = here.seen("evicted").pods[0]["metadata"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"], "namespace": NAMESPACE},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{metadata['name']}/eviction"
        kubectl.run(here.layout, "create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))
        self.shown(here, "evicted", spec, JobState.RUNNING, restarts=1)
        assert [pod.runs for pod in here.seen("evicted").replicas()] == [True, True]

    @pytest.mark.nightly  # test_faults.py has a gang that is preempted
    def test_preempted_waiting_and_back(self, here: Jobs) -> None:
        cards = replace(SMALL, gpus=8, gpu_class=("gpu-a100",))
        low = job("low", Role(replicas=2, entrypoint="probe:run", resources=cards), priority="low")
        fewer = Role(replicas=2, entrypoint="probe:run", resources=replace(cards, gpus=6))
        high = replace(low, name="probes.high", priority="high", roles=(fewer,))
        here.start("low", low, WAIT)
        self.shown(here, "low", low, JobState.RUNNING)
        here.start("high", high, WAIT)
        waits = "in queue team-a: was preempted by a job of higher priority and waits again; needs "
        here.until("low", "it says why it waits", lambda seen: observe(seen, low).reason.startswith(waits))
        found = self.shown(here, "low", low, JobState.QUEUED)
        assert found.reason.endswith(" more nvidia.com/gpu of flavor gpu-a100")
        self.shown(here, "high", high, JobState.RUNNING)

    def test_a_class_without_room_on_one_node(self, here: Jobs) -> None:
        cards = replace(SMALL, gpus=5, gpu_class=("gpu-a100",))
        spec = job("wide", Role(replicas=3, entrypoint="probe:run", resources=cards))
        here.start("wide", spec, WAIT)
        # Kueue tells of the class that it tried, and then, if it comes by again, only of the others.
        why = re.compile(r"topology|; Kueue tells only of what it tried last")
        here.until("wide", "it says why", lambda seen: why.search(observe(seen, spec).reason))
        found = observe(here.seen("wide"), spec)
        assert found.state is JobState.QUEUED
        assert here.seen("wide").pods == ()


class TestPodGroups:
    """Without Kueue: Kubernetes' own gangs. A priority is a PriorityClass there, and the cluster has none."""

    @pytest.fixture
    def groups(self, here: Jobs) -> Cluster:
        return replace(here.cluster, kueue=False, priorities=frozenset())

    def test_running(self, here: Jobs, groups: Cluster) -> None:
        spec = job("group")
        here.start("group", spec, WAIT, queue=None, cluster=groups)
        here.until("group", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
        assert verdict(here.seen("group"), spec, now=time.time() + LATER, cluster=here.cluster) is None

    def test_no_room(self, here: Jobs, groups: Cluster) -> None:
        resources = Resources(cpus=12, memory_gib=0.0625)
        spec = job("crowd", Role(replicas=5, entrypoint="probe:run", resources=resources))
        here.start("crowd", spec, WAIT, queue=None, cluster=groups)
        found = here.until(
            "crowd",
            "it says why",
            lambda seen: "minCount" in (found := observe(seen, spec)).reason and found,
        )
        record("crowd-queued", here.seen("crowd"), spec, now=time.time() + LATER)
        assert found.state is JobState.QUEUED
        never = verdict(here.seen("crowd"), spec, now=time.time() + LATER, cluster=here.cluster)
        assert never is not None
        assert (never.cause, never.rank) == (Cause.UNSCHEDULABLE, None)
        assert "have room for 4 even when they are empty" in never.message

    def test_a_group_that_is_missing(self, here: Jobs, groups: Cluster) -> None:
        resources = Resources(cpus=12, memory_gib=0.0625)
        spec = job("orphan", Role(replicas=5, entrypoint="probe:run", resources=resources))
        here.start("orphan", spec, WAIT, queue=None, cluster=groups, without=POD_GROUP)
        here.until("orphan", "it has pods", lambda seen: len(seen.pods) == 5)
        found = verdict(here.seen("orphan"), spec, now=time.time() + LATER)
        record("orphan-group", here.seen("orphan"), spec, now=time.time() + LATER)
        assert found is not None
        assert found.cause is Cause.BACKEND_ERROR
        assert found.message == "PodGroup orphan is missing, so the scheduler starts none of the gang's pods"
