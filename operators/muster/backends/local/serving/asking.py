"""What a deployment's servers are asked in private: a real request past the route, and what they have counted."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from muster.backends.local.serving.state import DeploymentState
from muster.backends.releases.figures import added, read_counts
from muster.backends.releases.inference import infer_request, read_answer
from muster.core.deployment import Answer, Counts, SmokeRequest
from muster.core.errors import DeploymentError

ASK_SECONDS = 10.0
LOOK_SECONDS = 2.0


def ask(state: DeploymentState, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
    """Send one request to the server that holds a revision. :raises NotFound: no such revision."""
    one, port = state.called(revision), state.ports.get(revision)
    if port is None:
        why = one.reason or f"it is {one.state.value}"
        return (Answer(replica=revision, outputs=None, error=f"it is not loaded: {why}"),)
    replica, path = f"127.0.0.1:{port}", f"/v2/models/{state.name}/versions/{revision}"
    try:
        metadata = _call(port, "GET", path)
        answer = _call(port, "POST", f"{path}/infer", infer_request(request, metadata))
    except DeploymentError as error:
        return (Answer(replica=replica, outputs=None, error=str(error)),)
    return (read_answer(replica, answer),)


def counts(state: DeploymentState) -> Mapping[str, Counts]:
    """Add up what the servers have counted; a revision whose server does not say is left out.

    :raises BackendError: a page is none of metrics.
    """
    pages = {port: _page(port, "/metrics") for port in sorted(set(state.ports.values()))}
    counted = added(read_counts(page, name=state.name) for page in pages.values() if page is not None)
    silent = [name for name, port in state.ports.items() if pages[port] is None]
    return {one.name: counted.get(one.name, Counts()) for one in state.live if one.name not in silent}


def answers(state: DeploymentState) -> bool:
    """Ask at the public port whether it is ready."""
    return _page(state.port, f"/v2/models/{state.name}/ready") is not None


def _call(port: int, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Ask for JSON. :raises DeploymentError: there is no answer, or another than 200."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_SECONDS)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DeploymentError(f"{method} {path}: no answer ({type(error).__name__}: {error})") from error
    if response.status != http.HTTPStatus.OK:
        raise DeploymentError(f"HTTP {response.status}: {_error_of(text)}")
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise DeploymentError(f"{method} {path}: the answer is not JSON ({text[:60]!r})") from error
    return answer


def _page(port: int, path: str) -> str | None:
    """Return a page; None where it cannot be had now."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LOOK_SECONDS)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    return text if response.status == http.HTTPStatus.OK else None


def _error_of(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
