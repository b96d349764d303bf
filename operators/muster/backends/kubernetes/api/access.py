"""How an API server is reached, and by what right: by the Kubernetes client, or without it where that is simple.

That client takes a third of a second to import, more than all else that ``muster gpus`` does.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import muster
from muster.backends.place import NoAccess
from muster.core.errors import SpecError
from muster.core.shipped import need

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from kubernetes.client import Configuration
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


@dataclass(frozen=True, kw_only=True)
class Access:
    """One API server, for one account. Safe to share between threads.

    :param pool: where its connections come from.
    :param headers: returns who asks, with credentials renewed if they have run out; it raises OSError or ValueError
        where what renews them fails.
    :param configuration: returns the Kubernetes client's, which WebSockets are opened with.
    """

    host: str
    pool: PoolManager
    headers: Callable[[], dict[str, str]] = field(repr=False)
    configuration: Any = field(default=None, repr=False)


def _user_agent() -> str:
    """Return what API servers write into their logs."""
    return f"muster/{muster.__version__}"


def plain_access(kubeconfig: Path, context: str | None, environment: Mapping[str, str]) -> Access | None:
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


def _read(path: Path, context: str | None) -> Access | None:
    import yaml

    config = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    chosen = _named(config["contexts"], context or config["current-context"])["context"]
    cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
    user = _named(config["users"], chosen["user"])["user"] or {}
    host = str(cluster["server"]).rstrip("/")
    known = cluster.keys() <= _OF_CLUSTER and user.keys() <= _OF_USER
    if not known or not host.startswith(("https://", "http://")):
        return None  # a login program, a proxy, what comes next
    headers = {"User-Agent": _user_agent()}
    if user.get("token"):
        headers["Authorization"] = f"Bearer {user['token']}"
    return Access(host=host, pool=_pool(cluster, user, path.parent), headers=lambda: dict(headers))


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


_DEFAULT = Path("~/.kube/config")


def connect(
    *,
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Access:
    """Return a connection; nothing is sent yet.

    :param kubeconfig: if not given, ``KUBECONFIG``, then ``~/.kube/config``, then the account of
        the pod that this process runs in.
    :raises SpecError: there is none, or it cannot be read; the message says where was looked.
    """
    env = os.environ if environment is None else environment
    place = _place(kubeconfig, env)
    access = plain_access(Path(place), context, env) if place is not None else None
    if access is None:
        return by_client(place, context, env)
    return replace(access, configuration=lambda: by_client(place, context, env).configuration())


def by_client(place: str | None, context: str | None, env: Mapping[str, str]) -> Access:
    """Read a kubeconfig with the Kubernetes client: it knows every way to authenticate, and takes longer to import."""
    need("kubernetes", what="this way to authenticate to a cluster")
    from kubernetes.client import Configuration

    configuration: Configuration = Configuration()
    if place is None:
        _in_cluster(configuration, env)
    else:
        _from_file(configuration, place, context)
    return access_of(configuration)


def access_of(configuration: Configuration) -> Access:
    """Return a connection that is configured so, with our own patience; `configuration` stays as it is."""
    from kubernetes.client import ApiClient
    from kubernetes.config import ConfigException
    from urllib3 import Retry

    own = deepcopy(configuration)
    own.retries = Retry(total=0)  # ours wait in between, and say what they wait for
    api = ApiClient(own)
    api.user_agent = _user_agent()

    def headers() -> dict[str, str]:
        found = dict(api.default_headers)
        try:
            api.update_params_for_auth(found, [], ["BearerToken"])
        except ConfigException as error:  # a login program fails
            raise ValueError(str(error)) from error
        return found

    pool = api.rest_client.pool_manager
    return Access(host=str(own.host), pool=pool, headers=headers, configuration=lambda: own)


def program(module: str, description: str) -> ArgumentParser:
    """Return the arguments that each program has which the chart runs beside an API server."""
    from argparse import ArgumentParser  # no other process needs it

    parser = ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--namespace", required=True, help="where the jobs run")
    parser.add_argument("--kubeconfig", help="KUBECONFIG, or the pod's own account, unless given")
    return parser


def _place(kubeconfig: Path | str | None, env: Mapping[str, str]) -> str | None:
    if kubeconfig is not None:
        return str(Path(kubeconfig).expanduser())
    if env.get("KUBECONFIG"):
        return env["KUBECONFIG"]  # may be several, with ':' between them
    default = _DEFAULT.expanduser()
    return str(default) if default.is_file() else None


def _from_file(configuration: Configuration, place: str, context: str | None) -> None:
    from kubernetes.config import ConfigException, load_kube_config
    from yaml import YAMLError

    try:
        load_kube_config(place, context, configuration, persist_config=False)
    except (ConfigException, YAMLError, OSError, TypeError, ValueError) as error:
        wanted = f", context {context}" if context else ""
        raise SpecError(f"kubeconfig {place}{wanted} cannot be used: {error}") from error


def _in_cluster(configuration: Configuration, env: Mapping[str, str]) -> None:
    from kubernetes.config import ConfigException, load_incluster_config

    if not env.get("KUBERNETES_SERVICE_HOST"):
        raise NoAccess(
            f"no cluster: there is no {_DEFAULT}, KUBECONFIG is not set, and this process runs in no pod; "
            "name a kubeconfig"
        )
    try:
        load_incluster_config(configuration)
    except ConfigException as error:
        raise SpecError(
            f"this pod's service account cannot be used: {error}; "
            "set automountServiceAccountToken: true on the pod that muster runs in, or name a kubeconfig"
        ) from error
