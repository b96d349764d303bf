"""Says who still uses an installation: ``python -m muster.backends.kubernetes.uninstall``, which `helm uninstall` runs first.

Without a store service jobs that run lose what they do, and Kueue keeps the queues and flavors of jobs that have not ended
Terminating, so that the next install fails. The exit code is 1 where something is in use, and helm deletes nothing then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.access import connect, program
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind
from muster.backends.kubernetes.cluster.discovery import SERVING, serves
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.serving.names import DEPLOYMENT
from muster.backends.kubernetes.state.observe import completed, failed
from muster.core.errors import Forbidden, MusterError

_RELEASE = "app.kubernetes.io/instance"
_ROOTS = (kinds.JOB_SET, kinds.JOB)
_MANY = 5
PATIENCE_SECONDS = 20.0


def users(client: Client, *, namespace: str, release: str) -> Iterator[str]:
    """Say what uses a release: jobs and deployments of its namespace, and workloads of any in its queues."""
    roots = [each for kind in _ROOTS for each in _found(client, kind, namespace, JOB_LABEL)]
    jobs = {each["metadata"]["labels"][JOB_LABEL] for each in roots if not (completed(each) or failed(each))}
    if jobs:
        yield f"{_listed('job', jobs)}: wait for the end, or `muster jobs cancel JOB`"
    served = [each for kind in SERVING for each in _found(client, kind, namespace, DEPLOYMENT)]
    if names := {each["metadata"]["labels"][DEPLOYMENT] for each in served}:
        yield f"{_listed('deployment', names)}, which read the claim: `muster deployments retire NAME`"
    for queue in _found(client, kinds.CLUSTER_QUEUE, None, f"{_RELEASE}={release}"):
        status = queue.get("status") or {}
        count = int(status.get("reservingWorkloads") or 0) + int(status.get("pendingWorkloads") or 0)
        if count:
            yield f"{count} workload{'s' * (count > 1)} in ClusterQueue {queue['metadata']['name']}: `kubectl get workloads.kueue.x-k8s.io --all-namespaces`"


def _found(client: Client, kind: Kind, namespace: str | None, labels: str) -> Sequence[Document]:
    """Return objects of a kind; none where the cluster does not know it, or the chart gives this account no right to list it.

    :raises Forbidden: the chart gives it, and it was taken away.
    """
    if kind.group and not serves(client.served(), kind):
        return ()
    try:
        return client.find(kind, namespace=namespace, labels=labels)
    except Forbidden:
        if kind in _ROOTS:
            raise
        return ()


def _listed(what: str, names: set[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"{len(names)} {what}{'s' * (len(names) > 1)} ({', '.join(sorted(names)[:_MANY])}{more})"


def main(arguments: Sequence[str]) -> int:
    """Look; the exit code says whether anything is in use."""
    parser = program("muster.backends.kubernetes.uninstall", "Say who still uses an installation.")
    parser.add_argument("--release", required=True, help="helm's name of the installation")
    asked = parser.parse_args(arguments)
    try:
        client = Client(connect(kubeconfig=asked.kubeconfig), patience_seconds=PATIENCE_SECONDS)
        found = list(users(client, namespace=asked.namespace, release=asked.release))
    except MusterError as error:
        found = [f"what uses it cannot be seen: {error}"]
    if not found:
        return 0
    sys.stdout.write(
        "".join(f"in use: {line}\n" for line in found)
        + "Nothing was deleted. With `helm uninstall --no-hooks` jobs that run lose what they do, and Kueue keeps queues and "
        "flavors until they have ended: an install before that fails.\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
