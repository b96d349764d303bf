"""How an API server is reached, and by what right: by the Kubernetes client, or without it where that is simple.

That client takes a third of a second to import, more than all else that ``muster gpus`` does.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import muster

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import PoolManager

_CONNECTIONS = 16  # that are kept; more are opened where more threads ask
_OF_CLUSTER = {
    *("server", "certificate-authority", "certificate-authority-data"),
    *("insecure-skip-tls-verify", "tls-server-name"),
}
_OF_USER = {
    *("token", "client-certificate", "client-certificate-data", "client-key", "client-key-data"),
}
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


class Access(Protocol):
    """One API server, for one account."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def pool(self) -> PoolManager:
        """Where its connections come from."""

    def headers(self) -> dict[str, str]:
        """Return who asks, with credentials renewed if they have run out.

        :raises OSError: or ValueError, what renews them fails.
        """


class ClientAccess:
    """By the Kubernetes client, with whatever its configuration says."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api

    @property
    def host(self) -> str:
        """The address of the API server."""
        return str(self.api.configuration.host)

    @property
    def pool(self) -> PoolManager:
        """The client's own."""
        found: PoolManager = self.api.rest_client.pool_manager
        return found

    def headers(self) -> dict[str, str]:
        """Return the client's own headers, and its credentials."""
        from kubernetes.config import ConfigException

        headers = dict(self.api.default_headers)
        try:
            self.api.update_params_for_auth(headers, [], ["BearerToken"])
        except ConfigException as error:  # a login program fails
            raise ValueError(str(error)) from error
        return headers


@dataclass(frozen=True, kw_only=True)
class PlainAccess:
    """With a token or a client's certificate that a kubeconfig holds. Safe to share between threads."""

    host: str
    pool: PoolManager
    token: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """Return who asks."""
        signed = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {"User-Agent": user_agent(), **signed}


def user_agent() -> str:
    """Return what API servers write into their logs."""
    return f"muster/{muster.__version__}"


def plain_access(kubeconfig: Path, context: str | None, environment: Mapping[str, str]) -> PlainAccess | None:
    """Return the access that a file gives; None where it takes the Kubernetes client to know, or to say what is wrong.

    :param context: the file's current one if it is not given.
    """
    if any(environment.get(name) for name in _PROXIES):
        return None
    from yaml import YAMLError

    try:
        return _read(kubeconfig, context)
    except (YAMLError, OSError, KeyError, TypeError, ValueError, StopIteration):
        return None


def _read(path: Path, context: str | None) -> PlainAccess | None:
    import yaml

    config = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    chosen = _named(config["contexts"], context or config["current-context"])["context"]
    cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
    user = _named(config["users"], chosen["user"])["user"] or {}
    host = str(cluster["server"]).rstrip("/")
    known = cluster.keys() <= _OF_CLUSTER and user.keys() <= _OF_USER
    if not known or not host.startswith(("https://", "http://")):
        return None  # a login program, a proxy, what comes next
    return PlainAccess(
        host=host,
        pool=_pool(cluster, user, path.parent),
        token=str(user.get("token") or ""),
    )


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in entries if each["name"] == name)


def _pool(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> PoolManager:
    from urllib3 import PoolManager, Retry

    insecure = bool(cluster.get("insecure-skip-tls-verify"))
    given: dict[str, Any] = {"cert_reqs": "CERT_NONE" if insecure else "CERT_REQUIRED"}
    authority = _pem(cluster, "certificate-authority", folder)
    if authority is not None:
        given["ca_cert_data"] = authority
    if "tls-server-name" in cluster:
        given["server_hostname"] = str(cluster["tls-server-name"])
    certificate, key = (_pem(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate is not None:
        given["ssl_context"] = _signed(certificate, key or "", insecure=insecure, trusted=authority is None)
    # Ours wait in between, and say what they wait for.
    return PoolManager(maxsize=_CONNECTIONS, retries=Retry(total=0), **given)


def _pem(of: Mapping[str, Any], name: str, folder: Path) -> str | None:
    """Return a certificate or key that is there as data, or as a file beside the kubeconfig."""
    if f"{name}-data" in of:
        return base64.b64decode(of[f"{name}-data"], validate=True).decode("ascii")
    return (folder / of[name]).read_text("ascii") if name in of else None


def _signed(certificate: str, key: str, *, insecure: bool, trusted: bool) -> Any:
    """Return a context with a client's certificate; the ssl module reads it from a file only.

    :param trusted: whom the machine trusts is trusted.
    """
    import ssl

    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=ssl.CERT_NONE if insecure else ssl.CERT_REQUIRED)
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as both:  # readable by us alone
        both.write(f"{certificate}\n{key}\n")
        both.flush()
        context.load_cert_chain(both.name)
    if trusted:
        context.load_default_certs()
    return context
