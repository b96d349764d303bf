"""The cluster that an Airflow connection names: its type and client are cncf.kubernetes', the rest is ours.

``[muster] connection`` names a connection of type ``kubernetes``. How the cluster is reached stands in the
provider's own fields, and so does the namespace. What else muster needs stands in the extras as ``muster``,
the operator's token for the store service is the password (or a file's content)::

    {
        "in_cluster": true,
        "namespace": "team-a",
        "muster": {"claim": "muster-store", "store_url": "http://muster-store.team-a", "queue": "team-a"},
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from muster.core.errors import SpecError
from muster.core.shipped import need

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from muster.backends.kubernetes.api.access import Access
    from muster.backends.kubernetes.cluster_file import ClusterSettings
    from muster.backends.kubernetes.place import NamedCluster

OURS = "muster"
TYPE = "kubernetes"
_NAMESPACE = "namespace"
_PREFIX = "extra__kubernetes__"  # of a field that a form of Airflow before 2.3 wrote


def connection_id() -> str:
    """Return the connection that jobs go to, ``[muster] connection``; empty is this machine."""
    from airflow.sdk import conf

    return str(conf.get("muster", "connection", fallback="")).strip()


def find_cluster(conn_id: str) -> NamedCluster:
    """Return the cluster of a connection. Nothing is asked over the network but the connection itself.

    :raises SpecError: there is no such connection, or something in it is missing or wrong; it names both.
    """
    from muster.backends.kubernetes.place import NamedCluster

    connection = _connection(conn_id)
    return NamedCluster(cluster_settings(connection, conn_id), partial(_access, connection, conn_id))


def _connection(conn_id: str) -> Connection:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found: Connection = Connection.get(conn_id)
    except AirflowNotFoundException as error:
        raise SpecError(
            f"[muster] connection is {conn_id!r:.80}, and Airflow has no connection of that id: "
            "add it, or take the setting away to run jobs on this machine"
        ) from error
    return found


def cluster_settings(connection: Connection, conn_id: str) -> ClusterSettings:
    """Read what muster needs of a connection. :raises SpecError: it names the connection and the setting."""
    from muster.backends.kubernetes.cluster_file import read_settings

    where = f"connection {conn_id}"
    if connection.conn_type != TYPE:
        raise SpecError(f"{where} is of type {connection.conn_type!r:.60}, need {TYPE!r}: that of a cluster")
    extras: object = connection.extra_dejson  # whatever JSON it holds; nothing where it is none
    ours = extras.get(OURS) if isinstance(extras, Mapping) else None
    if not isinstance(extras, Mapping) or not isinstance(ours, Mapping):
        raise SpecError(
            f"{where} says nothing of muster: its extras need {OURS!r}, an object with claim, store_url …"
        )
    namespace = extras.get(_NAMESPACE) or extras.get(f"{_PREFIX}{_NAMESPACE}")
    if _NAMESPACE in ours and namespace and ours[_NAMESPACE] != namespace:
        raise SpecError(
            f"{where} names two namespaces, {namespace!r:.60} and {ours[_NAMESPACE]!r:.60}: keep one"
        )
    given = {_NAMESPACE: namespace, **ours} if namespace else ours
    return read_settings(given, where=where, password=connection.password or None)


def _access(connection: Connection, conn_id: str) -> Access:
    """Let the provider's hook configure the client, as for its own operators."""
    need("kubernetes", what="[muster] connection")
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.sdk.exceptions import AirflowException
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    from muster.backends.kubernetes.api.access import access_of

    try:
        configured = KubernetesHook(conn_id=conn_id).get_conn()
    except (AirflowException, ConfigException, YAMLError, OSError, TypeError, ValueError) as error:
        file = connection.extra_dejson.get("kube_config_path")
        where = f", kube_config_path {file!r:.200}," if file else ""
        raise SpecError(f"connection {conn_id}{where} leads to no cluster: {error}") from error
    return access_of(configured.configuration)
