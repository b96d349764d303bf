"""What ``muster doctor`` looks at where jobs go to a cluster: each check with what was found and what to do.

They go from what everything else rests on to what rests on everything: where one ends it, those that
would only say the same again are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from muster.cli.checks import Check
from muster.cli.screen import when
from muster.core.errors import Forbidden, MusterError, SpecError
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.kubernetes.client import Client
    from muster.backends.kubernetes.facts import Cluster, Queue
    from muster.backends.kubernetes.written import ClusterSettings
    from muster.volumes.service.client import ServiceStore

_DAY_SECONDS = 86_400.0
_SOON_DAYS = 7


def cluster_checks(settings: Settings) -> Iterator[Check]:
    """Look at the cluster that the settings name; each check is made when it is asked for."""
    try:
        site = _Site.read(settings)
    except MusterError as error:
        yield _bad("cluster file", error, f"write it anew: MUSTER_CLUSTER names {settings.cluster}")
        return
    yield Check(name="cluster file", state="ok", found=f"{settings.cluster}, namespace {site.namespace}")
    yield from _store_checks(site)
    yield _images(site)
    connection = _connection(site)
    yield connection
    if connection.state == "ok":
        yield from _api_checks(site)


@dataclass(frozen=True)
class _Site:
    """One cluster, as it is written down and as it is found: looked at once for all checks."""

    written: ClusterSettings
    client: Client
    settings: Settings

    @classmethod
    def read(cls, settings: Settings) -> _Site:
        """Read the cluster's file; nothing is asked over the network."""
        from muster.backends.choose import LOOK_SECONDS
        from muster.backends.kubernetes.client import Client
        from muster.backends.kubernetes.connection import connect
        from muster.backends.kubernetes.written import read_file

        assert settings.cluster is not None
        file = read_file(settings.cluster)
        api = connect(kubeconfig=file.kubeconfig, context=file.context)
        return cls(file.settings, Client(api, patience_seconds=LOOK_SECONDS), settings)

    @property
    def namespace(self) -> str:
        return self.written.site.namespace

    @cached_property
    def cluster(self) -> Cluster:
        from muster.backends.kubernetes.discovery import discover

        return discover(self.client, namespace=self.namespace, claim=self.written.site.claim)


def _bad(name: str, error: MusterError, advice: str) -> Check:
    return Check(name=name, state="bad", found=str(error), advice=advice)


def _store_checks(site: _Site) -> Iterator[Check]:
    from muster.backends.choose import LOOK_SECONDS, service_store

    with service_store(site.written, site.settings, patience_seconds=LOOK_SECONDS) as store:
        check = _service(store, site)
        yield check
        if check.state == "ok":
            yield _jobs(store)
    yield _token(site.written.token)


def _service(store: ServiceStore, site: _Site) -> Check:
    advice = (
        f"see that the store service runs in namespace {site.namespace}, and that outside_store_url is where "
        "this machine reaches it"
    )
    try:
        count = len(store.volumes())
    except MusterError as error:
        if "token" in str(error):
            advice = (
                "make a token where the service's keys are: python -m muster.volumes.service --print-token"
            )
        return _bad("store service", error, advice)
    inside = site.written.site.store_url
    found = f"{site.written.store_url} answers: {count} volume{'s' * (count != 1)}"
    if inside != site.written.store_url:
        found += f" (pods reach it at {inside})"
    return Check(name="store service", state="ok", found=found)


def _token(text: str) -> Check:
    from muster.volumes.service.tokens import expiry

    ends = expiry(text)
    if ends is None:
        return Check(
            name="store token", state="bad", found="it is no token", advice="ask the store's operator for one"
        )
    import time

    days = (ends - time.time()) / _DAY_SECONDS
    found = f"counts until {when(ends)}"
    if days < 0:
        return Check(
            name="store token", state="bad", found=f"expired at {when(ends)}", advice="ask for a new one"
        )
    if days < _SOON_DAYS:
        return Check(name="store token", state="warn", found=found, advice="ask for a new one in time")
    return Check(name="store token", state="ok", found=found)


def _jobs(store: ServiceStore) -> Check:
    known = store.ledger.jobs()
    going = [status for status in store.ledger.statuses(known) if not status.state.ended]
    return Check(name="jobs", state="ok", found=f"{len(known)} known, {len(going)} have not ended")


def _images(site: _Site) -> Check:
    prefix, images = site.written.site.image_prefix, site.written.site.images
    own = f"{len(images)} named one by one" if images else ""
    if not prefix and not images:
        return Check(
            name="images",
            state="bad",
            found="no image_prefix, and no image is named",
            advice="set image_prefix to the registry and path under which the images of jobs are pushed",
        )
    if not prefix:
        return Check(
            name="images",
            state="warn",
            found=own,
            advice="a job with another image is refused: set image_prefix",
        )
    return Check(name="images", state="ok", found=", ".join(filter(None, (f"{prefix}/NAME:DIGEST", own))))


def _connection(site: _Site) -> Check:
    try:
        version = site.client.version()
    except MusterError as error:
        return _bad(
            "connection",
            error,
            "the cluster file's kubeconfig and context name the API server and how to log in there",
        )
    return Check(name="connection", state="ok", found=f"{site.client.host}, Kubernetes {version}")


def _api_checks(site: _Site) -> Iterator[Check]:
    served = site.client.served()
    yield _rights(site, served)
    yield _reading(site, served)
    try:
        cluster = site.cluster
    except MusterError as error:
        yield _bad("namespace", error, "nothing more can be said of the cluster before that")
        return
    yield _claim(cluster, site)
    yield _gangs(cluster)
    if cluster.kueue:
        yield _queue(cluster, site)
        yield _flavors(cluster)
    yield _gpus(cluster, site.written.site.gpu_resource)
    yield _gang(cluster, site)


def _rights(site: _Site, served: frozenset[tuple[str, str]]) -> Check:
    from muster.backends.kubernetes.rights import NEEDED, lacking, rules

    missing = lacking(site.client, NEEDED, namespace=site.namespace, served=served)
    if missing:
        what = ", ".join(f"{right.verb} {right.resource}" for right in missing)
        return Check(
            name="rights",
            state="bad",
            found=f"this account may not, in namespace {site.namespace}: {what}",
            advice=f"give it a Role there with {rules(missing)}",
        )
    return Check(name="rights", state="ok", found=f"all that jobs need in namespace {site.namespace}")


def _reading(site: _Site, served: frozenset[tuple[str, str]]) -> Check:
    from muster.backends.kubernetes.rights import HELPFUL, lacking, rules

    missing = lacking(site.client, HELPFUL, namespace=site.namespace, served=served)
    if missing:
        return Check(
            name="reading",
            state="warn",
            found=f"this account may not list {', '.join(right.resource for right in missing)}",
            advice=(
                "without that a job that can never run waits until its time is over, and `muster gpus` lacks the "
                f"nodes: give it a ClusterRole with {rules(missing)}"
            ),
        )
    return Check(name="reading", state="ok", found="nodes, quotas and flavors: what can never run is refused")


def _claim(cluster: Cluster, site: _Site) -> Check:
    from muster.backends.kubernetes.feasibility import check_place

    name = site.written.site.claim
    try:
        check_place(cluster, claim=name)
    except SpecError as error:
        return _bad("claim", error, "jobs of several nodes read and write the store through it")
    assert cluster.claim is not None
    modes = ", ".join(cluster.claim.modes)
    if cluster.claim.phase != "Bound":
        return Check(
            name="claim",
            state="warn",
            found=f"{name}, {modes}, is {cluster.claim.phase or 'not bound'}",
            advice="no pod starts before it is bound to a volume",
        )
    return Check(name="claim", state="ok", found=f"{name}, {modes}, bound")


def _gangs(cluster: Cluster) -> Check:
    from muster.backends.kubernetes.facts import Gangs

    there = {"JobSet": cluster.job_set, "Kueue": cluster.kueue, "PodGroup": cluster.pod_group}
    found = ", ".join(name for name, yes in there.items() if yes) or "none of JobSet, Kueue and PodGroup"
    if cluster.gangs is Gangs.NONE:
        missing = [name for name in ("JobSet", "Kueue") if not there[name]]
        return Check(
            name="gangs",
            state="bad",
            found=f"{found}: nothing starts a gang whole",
            advice=f"install {' and '.join(missing)}; jobs of one replica run without",
        )
    if cluster.gangs is Gangs.POD_GROUP:
        return Check(
            name="gangs",
            state="warn",
            found=f"{found}: the scheduler starts gangs whole",
            advice="install Kueue for queues, quotas, priorities and lists of GPU classes",
        )
    return Check(name="gangs", state="ok", found=f"{found}: Kueue starts gangs whole")


def _queue(cluster: Cluster, site: _Site) -> Check:
    from muster.backends.kubernetes.feasibility import choose_queue

    try:
        queue = choose_queue(cluster, site.written.site.queue, gang=True)
    except SpecError as error:
        if site.written.site.queue is None and cluster.queues:
            return Check(
                name="queue",
                state="warn",
                found=f"no queue of its own; there are {', '.join(sorted(cluster.queues))}",
                advice="set queue in the cluster file, or in each Dag",
            )
        return _bad("queue", error, "make a LocalQueue there, or name one that is there")
    assert queue is not None
    if queue.stopped:
        return Check(
            name="queue",
            state="bad",
            found=f"{queue.name} is stopped: {queue.stopped}",
            advice=f"see `kubectl describe clusterqueue {queue.cluster_queue}`",
        )
    return Check(name="queue", state="ok", found=f"{queue.name}{_quota(queue)}")


def _quota(queue: Queue) -> str:
    if queue.limits is None:
        return ", its quota may not be read"
    return f" of {queue.cluster_queue}, with quota of {', '.join(queue.limits) or 'nothing'}"


def _flavors(cluster: Cluster) -> Check:
    flavors = cluster.flavors.values()
    if not flavors:
        return Check(
            name="flavors",
            state="warn",
            found="none that may be read",
            advice="a ResourceFlavor for each class of nodes gives jobs their GPU class",
        )
    loose = [flavor.name for flavor in flavors if flavor.topology is None]
    if loose:
        return Check(
            name="flavors",
            state="bad",
            found=f"{', '.join(loose)} without a topologyName",
            advice="without it Kueue only counts, and pods of a gang may find no node: name a Topology",
        )
    return Check(name="flavors", state="ok", found=f"{', '.join(cluster.flavors)}, placed by their topology")


def _gpus(cluster: Cluster, resource: str) -> Check:
    if cluster.nodes is None:
        return Check(
            name="GPUs", state="warn", found="the nodes may not be read", advice="see the check of reading"
        )
    with_cards = [node for node in cluster.nodes if node.room.get(resource)]
    if not with_cards:
        return Check(
            name="GPUs",
            state="warn",
            found=f"no node has {resource}",
            advice="install the device plugin, or set gpu_resource to what the cards are called here",
        )
    unnamed = [node.name for node in with_cards if node.gpu_class is None]
    if unnamed:
        return Check(
            name="GPUs",
            state="warn",
            found=f"{len(unnamed)} nodes with GPUs have no class: {', '.join(unnamed[:3])}",
            advice="label each: kubectl label node NODE muster.dev/gpu-class=CLASS",
        )
    counts: dict[str, int] = {}
    for node in with_cards:
        counts[str(node.gpu_class)] = counts.get(str(node.gpu_class), 0) + int(node.room[resource])
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return Check(name="GPUs", state="ok", found=found)


def _gang(cluster: Cluster, site: _Site) -> Check:
    """Let the API server and its webhooks look at a gang of two, which is not made."""
    from muster.backends.kubernetes.rehearsal import rehearse

    try:
        rehearse(site.client, cluster, site=site.written.site)
    except Forbidden as error:
        return _bad("a gang", error, "see the check of rights")
    except MusterError as error:
        return _bad("a gang", error, "what refuses it would refuse every job")
    return Check(name="a gang", state="ok", found="one of two replicas would be taken (dry run)")
