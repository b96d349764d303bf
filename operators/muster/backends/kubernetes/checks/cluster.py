"""Checks of a cluster to which jobs go, each with what was found and what to do.

Later checks depend on earlier ones: where one fails, checks that would only repeat its failure are
left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from muster.backends.kubernetes.api.kinds import WORKLOAD
from muster.backends.kubernetes.checks.gangs import gang_checks
from muster.backends.kubernetes.cluster import discovery
from muster.backends.kubernetes.serving.gateway import addresses, ask
from muster.backends.kubernetes.serving.kinds import check_platform, platform_of
from muster.core.check import Check, bad, ok, warn
from muster.core.errors import BackendError, MusterError, SpecError
from muster.core.room import Room
from muster.volumes.service.tokens import expiry

if TYPE_CHECKING:
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.cluster.facts import Cluster
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
    connection = _connection(site)
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
    try:
        version = site.client.version()
    except MusterError as error:
        return bad(
            "connection",
            error,
            "the cluster file's kubeconfig and context name the API server and how to log in there",
        )
    return ok("connection", f"{site.client.host}, Kubernetes {version}")


def _api_checks(site: _Site) -> Iterator[Check]:
    yield _tried("rights", lambda: _rights(site))
    yield _tried("reading", lambda: _reading(site))
    try:
        cluster = site.cluster
    except MusterError as error:
        yield bad("namespace", error, "the other checks of the cluster need it")
        return
    yield from gang_checks(cluster, client=site.client, site=site.written.site)
    yield from _serving_checks(site)


def _tried(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except MusterError as error:
        return bad(name, error, "this check failed to run: try again, and see the checks above")


def _rights(site: _Site) -> Check:
    give = "give it a Role there, like that of the chart's operator account,"
    return _granted(site, "rights", discovery.needed(kueue=site.kueue), by="jobs", give=give)


def _granted(site: _Site, name: str, wanted: Iterable[discovery.Right], *, by: str, give: str) -> Check:
    missing = discovery.lacking(site.client, wanted, namespace=site.namespace, served=site.served)
    if not missing:
        return ok(name, f"all that {by} need in namespace {site.namespace}")
    what = ", ".join(f"{right.verb} {right.resource}" for right in missing)
    found = f"this account may not, in namespace {site.namespace}: {what}"
    return bad(name, found, f"{give} with {discovery.rules(missing)}")


def _reading(site: _Site) -> Check:
    missing = discovery.lacking(
        site.client, discovery.helpful(kueue=site.kueue), namespace=site.namespace, served=site.served
    )
    if missing:
        return warn(
            "reading",
            f"this account may not list {', '.join(right.resource for right in missing)}",
            "without it a job that can never run waits until its queue timeout, and `muster gpus` shows no "
            f"nodes: give the account a ClusterRole with {discovery.rules(missing)}",
        )
    return ok("reading", "nodes, quotas and flavors: a job that can never run is refused")


def _serving_checks(site: _Site) -> Iterator[Check]:
    if site.written.site.serving is None:
        yield ok("serving", "on the machine that deploys: the cluster file sets no serving platform")
        return
    try:
        yield _platform(site.client, site.written.site, site.cluster)
        yield _serving_rights(site)
        if site.written.site.gateway_metrics:
            yield _gateway_metrics(site.written.site.gateway_metrics)
    except MusterError as error:
        yield bad("serving", error, "this check failed to run: try again, and see the checks above")


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


def _serving_rights(site: _Site) -> Check:
    of = site.written.site
    wanted = discovery.serving_rights(platform_of(of).kind, gateway=bool(of.gateway))
    give = "set serving.enabled of the chart, or give it a Role there"
    return _granted(site, "rights to serve", wanted, by="deployments", give=give)
