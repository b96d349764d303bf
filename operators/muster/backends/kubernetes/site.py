"""What a cluster's administrator settled once, so that a Dag need not say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from urllib.parse import urlsplit

from muster.core.errors import SpecError
from muster.core.names import check_digest, check_label, check_variable, check_whole

_IMAGE = re.compile(r"[a-z0-9]([a-z0-9._:/@-]*[a-z0-9])?\Z")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_GATEWAY = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_FOLDER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,200}[A-Za-z0-9])?\Z")
_TAG_DIGITS = 12  # as in the cache of a machine
_NAME = "{name}"  # stands for a deployment in `serving_url`


class PlatformOwner(str, Enum):
    """Who keeps model servers on a cluster."""

    KSERVE = "kserve"
    SELDON = "seldon"


@dataclass(frozen=True, kw_only=True)
class ClusterSite:
    """One namespace, which is one store and one trust domain.

    :param claim: the PersistentVolumeClaim that holds the store's root; its pods share it.
    :param folder: where on the claim the store's root is; empty where it is the claim's own root, at which
        the store service cannot make a store, but finds one.
    :param store_url: where pods reach the store service, ``http://muster-store.team-a:8080``.
    :param image_prefix: an image is ``PREFIX/NAME:TAG``, its tag the first digits of its lock's digest.
    :param images: exceptions by name: the whole reference.
    :param queue: the LocalQueue of jobs that name none.
    :param partial_starts: gangs run also where neither Kueue nor PodGroups start them whole: replicas that
        found room then hold it while they wait for the others.
    :param elastic: nodes come as they are needed, so that those there are now refuse nothing.
    :param service_account: of every pod; none has its token.
    :param user: uid and gid of every pod: the store service's own, which alone may commit what they
        write; None where the platform chooses (OpenShift).
    :param lost_node_seconds: how long pods stay on a node that does not answer.
    :param gpu_environment: variables for replicas with GPUs, such as ``NCCL_SOCKET_IFNAME``.
    :param serving: who keeps model servers; None serves on the machine from which is deployed.
    :param gateway: ``NAMESPACE/NAME`` of the Gateway that users come through; empty where there is none.
    :param serving_url: where users reach that Gateway, ``https://{name}.models.example.com``. With
        ``{name}`` each deployment has a host of its own; an address or one host is shared by all.
    :param gateway_seconds: until a Gateway surely does what it was told: how long it collects changes
        (Traefik: 2 s), and half a second.
    :param gateway_metrics: where that Gateway tells Prometheus what it answered, ``http://HOST:PORT/metrics``; each
        address of that host is asked. Empty counts only what model servers tell.
    :param drain_seconds: how long a replica still answers after it was told to stop: the gateway may still send it requests.
    """

    namespace: str
    claim: str
    store_url: str
    folder: str = "store"
    image_prefix: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    queue: str | None = None
    partial_starts: bool = False
    elastic: bool = False
    service_account: str = "default"
    user: int | None = 10001
    lost_node_seconds: int = 5
    gpu_resource: str = "nvidia.com/gpu"
    gpu_environment: Mapping[str, str] = field(default_factory=dict)
    serving: PlatformOwner | None = None
    gateway: str = ""
    serving_url: str = ""
    gateway_seconds: float = 2.5
    gateway_metrics: str = ""
    drain_seconds: int = 8

    def __post_init__(self) -> None:
        check_label("namespace", self.namespace, length=63)
        for what, name in (("claim", self.claim), ("service account", self.service_account)):
            _check(what, name, _DOMAIN, "a DNS name")
        for name in self.image_pull_secrets:
            _check("image pull secret", name, _DOMAIN, "a DNS name")
        if self.folder and (not _FOLDER.match(self.folder) or ".." in self.folder):
            raise SpecError(f"folder {self.folder!r:.100}: need a plain path on the claim, such as store")
        if self.queue is not None:
            check_label("queue", self.queue, length=63)
        self._check_images()
        check_url("store_url", self.store_url)
        object.__setattr__(self, "store_url", self.store_url.rstrip("/"))
        self._check_numbers()
        _check("GPU resource", self.gpu_resource, _RESOURCE, "a resource such as nvidia.com/gpu")
        for variable in self.gpu_environment:
            check_variable(variable)
        self._check_serving()
        for name in ("images", "gpu_environment"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "image_pull_secrets", tuple(self.image_pull_secrets))

    def image(self, name: str, digest: str) -> str:
        """Return the reference of the image that was built from the lock of that digest.

        :raises SpecError: the cluster has no place for images.
        """
        check_label("image", name)
        check_digest("image", digest)
        if name in self.images:
            return self.images[name]
        if not self.image_prefix:
            raise SpecError(
                f"image {name}: namespace {self.namespace} has no image prefix; "
                "set image_prefix to where its images are pushed"
            )
        return f"{self.image_prefix}/{name}:{digest.removeprefix('b3:')[:_TAG_DIGITS]}"

    def on_claim(self, path: str) -> str:
        """Return where on the claim a path of the store is."""
        return f"{self.folder}/{path}" if self.folder else path

    def _check_images(self) -> None:
        if self.image_prefix:
            _check("image prefix", self.image_prefix, _IMAGE, "a registry and path")
        for name, reference in self.images.items():
            check_label("image", name)
            _check(f"image {name}", reference, _IMAGE, "a reference such as registry/path:tag")

    def hostname(self, deployment: str) -> str:
        """Return the host by which users ask for a deployment; empty where they ask an address."""
        host = urlsplit(self.serving_url.replace(_NAME, deployment)).hostname or ""
        return host if host.strip("0123456789.") and ":" not in host else ""

    @property
    def separate_hosts(self) -> bool:
        """Whether users ask for each deployment by a host of its own."""
        return self.hostname("one") != self.hostname("other")

    def url(self, deployment: str) -> str:
        """Return where a deployment answers the Open Inference Protocol."""
        return self.serving_url.replace(_NAME, deployment)

    def _check_serving(self) -> None:
        if self.serving is None:
            for name in ("gateway", "serving_url", "gateway_metrics"):
                if getattr(self, name):
                    raise SpecError(
                        f"{name} is {getattr(self, name)!r:.100}, but nothing says who serves: set serving"
                    )
            return
        if self.gateway:
            _check("gateway", self.gateway, _GATEWAY, "NAMESPACE/NAME, such as gateways/public")
            check_url("serving_url", self.serving_url.replace(_NAME, "name"))
        elif self.serving_url:
            raise SpecError(f"serving_url is {self.serving_url!r:.100}, but no gateway is named: set gateway")
        self._check_metrics()
        object.__setattr__(self, "serving_url", self.serving_url.rstrip("/"))

    def _check_metrics(self) -> None:
        if not self.gateway_metrics:
            return
        given = f"gateway_metrics {self.gateway_metrics!r:.100}"
        if not self.gateway:
            raise SpecError(f"{given}, but no gateway is named: set gateway")
        check_url("gateway_metrics", self.gateway_metrics)
        parts = urlsplit(self.gateway_metrics)
        if parts.scheme != "http" or not parts.path:
            raise SpecError(f"{given}: need the whole address of a page, http://HOST:PORT/metrics")

    def _check_numbers(self) -> None:
        if self.user is not None and (type(self.user) is not int or not 1 <= self.user < 2**31):
            raise SpecError(f"user is {self.user!r}: need a uid above 0 (pods never run as root), or None")
        check_whole("lost_node_seconds", self.lost_node_seconds, 0, 86_400)
        check_whole("drain_seconds", self.drain_seconds, 1, 3600)
        if isinstance(self.gateway_seconds, bool) or not 0 <= self.gateway_seconds < self.drain_seconds:
            raise SpecError(
                f"gateway_seconds is {self.gateway_seconds!r}: need seconds below drain_seconds ({self.drain_seconds}), "
                "for a replica that stops has to answer until the gateway sends it no more requests"
            )


def check_url(what: str, url: str) -> None:
    """Refuse what is no address of a server. :raises SpecError: it is none, or has a user or a query."""
    try:
        parts = urlsplit(url)
        whole = parts.port is None or parts.port > 0
    except ValueError:
        whole = False
    if not whole or parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise SpecError(f"{what} {url!r:.100}: need http://HOST:PORT or https://HOST:PORT, no user in it")
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise SpecError(f"{what} {url!r:.100}: need an address without query or spaces")


def _check(what: str, value: object, pattern: re.Pattern[str], wanted: str) -> None:
    if not isinstance(value, str) or len(value) > 253 or not pattern.match(value):
        raise SpecError(f"{what} {value!r:.100}: need {wanted}")
