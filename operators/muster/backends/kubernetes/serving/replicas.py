"""Asks the replicas of a revision themselves, each by its name, through the API server: no route, no share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD, Document
from muster.backends.kubernetes.api.refusals import ApiRequest, read_status, refusal
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import KEY, LONGEST_REQUEST_SECONDS, PORT
from muster.backends.releases import inference
from muster.backends.releases.figures import read_counts
from muster.core.deployment import Answer, Counts, SmokeRequest
from muster.core.errors import DeploymentError, Unreachable

_AT_ONCE = 16
METRICS_SECONDS = 2.0  # a replica that takes longer is left out this time
_OK = 200
_TOKENS = "/muster/tokens"  # muster_serving.routes
_UNREACHED = "error trying to reach service: "  # the API server's words
_BORN = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MetricsPage:
    """A page of metrics. :param pod: the uid of the pod that it is from."""

    deployment: str
    pod: str
    text: str

    @property
    def born(self) -> float:
        """When its process came up, in seconds since the epoch; 0 where it does not say."""
        return came_up(self.text)

    def counts(self) -> Mapping[str, Counts]:
        """What that process has counted, by revision. :raises BackendError: it is no page of metrics."""
        return read_counts(self.text, name=self.deployment)


def came_up(text: str) -> float:
    """When the process came up whose metrics these are, in seconds since the epoch; 0 where they do not say."""
    found = _BORN.search(text)
    return float(found[1]) if found else 0.0


class Replicas:
    """Replicas as the API server's proxy reaches them. Safe to share between threads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(
        self, pods: Sequence[Document], *, deployment: str, revision: str, request: SmokeRequest
    ) -> tuple[Answer, ...]:
        """Send one request to every pod at once, in a path that names the revision: it is not counted."""
        model = f"/v2/models/{deployment}/versions/{revision}"
        return tuple(_each(pods, lambda pod: self._answer(pod, model, request)))

    def tell(self, pods: Sequence[Document], tokens: str) -> None:
        """Send the clients' tokens to every pod that asks for some; one that cannot be reached gets them from Kubernetes."""
        guarded = [pod for pod in pods if _own(pod)]
        _each(guarded, lambda pod: self._tell(pod, tokens.encode()))

    def _tell(self, pod: Document, tokens: bytes) -> None:
        with suppress(DeploymentError, Unreachable):
            self._exchange(pod, "create", _TOKENS, body=tokens, seconds=METRICS_SECONDS)

    def pages(self, pods: Sequence[Document]) -> list[MetricsPage]:
        """Return every pod's metrics; one that does not tell them now is left out."""
        return [found for found in _each(pods, self._metrics) if found]

    def _answer(self, pod: Document, model: str, request: SmokeRequest) -> Answer:
        def exchange(path: str, body: bytes | None) -> tuple[int, bytes]:
            verb = "get" if body is None else "create"
            status, data = self._exchange(pod, verb, path, body=body, seconds=LONGEST_REQUEST_SECONDS)
            if status != _OK and (said := inference.told(data)).startswith(_UNREACHED):
                raise inference.NoAnswer(f"it does not answer: {said.removeprefix(_UNREACHED)}")
            return status, data

        return inference.ask(str(pod["metadata"]["name"]), model, request, exchange)

    def _metrics(self, pod: Document) -> MetricsPage | None:
        status, data = self._exchange(pod, "get", "/metrics", seconds=METRICS_SECONDS)
        if status != _OK:
            return None
        metadata = pod["metadata"]
        text = data.decode("utf-8", "replace")
        return MetricsPage(deployment=metadata["labels"][names.DEPLOYMENT], pod=metadata["uid"], text=text)

    def _exchange(
        self, pod: Document, verb: str, path: str, *, body: bytes | None = None, seconds: float
    ) -> tuple[int, bytes]:
        """Ask a pod. :raises Forbidden: this account may not, which is not the pod's fault."""
        metadata = pod["metadata"]
        name, namespace = f"{metadata['name']}:{PORT}", metadata["namespace"]
        request = ApiRequest(verb=verb, kind=POD, name=name, namespace=namespace, subresource="proxy")
        place = POD.path(namespace=namespace, name=name, subresource="proxy")
        status, data = self._client.proxied(
            request, path=place + path, body=body, seconds=seconds, headers=_own(pod)
        )
        if status in (401, 403):
            said = read_status(data)
            if said.get("kind") == "Status":
                raise refusal(request, status, said)
        return status, data


def _own(pod: Document) -> Mapping[str, str]:
    """The header of muster's own requests to a pod whose users need tokens: its server was told the key by a variable.

    It is not ``Authorization``, which the API server takes away.
    """
    for container in (pod.get("spec") or {}).get("containers") or ():
        for variable in container.get("env") or ():
            if variable["name"] == KEY:
                return {"Muster-Key": str(variable.get("value", ""))}
    return {}


def _each(pods: Sequence[Document], do: Callable[[Document], T]) -> list[T]:
    if not pods:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(pods))) as pool:
        return list(pool.map(do, pods))
