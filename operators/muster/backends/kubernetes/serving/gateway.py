"""The counters of revisions: what their servers counted, and what the Gateway answered users in their place.

A server that died, or is not reached, counts nothing. No server of ours answers 502 or 504, so those that a Gateway
counts of a Service, on the page that it has for Prometheus, are its own, and are in no server's counts.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.replicas import MetricsPage, Replicas, came_up
from muster.backends.kubernetes.serving.route import Route
from muster.backends.releases.figures import added
from muster.backends.releases.inference import exchanged
from muster.core.deployment import Counts
from muster.core.errors import BackendError, DeploymentError, Unreachable

_SERIES = "traefik_service_requests_total"
_TRAEFIK = re.compile(r"^traefik_", re.MULTILINE)
_ITS_OWN = ("502", "504")  # a server that it does not reach, that breaks off, or that it waits for no longer
_SECONDS = 1.0
_REST_SECONDS = (
    10.0  # how long a page that did not come is not asked again: waiting for it delays every other look
)

Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class GatewayPage:
    """One Gateway's page. :param born: when its process came up.

    :param answered: how many requests it answered itself, by what it calls a Service; those with any.
    """

    born: float
    answered: Mapping[str, int]


def read_page(text: str) -> GatewayPage:
    """Read a page of Traefik's (https://doc.traefik.io/traefik/observability/metrics/overview).

    :raises BackendError: it is another's, or not in that format.
    """
    from prometheus_client.parser import text_string_to_metric_families  # as for a server's page

    if not _TRAEFIK.search(text):
        raise BackendError(
            "that is no page of a Gateway that muster can read: expected Traefik's, on which series begin with traefik_"
        )
    lines = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_SERIES))  # of thousands
    answered: Counter[str] = Counter()
    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                if sample.labels["code"] in _ITS_OWN:
                    answered[sample.labels["service"]] += int(sample.value)
        return GatewayPage(born=came_up(text), answered=answered)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise BackendError(f"Traefik's page cannot be read ({error!r:.200})") from error


def grown(before: GatewayPage | None, now: GatewayPage) -> Counter[str]:
    """What a Gateway answered since an earlier page of its.

    Traefik drops the series of what its routes do not name, and begins anew where they do again: a series that is
    new, or lower than it was, has begun at 0.
    """
    seen = before.answered if before is not None and before.born == now.born else {}
    since = {name: seen.get(name, 0) for name in now.answered}
    return Counter({name: n - (since[name] if n >= since[name] else 0) for name, n in now.answered.items()})


def calls(service: str, *, namespace: str, route: str, backend: str) -> bool:
    """Whether Traefik calls a Service so that a route sends users to.

    Up to 3.6 by the Service and its port, from 3.7 on by route, Service, and its place in the route.
    """
    older, head = (
        re.escape(re.sub("-+", "-", text))  # as Traefik writes them
        for text in (f"{namespace}-{backend}-http-", f"httproute-{namespace}-{route}-gw-")
    )
    newer = rf"{head}.*-svc-{re.escape(f'{namespace}-{backend}')}-"
    return re.fullmatch(rf"(?:{older}|{newer})\d+@kubernetesgateway", service) is not None


def addresses(url: str) -> list[Address]:
    """Where the replicas of a Gateway have their page: a headless Service has an address of each.

    :raises Unreachable: that host has no address.
    """
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name that no DNS could have
        raise Unreachable(f"the Gateway's page {url}: {error}") from error
    # One that has addresses of two kinds is still one.
    same = [each[4] for each in found if each[0] == found[0][0]]
    return sorted({(str(each[0]), int(each[1])) for each in same})


def ask(url: str, address: Address) -> GatewayPage:
    """Return one replica's page. :raises Unreachable: it has none now; :raises BackendError: it cannot be read."""
    parts = urlsplit(url)
    try:
        told = {"Host": parts.netloc, "Accept": "text/plain"}
        status, data = exchanged(address, parts.path, headers=told, seconds=_SECONDS)
    except DeploymentError as error:
        raise Unreachable(f"the Gateway's page {url} at {address[0]}: {error!s:.200}") from error
    if status != HTTPStatus.OK:
        raise Unreachable(f"the Gateway's page {url} at {address[0]}: HTTP {status}")
    try:
        return read_page(data.decode("utf-8", "replace"))
    except BackendError as error:
        raise BackendError(f"the Gateway's page {url} at {address[0]}: {error}") from error


class Gateway:
    """What the replicas of a Gateway answered themselves, as far as was seen. Safe to share between threads.

    :param url: where their pages are.
    """

    def __init__(self, url: str, *, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._namespace = namespace
        self._clock = clock
        # Held while it is asked, too: an older page that came later would look like a restart.
        self._lock = threading.Lock()
        self._seen: dict[Address, GatewayPage] = {}
        self._totals: Counter[str] = Counter()
        self._rests_until = 0.0

    def look(self) -> None:
        """Take what the pages say now. Who does not tell is left out, as a server is, and asked again in a while."""
        with self._lock:
            if self._clock() < self._rests_until:
                return
            try:
                for address in addresses(self._url):
                    self._take(address, ask(self._url, address))
            except BackendError:  # what it counts is not lost: `muster doctor` says why
                self._rests_until = self._clock() + _REST_SECONDS

    def answered(self, deployment: str, revision: str) -> Counts:
        """What it answered in place of a revision: failures, every one of them."""
        made = names.revision_name(deployment, revision, namespace=self._namespace)
        backends, route = (
            (names.service_name(made), names.grpc_service_name(made)),
            names.route_name(deployment),
        )
        with self._lock:
            number = sum(
                n
                for service, n in self._totals.items()
                if any(
                    calls(service, namespace=self._namespace, route=route, backend=each) for each in backends
                )
            )
        return Counts(requests=number, failed=number)

    def _take(self, address: Address, page: GatewayPage) -> None:
        self._totals += grown(self._seen.get(address), page)
        self._seen[address] = page


Process = tuple[str, float]
"""One process that counts: its pod's uid, and when it came up."""


class Counters:
    """The counters of revisions. Safe to share between threads.

    Counts go up only for as long as it is the same object that is asked: a replica that died, or started again, takes
    nothing back of what it had counted.

    :param gateway: where the site says where its Gateway counts.
    """

    def __init__(self, replicas: Replicas, gateway: Gateway | None) -> None:
        self._replicas = replicas
        self._gateway = gateway
        self._lock = threading.Lock()
        self._seen: dict[str, dict[Process, Mapping[str, Counts]]] = {}  # last, by deployment

    def pages(self, pods: Sequence[Document]) -> list[MetricsPage]:
        """Ask pods and the Gateway for their pages; leave out a pod that does not answer.

        :raises BackendError: the Gateway's cannot be had.
        """
        if self._gateway:
            self._gateway.look()
        return self._replicas.pages(pods)

    def counted(self, route: Route, pages: Sequence[MetricsPage]) -> dict[str, Counts]:
        """Return what each revision of a route has answered; without those with traffic that no page tells of.

        :param pages: also those of other deployments.
        """
        name, heard = route.name, set[str]()
        for page in pages:
            if page.deployment == name:
                counts = page.counts()
                self._take(name, (page.pod, page.born), counts)
                heard.update(counts)
        counted = self._totals(name, [one.name for one in route.live])
        if self._gateway is not None:
            counted = added((counted, {one: self._gateway.answered(name, one) for one in counted}))
        silent = {one for one, percent in route.shares.items() if percent} - heard
        return {one: counts for one, counts in counted.items() if one not in silent}

    def _take(self, deployment: str, process: Process, counted: Mapping[str, Counts]) -> None:
        with self._lock:
            seen = self._seen.setdefault(deployment, {})
            if _all(seen.get(process, {})) <= _all(counted):  # two looks at once may end the other way round
                seen[process] = counted

    def _totals(self, deployment: str, revisions: Collection[str]) -> dict[str, Counts]:
        """Return the sums of these revisions, and forget the others."""
        with self._lock:
            seen = self._seen.get(deployment, {})
            kept = {process: counted for process, counted in seen.items() if counted.keys() & set(revisions)}
            self._seen[deployment] = kept
            sums = added(kept.values())
        return {name: sums.get(name, Counts()) for name in revisions}


def _all(counted: Mapping[str, Counts]) -> int:
    return sum(counts.requests for counts in counted.values())
