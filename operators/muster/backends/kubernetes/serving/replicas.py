"""Asks the replicas of a revision themselves, each by its name, through the API server: no route, no share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from muster.backends.counting import read_birth, read_counts
from muster.backends.inference import infer_request, read_answer
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD, Document
from muster.backends.kubernetes.api.refusals import Request, read_status, refusal
from muster.backends.kubernetes.serving.server import LONGEST_REQUEST_SECONDS, PORT
from muster.core.deployment import Answer, Counts, SmokeRequest
from muster.core.errors import DeploymentError

_AT_ONCE = 16
_METRICS_SECONDS = 2.0  # a replica that takes longer is left out this time
_OK = 200

T = TypeVar("T")


class Replicas:
    """Replicas as the API server's proxy reaches them. Safe to share between threads."""

    def __init__(self, client: Client) -> None:
        self._transport = client.transport

    def ask(self, pods: Sequence[Document], *, deployment: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one request to every pod at once."""
        return tuple(_each(pods, lambda pod: self._answer(pod, deployment, request)))

    def counted(self, pods: Sequence[Document]) -> list[tuple[Document, float, dict[str, Counts]]]:
        """Return which pods count, since when, and what by revision; one that does not say is left out."""
        return [found for found in _each(pods, self._metrics) if found is not None]

    def _answer(self, pod: Document, deployment: str, request: SmokeRequest) -> Answer:
        name = str(pod["metadata"]["name"])
        status, body = self._exchange(pod, "get", f"/v2/models/{deployment}")
        if status != _OK:
            return read_answer(name, status, body)
        try:
            asked = infer_request(request, json.loads(body))
        except (ValueError, LookupError, TypeError) as error:
            return Answer(
                replica=name, outputs=None, error=f"its metadata is none of the protocol's: {error!r:.100}"
            )
        except DeploymentError as error:
            return Answer(replica=name, outputs=None, error=str(error))
        path = f"/v2/models/{deployment}/infer"
        return read_answer(name, *self._exchange(pod, "create", path, body=json.dumps(asked).encode()))

    def _metrics(self, pod: Document) -> tuple[Document, float, dict[str, Counts]] | None:
        status, body = self._exchange(pod, "get", "/metrics", seconds=_METRICS_SECONDS)
        if status != _OK:
            return None
        text = body.decode("utf-8", "replace")
        return pod, read_birth(text), read_counts(text)

    def _exchange(
        self,
        pod: Document,
        verb: str,
        path: str,
        *,
        body: bytes | None = None,
        seconds: float = LONGEST_REQUEST_SECONDS,
    ) -> tuple[int, bytes]:
        """Ask a pod. :raises Forbidden: this account may not; which is not the pod's fault."""
        metadata = pod["metadata"]
        request = Request(
            verb=verb,
            kind=POD,
            name=f"{metadata['name']}:{PORT}",
            namespace=metadata["namespace"],
            subresource="proxy",
        )
        place = POD.path(
            namespace=metadata["namespace"], name=f"{metadata['name']}:{PORT}", subresource="proxy"
        )
        status, data = self._transport.proxied(request, path=place + path, body=body, seconds=seconds)
        if status in (401, 403):
            said = read_status(data)
            if said.get("kind") == "Status":
                raise refusal(request, status, said)
        return status, data


def _each(pods: Sequence[Document], do: Callable[[Document], T]) -> list[T]:
    if not pods:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(pods))) as pool:
        return list(pool.map(do, pods))
