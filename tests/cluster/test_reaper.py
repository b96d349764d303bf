"""The reaper on real nodes: what a lost one holds is freed, and what a healthy one is ending is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster import kubectl, nodes, reaper
from tests.cluster.accounts import NAMESPACE
from tests.cluster.inside import layout
from tests.cluster.layout import node_called
from tests.cluster.scripted import SMALL, WAIT, Jobs, job, jobs

from muster.backends.kubernetes.reaper import LOST_SECONDS
from muster.backends.kubernetes.state.observe import observe
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod
from muster.core.job import Role
from muster.core.status import JobState

pytestmark = pytest.mark.cluster

LATE = f"""
import signal, sys, time
def end(*_):
    time.sleep({LOST_SECONDS + 2})
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def here() -> Iterator[Jobs]:
    with jobs(layout()) as found:
        yield found
        found.clear()


@pytest.fixture(autouse=True)
def without_a_reaper() -> None:
    reaper.remove(layout())


def the_pod(seen: JobObjects) -> dict[str, Any] | None:
    return seen.pods[0] if seen.pods else None


def delete(here: Jobs, pod: dict[str, Any], *how: str) -> None:
    name = pod["metadata"]["name"]
    kubectl.run(here.layout, "delete", "pod", name, f"--namespace={NAMESPACE}", "--wait=false", *how)


@pytest.mark.nightly  # test_faults.py loses a node, whose pods it frees
def test_to_delete_a_lost_pod_is_not_enough_and_the_reaper_frees_it(here: Jobs) -> None:
    """Hence its right to patch pods/status: where this fails, Kubernetes has learned better."""
    cards = replace(SMALL, gpus=1, gpu_class=("gpu-a100",))
    spec = job("lost", Role(entrypoint="probe:run", resources=cards))
    here.start("lost", spec, WAIT)
    here.until("lost", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
    (pod,) = here.seen("lost").pods
    node = node_called(pod["spec"]["nodeName"])
    nodes.power_off(here.layout, node)
    try:
        kubectl.until("the node is lost", lambda: not nodes.is_ready(here.layout, node))
        delete(here, pod, "--grace-period=0", "--force")
        left = here.until(
            "lost",
            "it is deleted without grace",
            lambda seen: (
                (pod := the_pod(seen)) and pod["metadata"].get("deletionGracePeriodSeconds") == 0 and pod
            ),
        )
        assert left["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        assert left["status"]["phase"] == "Running"

        reaper.deploy(here.layout)
        again = here.until(
            "lost",
            "it runs on another node",
            lambda seen: (found := observe(seen, spec)).state is JobState.RUNNING and found,
        )
        assert again.restarts == 1
        assert again.nodes["main-0"] != node.name
        assert f"freed pod {pod['metadata']['name']} of job lost: node {node.name} has been lost for" in (
            reaper.said(here.layout)
        )
    finally:
        nodes.power_on(here.layout, node)


def test_a_pod_of_a_healthy_node_has_its_grace(here: Jobs) -> None:
    spec = job("late", Role(entrypoint="probe:run", resources=SMALL), grace_seconds=60.0)
    reaper.deploy(here.layout)
    here.start("late", spec, LATE)
    here.until("late", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
    (pod,) = here.seen("late").pods
    delete(here, pod)
    code = here.until(
        "late",
        "its container has ended",
        lambda seen: next(
            (
                found.main.code
                for found in map(SeenPod.of, seen.pods)
                if found.name == pod["metadata"]["name"] and found.main.code is not None
            ),
            None,
        ),
    )
    assert code == 7
    assert "freed" not in reaper.said(here.layout)
