"""The test cluster itself: gangs run in it, whole or not at all, and its nodes can be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import cluster, daemons, kubectl, nodes, store
from tests.cluster.inside import NAMESPACE, condition, gang, layout, phases, pods_of, workload_of
from tests.cluster.kubelet import GPU_CLASS
from tests.cluster.layout import Layout, node_called

from muster.core.errors import BackendError
from muster.volumes.service.client import ServiceStore

pytestmark = pytest.mark.cluster

WAIT = "import time; time.sleep(600)"
RENDEZVOUS = """
import glob, os, socket, time
while True:
    try:
        print("rank 0 is at", socket.gethostbyname("{name}-w-0-0.{name}"), "I am", os.getuid())
        break
    except OSError:
        time.sleep(0.1)
open("/claim/probe-" + os.environ["JOB_COMPLETION_INDEX"], "w").close()
while len(glob.glob("/claim/probe-*")) < 3:  # a pod that has ended has no name any more
    time.sleep(0.1)
"""


@pytest.fixture
def here() -> Iterator[Layout]:
    """The cluster; afterwards without the test's gangs, and without what they wrote."""
    of = layout()
    yield of
    kubectl.run(of, "delete", "jobsets", "--all", f"--namespace={NAMESPACE}", "--wait=true")
    for path in of.claim.glob("probe-*"):
        path.unlink()


@pytest.mark.nightly  # test_gangs.py has gangs of two classes
def test_a_gang_runs_on_the_cards_that_are_preferred(here: Layout) -> None:
    kubectl.apply(here, [gang("meets", pods=3, gpus=4, script=RENDEZVOUS.format(name="meets"))])
    kubectl.until("the gang is done", lambda: phases(here, "meets") == ["Succeeded"] * 3)

    pods = pods_of(here, "meets")
    line = f"rank 0 is at {pods[0]['status']['podIP']} I am 10001"
    names = [pod["metadata"]["name"] for pod in pods]

    def said() -> list[str]:  # the last lines may come after the end
        return [kubectl.ask(here, "logs", name, f"--namespace={NAMESPACE}") for name in names]

    kubectl.until("the logs are whole", lambda: said() == [line] * 3)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"a100-0", "a100-1"}
    assert sorted(path.name for path in here.claim.glob("probe-*")) == ["probe-0", "probe-1", "probe-2"]


@pytest.mark.nightly  # test_verdicts.py has a class without room
def test_a_gang_without_room_on_the_nodes_stays_whole_and_unstarted(here: Layout) -> None:
    """15 GPUs are within the quota and within what is free, but only two nodes have five of them."""
    kubectl.apply(here, [gang("waits", pods=3, gpus=5, script=WAIT)])
    kubectl.until("Kueue has seen the gang", lambda: bool(workload_of(here, "waits")))
    workload = workload_of(here, "waits")

    def why() -> str:
        return condition(here, "workloads.kueue.x-k8s.io", workload, "QuotaReserved").get("message", "")

    kubectl.until("Kueue says why it waits", lambda: "couldn't assign flavors" in why())
    assert pods_of(here, "waits") == []
    pending = kubectl.run(
        here, "get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/team-a/pendingworkloads"
    )
    assert workload in pending


@pytest.mark.nightly  # test_faults.py has a gang that is preempted
def test_a_higher_priority_takes_the_place_of_a_whole_gang(here: Layout) -> None:
    kubectl.apply(here, [gang("low", pods=2, gpus=8, script=WAIT, priority="low")])
    kubectl.until("the low gang runs", lambda: phases(here, "low") == ["Running"] * 2)
    kubectl.apply(here, [gang("high", pods=2, gpus=6, script=WAIT, priority="high")])
    kubectl.until("the high gang runs", lambda: phases(here, "high") == ["Running"] * 2)
    assert condition(here, "jobset", "low", "Suspended")["status"] == "True"


@pytest.mark.nightly  # test_manifests.py is on guard
def test_the_namespace_of_jobs_is_restricted(here: Layout) -> None:
    document = gang("root", pods=1, gpus=0, script=WAIT)
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": NAMESPACE}}
    del pod["securityContext"]
    with pytest.raises(BackendError, match=r"violates PodSecurity.*runAsNonRoot"):
        kubectl.apply(here, [bare | {"spec": pod}])


@pytest.mark.nightly  # test_faults.py loses one
def test_a_node_without_power_is_lost_and_comes_back_with_its_gpus(here: Layout) -> None:
    node = node_called("k80-0")
    nodes.power_off(here, node)
    kubectl.until("the node is lost", lambda: not nodes.is_ready(here, node))

    nodes.power_on(here, node)
    document = gang("again", pods=1, gpus=4, script="print('here')")
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"] = {GPU_CLASS: node.gpu_class}
    kubectl.apply(here, [document])
    kubectl.until("the gang is done", lambda: phases(here, "again") == ["Succeeded"])
    assert pods_of(here, "again")[0]["spec"]["nodeName"] == node.name


def test_pods_of_a_node_without_network_go_on(here: Layout) -> None:
    node = node_called("k80-0")
    script = (
        "import time\nfor n in range(6000):\n  open('/claim/probe-ticks', 'w').write(str(n)); time.sleep(0.1)"
    )
    document = gang("ticks", pods=1, gpus=4, script=script)
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"] = {GPU_CLASS: node.gpu_class}
    kubectl.apply(here, [document])
    ticks = here.claim / "probe-ticks"
    kubectl.until("the pod ticks", ticks.exists)

    nodes.disconnect(here, node)
    try:
        kubectl.until("the node is lost", lambda: not nodes.is_ready(here, node))
        before = ticks.read_text()
        kubectl.until("the pod ticks on", lambda: ticks.read_text() not in (before, ""))
    finally:
        nodes.reconnect(here, node)
    kubectl.until("the node is back", lambda: nodes.is_ready(here, node))
    nodes.wait_ready(here, node)


@pytest.mark.parametrize(  # test_client.py kills the API server, and has Kueue away
    "name", [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("kube-apiserver", "kueue")), "etcd"]
)
def test_a_program_of_the_control_plane_is_killed_and_started_again(here: Layout, name: str) -> None:
    daemons.stop(here, name)
    assert not cluster.is_up(here)
    cluster.start(here, name)
    kubectl.until("the API server answers", lambda: kubectl.ask(here, "get", "--raw", "/readyz") == "ok")
    kubectl.apply(here, [gang("after", pods=2, gpus=1, script="print('here')")])
    kubectl.until("the gang is done", lambda: phases(here, "after") == ["Succeeded"] * 2)
    assert cluster.is_up(here)


@pytest.fixture
def served(here: Layout, tmp_path: Path) -> Iterator[ServiceStore]:
    """The store service in the cluster, as a laptop asks it."""
    store.deploy(here)
    with ServiceStore(store.URL, token=store.operator_token(here), cache=tmp_path / "cache") as service:
        yield service


@pytest.mark.nightly  # test_gangs.py kills one
def test_the_store_service_outlives_a_kill(here: Layout, served: ServiceStore, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')")
    digest = served.put(tmp_path, ["hello.py"])
    store.kill(here)
    kubectl.until("the store service answers again", lambda: store.is_ready(here))
    assert served.put(tmp_path, ["hello.py"]) == digest
