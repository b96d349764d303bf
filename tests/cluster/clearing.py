"""Takes away what tests make in a cluster that stays up, also that of tests that were killed."""

from __future__ import annotations

from tests.cluster import chart, cluster, deploying, kubectl, metrics, nodes, reaper, serving, store
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import NODES, Layout

MADE = "muster.dev/made-by-tests"  # a label, of what is neither a job nor a job's
_OF_TESTS = ("--all-namespaces", f"--selector={MADE}")
_OF_JOBS = (f"--namespace={NAMESPACE}", "--selector=muster.dev/job")
_ALL = (f"--namespace={NAMESPACE}", "--all", "--cascade=foreground")
_NAMES = '--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
_LET_GO = '--patch={"metadata": {"finalizers": null}}'


def clear(of: Layout) -> None:
    """Make a cluster what it was when it had come up, but for what the claim holds."""
    for node in NODES:
        nodes.reconnect(of, node)
    for node in NODES:
        nodes.wait_ready(of, node)
    _delete(of, "jobsets,jobs.batch,podgroups", *_ALL)
    _delete(of, "pods,secrets,services", *_OF_JOBS)
    for name in kubectl.run(of, "get", "configmaps", *_OF_TESTS, _NAMES).split():
        namespace, _, own = name.partition("/")
        kubectl.run(of, "patch", "configmap", own, f"--namespace={namespace}", "--type=merge", _LET_GO)
    _delete(of, "localqueues.kueue.x-k8s.io,configmaps,persistentvolumeclaims,resourcequotas", *_OF_TESTS)
    _delete(
        of, "clusterqueues.kueue.x-k8s.io,priorityclasses.scheduling.k8s.io,namespaces", f"--selector={MADE}"
    )
    if serving.was_up(of):
        serving.up(of)  # only KServe itself lets go of its objects
        _delete(of, "httproutes,inferenceservices", f"--namespace={NAMESPACE}", "--all")
        deploying.take_back(of)
    if chart.clear(of):
        cluster.furnish(of)
    metrics.remove(of)
    reaper.remove(of)
    store.remove(of)


def _delete(of: Layout, kinds: str, *which: str) -> None:
    kubectl.run(of, "delete", kinds, *which, "--ignore-not-found", "--wait", "--timeout=120s")
