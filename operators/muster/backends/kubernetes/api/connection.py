"""Opens a connection to a cluster: from a kubeconfig, or from the pod that this process runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from muster.backends.kubernetes.api.access import Access, ClientAccess, plain_access, user_agent
from muster.core.errors import SpecError
from muster.core.extras import need

if TYPE_CHECKING:
    from kubernetes.client import Configuration

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
    return access or by_client(place, context, env)


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
    from urllib3 import Retry

    own = deepcopy(configuration)
    own.retries = Retry(total=0)  # ours wait in between, and say what they wait for
    api = ApiClient(own)
    api.user_agent = user_agent()
    return ClientAccess(api)


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
        raise SpecError(
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
