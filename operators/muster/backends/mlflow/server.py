"""Calls an MLflow server by its REST API."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from muster.core.errors import BackendError, NotFound
from muster.core.text import one_line

_SECONDS = 5.0  # for each of connecting, sending and an answer: the search waits for it
_READ = frozenset({"experiments/get-by-name"})


class Server:
    """An MLflow server.

    :param variables: with the names that MLflow itself reads: MLFLOW_TRACKING_URI, _USERNAME and _PASSWORD, _TOKEN,
        _INSECURE_TLS, _SERVER_CERT_PATH.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._uri = variables["MLFLOW_TRACKING_URI"].rstrip("/")
        token, user = variables.get("MLFLOW_TRACKING_TOKEN"), variables.get("MLFLOW_TRACKING_USERNAME")
        self._client = httpx.Client(
            timeout=_SECONDS,
            verify=_trusted(variables),
            auth=httpx.BasicAuth(user, variables.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None,
            headers={"Authorization": f"Bearer {token}"} if token and not user else None,
        )

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`muster.backends.mlflow.runs.Transport`."""
        url = f"{self._uri}/api/2.0/mlflow/{name}"
        try:
            if name in _READ:
                answer = self._client.get(url, params=dict(given))
            else:
                answer = self._client.post(url, json=given)
        except httpx.HTTPError as error:
            raise BackendError(
                f"MLflow at {self._uri} does not answer: {error or type(error).__name__}"
            ) from error
        if answer.status_code == httpx.codes.NOT_FOUND and "RESOURCE_DOES_NOT_EXIST" in answer.text:
            raise NotFound(f"MLflow at {self._uri}: {one_line(answer.text)}")
        if answer.is_error:
            raise BackendError(
                f"MLflow at {self._uri} refuses {name}: HTTP {answer.status_code} {one_line(answer.text)}"
            )
        try:
            found: Mapping[str, Any] = answer.json()
        except ValueError as error:
            raise BackendError(f"MLflow at {self._uri} answers {name} with no JSON: is it MLflow?") from error
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _trusted(variables: Mapping[str, str]) -> ssl.SSLContext | bool:
    if variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        return False
    path = variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    try:
        return ssl.create_default_context(cafile=path) if path else True
    except OSError as error:
        raise BackendError(f"MLFLOW_TRACKING_SERVER_CERT_PATH: {path} cannot be read ({error})") from error
