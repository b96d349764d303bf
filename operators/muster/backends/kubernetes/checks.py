"""Checks of a cluster to which jobs go, each with what was found and what to do.

Later checks depend on earlier ones: where one fails, checks that would only repeat its failure are
left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from muster.backends.kubernetes.api.kinds import QUEUE_VIEW, WORKLOAD
from muster.backends.kubernetes.cluster import discovery
from muster.backends.kubernetes.cluster.facts import Gangs
from muster.backends.kubernetes.cluster.feasibility import check_place, choose_queue
from muster.backends.kubernetes.lifecycle.submitting import rehearse
from muster.backends.kubernetes.serving.gateway import addresses, ask
from muster.backends.kubernetes.serving.kinds import check_platform, platform_of
from muster.core.check import Check, bad, ok, warn
from muster.core.errors import BackendError, Forbidden, MusterError, SpecError
from muster.core.job import NORMAL
from muster.core.room import Room
from muster.volumes.service.connection import FAR_SECONDS, apart
from muster.volumes.service.tokens import expiry

if TYPE_CHECKING:
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.cluster.facts import Cluster, Queue
    from muster.backends.kubernetes.place import ClusterPlace
    from muster.backends.kubernetes.site import ClusterSite
    from muster.volumes.service.client import ServiceStore


_DAY_SECONDS = 86_400.0
_SOON_DAYS = 7


def cluster_checks(place: ClusterPlace) -> Iterator[Check]:
    """Yield the checks of a cluster; each runs when it is requested."""
    file = place.settings.cluster
    try:
        site = _Site(place)
    except MusterError as error:
        yield bad("cluster file", error, f"write it anew: MUSTER_CLUSTER names {file}")
        return
    yield ok("cluster file", f"{file}, namespace {site.namespace}")
    yield from _store_checks(site)
    yield _images(site)
    advice = "the cluster file's kubeconfig and context name the API server and how to log in there"
    connection = _tried("connection", lambda: _connection(site), advice)
    yield connection
    if connection.state == "ok":
        yield from _api_checks(site)


class _Site:
    """One cluster, and its state, read once for all checks. :raises MusterError: what names it is wrong."""

    def __init__(self, place: ClusterPlace) -> None:
        self.written, self.client, self.store = place.written, place.client, place.store
        self.namespace = self.written.site.namespace

    @cached_property
    def served(self) -> frozenset[tuple[str, str]]:
        return self.client.served()

    @property
    def kueue(self) -> bool:
        """Whether the cluster has Kueue."""
        return discovery.serves(self.served, WORKLOAD)

    @cached_property
    def cluster(self) -> Cluster:
        return discovery.discover(self.client, namespace=self.namespace, claim=self.written.site.claim)


def _store_checks(site: _Site) -> Iterator[Check]:
    check = _service(site)
    yield check
    if check.state == "ok":
        yield _tried("room", lambda: room_check(site.store.room(), site.written.site.claim))
        yield _tried("jobs", lambda: _jobs(site.store))
        ahead = site.store.connection.ahead_seconds
        if abs(ahead) > FAR_SECONDS:
            yield warn(
                "clock",
                apart(ahead),
                "the times that muster shows and counts with are not those of the cluster",
            )
    yield _token(site.written.token)


def _service(site: _Site) -> Check:
    advice = (
        f"see that it runs (kubectl get deployments --namespace {site.namespace}; the chart helm/muster makes one), and "
        "that outside_store_url is where this machine reaches it"
    )
    try:
        count = len(site.store.volumes())
    except MusterError as error:
        if "token" in str(error):
            advice = "make a new token on the machine or pod that has the keys: python -m muster.volumes.service --print-token"
        return bad("store service", error, advice)
    inside = site.written.site.store_url
    found = f"{site.written.store_url} answers: {count} volume{'s' * (count != 1)}"
    if inside != site.written.store_url:
        found += f" (pods reach it at {inside})"
    return ok("store service", found)


def room_check(room: Room, claim: str) -> Check:
    """Check that the store's claim has room for outputs of jobs."""
    state = "ok" if room.comfortable else "bad" if room.scarce else "warn"
    advice = (
        ""
        if room.comfortable
        else f"make room: `muster jobs gc` and `muster volumes gc` show what may go; or enlarge claim {claim}"
    )
    return Check(name="room", state=state, found=f"{room} (claim {claim})", advice=advice)


def _token(text: str) -> Check:
    ends = expiry(text)
    if ends is None:
        return bad("store token", "it is not a token", "ask the store's operator for one")
    days = (ends - time.time()) / _DAY_SECONDS
    found = f"counts until {_when(ends)}"
    if days < 0:
        return bad("store token", f"expired at {_when(ends)}", "ask for a new one")
    if days < _SOON_DAYS:
        return warn("store token", found, "ask for a new one in time")
    return ok("store token", found)


def _when(epoch_seconds: float) -> str:
    return time.strftime("%F %T", time.localtime(epoch_seconds))


def _jobs(store: ServiceStore) -> Check:
    known = store.ledger.jobs()
    going = [status for status in store.ledger.statuses(known) if not status.state.ended]
    return ok("jobs", f"{len(known)} known, {len(going)} have not ended")


def _images(site: _Site) -> Check:
    prefix, images = site.written.site.image_prefix, site.written.site.images
    own = f"{len(images)} named one by one" if images else ""
    if not prefix and not images:
        return bad(
            "images",
            "no image_prefix, and no image is named",
            "set image_prefix to the registry and path under which the images of jobs are pushed",
        )
    if not prefix:
        return warn("images", own, "a job with another image is refused: set image_prefix")
    return ok("images", ", ".join(filter(None, (f"{prefix}/NAME:DIGEST", own))))


def _connection(site: _Site) -> Check:
    return ok("connection", f"{site.client.host}, Kubernetes {site.client.version()}")


def _api_checks(site: _Site) -> Iterator[Check]:
    needed, helpful = discovery.needed(kueue=site.kueue), discovery.helpful(kueue=site.kueue)
    give = "give it a Role there, like that of the chart's operator account,"
    yield _granted(
        site, "rights", needed, told=f"all that jobs need in namespace {site.namespace}", give=give
    )
    yield _granted(
        site,
        "reading",
        helpful,
        told="nodes, quotas and flavors: a job that can never run is refused",
        give="without it a job that can never run waits until its queue timeout, and `muster gpus` shows no "
        "nodes: give the account a ClusterRole",
        lacks=warn,
    )
    try:
        cluster = site.cluster
    except MusterError as error:
        yield bad("namespace", error, "the other checks of the cluster need it")
        return
    of, shares = site.written.site, "jobs of several nodes read and write the store through it"
    yield _tried("claim", lambda: _claim(cluster, of), shares)
    yield _gangs(cluster, of)
    if cluster.kueue:
        yield _queue(cluster, of)
        yield _flavors(cluster)
        yield _priorities(cluster)
        yield _places(site)
    yield _gpus(cluster, of.gpu_resource)
    yield _gang(cluster, site.client, of)
    yield from _serving_checks(site)


_AGAIN = "this check failed to run: try again, and see the checks above"


def _tried(name: str, look: Callable[[], Check], advice: str = _AGAIN) -> Check:
    """Return what a look finds. :param advice: where it fails."""
    try:
        return look()
    except MusterError as error:
        return bad(name, error, advice)


def _granted(
    site: _Site,
    name: str,
    wanted: Iterable[discovery.Right],
    *,
    told: str,
    give: str,
    lacks: Callable[[str, str, str], Check] = bad,
) -> Check:
    """Check that this account has some rights. :param told: where it has all; `give`: what to do where it lacks some."""

    def look() -> Check:
        missing = discovery.lacking(site.client, wanted, namespace=site.namespace, served=site.served)
        if not missing:
            return ok(name, told)
        where = "" if all(right.whole for right in missing) else f", in namespace {site.namespace}"
        what = ", ".join(f"{right.verb} {right.resource}" for right in missing)
        found = f"this account may not{where}: {what}"
        return lacks(name, found, f"{give} with {discovery.rules(missing)}")

    return _tried(name, look)


def _serving_checks(site: _Site) -> Iterator[Check]:
    of, name = site.written.site, "rights to serve"
    if of.serving is None:
        yield ok("serving", "on the machine that deploys: the cluster file sets no serving platform")
        return
    yield _tried("serving", lambda: _platform(site.client, of, site.cluster))
    rights = discovery.serving_rights(platform_of(of).kind, gateway=bool(of.gateway))
    give = "set serving.enabled of the chart, or give it a Role there"
    yield _granted(
        site, name, rights, told=f"all that deployments need in namespace {site.namespace}", give=give
    )
    if of.gateway_metrics:
        yield _gateway_metrics(of.gateway_metrics)


def _platform(client: Client, site: ClusterSite, cluster: Cluster) -> Check:
    assert site.serving is not None
    try:
        check_platform(client, site, cluster)
    except SpecError as error:
        return bad("serving", error, "deployments need it; jobs run without")
    if not site.gateway:
        return warn(
            "serving",
            f"{site.serving.value}, without a Gateway",
            "a release moves all traffic at once: set gateway and serving_url to move it in steps",
        )
    found = f"{site.serving.value}, users come through Gateway {site.gateway} at {site.url('NAME')}"
    return ok("serving", found)


def _gateway_metrics(url: str) -> Check:
    name = "gateway metrics"
    try:
        asked = [ask(url, address) for address in addresses(url)]
    except BackendError as error:
        return warn(
            name,
            str(error),
            "while it cannot be read from here, errors that the Gateway itself answers are in no revision's counts",
        )
    return ok(name, f"{len(asked)} replicas of the Gateway report their answers")


def _claim(cluster: Cluster, site: ClusterSite) -> Check:
    name = site.claim
    check_place(cluster, claim=name)
    assert cluster.claim is not None
    modes = ", ".join(cluster.claim.modes)
    if cluster.claim.phase != "Bound":
        return warn(
            "claim",
            f"{name}, {modes}, is {cluster.claim.phase or 'not bound'}",
            "no pod starts before it is bound to a volume",
        )
    return ok("claim", f"{name}, {modes}, bound")


def _gangs(cluster: Cluster, site: ClusterSite) -> Check:
    there = {"JobSet": cluster.job_set, "Kueue": cluster.kueue, "PodGroup": cluster.pod_group}
    found = ", ".join(name for name, yes in there.items() if yes) or "none of JobSet, Kueue and PodGroup"
    if cluster.gangs is Gangs.NONE:
        missing = [name for name in ("JobSet", "Kueue") if not there[name]]
        if site.partial_starts and cluster.job_set:
            return warn(
                "gangs",
                f"{found}: replicas start one by one (partial_starts is set)",
                f"install {' and '.join(missing)}: two gangs may each hold what the other waits for",
            )
        return bad(
            "gangs",
            f"{found}: nothing starts a gang whole",
            f"install {' and '.join(missing)}; jobs of one replica run without",
        )
    if cluster.gangs is Gangs.POD_GROUP:
        return warn(
            "gangs",
            f"{found}: the scheduler starts gangs whole",
            "install Kueue for queues, quotas, priorities and lists of GPU classes",
        )
    return ok("gangs", f"{found}: Kueue starts gangs whole")


def _queue(cluster: Cluster, site: ClusterSite) -> Check:
    try:
        queue = choose_queue(cluster, site.queue, gang=True)
    except SpecError as error:
        if site.queue is None and cluster.queues:
            return warn(
                "queue",
                f"the cluster file names no queue; there are {', '.join(sorted(cluster.queues))}",
                "set queue there, or in each Dag",
            )
        return bad("queue", error, "create a LocalQueue of that name, or set queue to one that exists")
    assert queue is not None
    if queue.stopped:
        return bad(
            "queue",
            f"{queue.name} is stopped: {queue.stopped}",
            f"see `kubectl describe clusterqueue {queue.cluster_queue}`",
        )
    return ok("queue", f"{queue.name}{_quota(queue)}")


def _quota(queue: Queue) -> str:
    if queue.limits is None:
        return ", its quota may not be read"
    return f" of {queue.cluster_queue}, with quota of {', '.join(queue.limits) or 'nothing'}"


def _flavors(cluster: Cluster) -> Check:
    flavors = cluster.flavors.values()
    if not flavors:
        return warn(
            "flavors",
            "this account may read none",
            "a ResourceFlavor for each class of nodes gives jobs their GPU class",
        )
    loose = [flavor.name for flavor in flavors if flavor.topology is None]
    if loose:
        return bad(
            "flavors",
            f"{', '.join(loose)} without a topologyName",
            "name a Topology: without one Kueue only counts resources, and pods of a gang may find no node",
        )
    return ok("flavors", f"{', '.join(cluster.flavors)}, placed by their topology")


def _priorities(cluster: Cluster) -> Check:
    if cluster.priorities is None:
        return warn(
            "priorities",
            "this account may not read them",
            "see the check `reading`: a job that names no priority counts 0 then, less than low, and a misspelt one is "
            "found only by Kueue, after the job was submitted",
        )
    if not cluster.priorities:
        return warn(
            "priorities",
            "none",
            "a job with a priority is refused: create WorkloadPriorityClasses, or set the chart's queues.priorities",
        )
    found = ", ".join(sorted(cluster.priorities))
    if NORMAL not in cluster.priorities:
        return warn(
            "priorities",
            f"{found}, and no {NORMAL}",
            f"create a WorkloadPriorityClass {NORMAL}: without it a job that names no priority counts 0, below the trials "
            "of a search",
        )
    return ok("priorities", found)


def _places(site: _Site) -> Check:
    """Check that Kueue reports a job's place in its queue, which `muster queue` shows."""
    if discovery.serves(site.served, QUEUE_VIEW):
        return ok("places", "Kueue says which job is next")
    return warn(
        "places",
        f"Kueue does not serve {QUEUE_VIEW.api_version}",
        "start Kueue's visibility server: without it a waiting job shows what it waits for, but not its place",
    )


def _gpus(cluster: Cluster, resource: str) -> Check:
    if cluster.nodes is None:
        return warn("GPUs", "this account may not read the nodes", "see the check `reading`")
    with_cards = [node for node in cluster.nodes if node.room.get(resource)]
    if not with_cards:
        return warn(
            "GPUs",
            f"no node has {resource}",
            "install the device plugin, or set gpu_resource to the name of the cards' resource here",
        )
    unnamed = [node.name for node in with_cards if node.gpu_class is None]
    if unnamed:
        return warn(
            "GPUs",
            f"{len(unnamed)} nodes with GPUs have no class: {', '.join(unnamed[:3])}",
            "label each: kubectl label node NODE muster.dev/gpu-class=CLASS",
        )
    counts: dict[str, int] = {}
    for node in with_cards:
        counts[str(node.gpu_class)] = counts.get(str(node.gpu_class), 0) + int(node.room[resource])
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return ok("GPUs", found)


def _gang(cluster: Cluster, client: Client, site: ClusterSite) -> Check:
    """Submit a gang of two as a dry run to the API server and its webhooks."""
    try:
        rehearse(client, cluster, site=site)
    except Forbidden as error:
        return bad("a gang", error, "see the check `rights`")
    except MusterError as error:
        return bad("a gang", error, "every job would be refused for the same reason")
    return ok("a gang", "a gang of two replicas would be accepted (dry run)")
