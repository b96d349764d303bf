"""Where this Airflow's tasks work: the backend, its settings, and the name of the Airflow itself.

``[muster] connection`` names a connection of type ``kubernetes``, whose type and client are cncf.kubernetes'. How the
cluster is reached stands in the provider's own fields, and so does the namespace. What else muster needs stands in the
extras as ``muster``, the operator's token for the store service is the password (or a file's content)::

    {
        "in_cluster": true,
        "namespace": "team-a",
        "muster": {"claim": "muster-store", "store_url": "http://muster-store.team-a", "queue": "team-a"},
    }
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from muster.backends import choose
from muster.backends.base import Backend
from muster.core.errors import SpecError
from muster.core.job import Interpreter, SecretRef
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.shipped import need

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from muster.backends.kubernetes.api.access import Access
    from muster.backends.kubernetes.cluster_file import ClusterSettings
    from muster.backends.kubernetes.place import NamedCluster
    from muster.backends.place import Place
    from muster.volumes.protocols import ServedStore, Store


INSTANCE = "instance"
_INLINE_WAIT = "20"
CHECKPOINT_DAYS = "7"

_FIELDS = {
    "": "password",
    "password": "password",
    "login": "login",
    "host": "host",
    "port": "port",
    "schema": "schema",
}


opened: dict[tuple[int, Settings, str], Backend] = {}
_opening = threading.Lock()


def connect(settings: Settings | None = None) -> Backend:
    """Return the jobs of the place that ``[muster] connection`` or the settings name; a process has one of each.

    Nothing is started, and it costs a few milliseconds. It is never closed: what stays open for days has
    one of its own, by :func:`open_backend`.

    :raises SpecError: a setting is wrong; the message names it.
    """
    settings = settings or Settings.load()
    key = (os.getpid(), settings, connection_id())  # what a fork inherits is its parent's
    with _opening:
        if key not in opened:
            opened[key] = open_backend(settings)
        return opened[key]


def open_backend(
    settings: Settings | None = None, *, resolve: Callable[[SecretRef], str] | None = None
) -> Backend:
    """Return the jobs of a place of the caller's own, to be closed: its settings and its token are read now.

    :param resolve: :func:`resolve_secret` if it is not given.
    :raises SpecError: a setting is wrong; the message names it.
    """
    return Backend(open_place(settings, resolve=resolve))


def open_place(
    settings: Settings | None = None, *, resolve: Callable[[SecretRef], str] | None = None
) -> Place:
    """Return where :func:`open_backend` works; nothing of it is opened or read yet."""
    conn_id = connection_id()
    return choose.open_place(
        _mirrored(settings or Settings.load()),
        resolve=resolve or resolve_secret,
        cluster=partial(find_cluster, conn_id) if conn_id else None,
    )


def _mirrored(settings: Settings) -> Settings:
    """Add the mirror that ``[muster] mirror`` names; the variable wins."""
    return settings if settings.mirror else replace(settings, mirror=_setting("mirror"))


def _setting(name: str, otherwise: str = "") -> str:
    """Return what stands under ``[muster]``, without spaces around it."""
    from airflow.sdk import conf

    return str(conf.get("muster", name, fallback=otherwise) or "").strip()


def resolve_secret(secret: SecretRef) -> str:
    """Return a secret's value, from the environment or an Airflow connection (``ID#field``, its password).

    :raises KeyError: it is not to be had here; it names the connection that is not there, or the whole secret.
    """
    if secret.source == "environment":
        return os.environ[secret.name]
    if secret.source != "connection":
        raise KeyError(secret.name)
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    conn_id, _, field = secret.name.partition("#")
    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException as error:
        raise KeyError(conn_id) from error
    value = (
        connection.extra_dejson.get(field) if field not in _FIELDS else getattr(connection, _FIELDS[field])
    )
    if value is None:
        raise KeyError(secret.name)
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def instance(settings: Settings) -> str:
    """Return the name of this Airflow: ``[muster] instance``, or one made once and kept in MUSTER_HOME.

    :raises SpecError: the home cannot be written, or jobs go to a cluster and the name is not set: the next
        try of a task may run on another machine, and would not find its job under another name.
    """
    configured = _setting("instance")
    if not configured and not open_place(settings).here:
        raise SpecError(
            "[muster] instance is not set, and jobs go to a cluster: give this Airflow a name, the same on "
            "every worker, triggerer and API server"
        )
    return configured or kept_name(settings)


def origin_of(ti: Any, settings: Settings) -> Origin:
    """Return what the store calls a task instance.

    :raises SpecError: as :func:`instance`.
    """
    return Origin(
        instance=instance(settings),
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def inline_wait_seconds() -> float:
    """Return how long a task waits in its own process: ``[muster] inline_wait``.

    :raises SpecError: it is no number of seconds.
    """
    return _number("inline_wait", _INLINE_WAIT, "seconds")


def checkpoint_days() -> float:
    """Return how long checkpoints are kept of a task that did not succeed: ``[muster] checkpoint_days``.

    :raises SpecError: it is no number of days.
    """
    return _number("checkpoint_days", CHECKPOINT_DAYS, "days")


def cache_default() -> bool:
    """Return whether stages take what was made before where their Dag does not say: ``[muster] cache``."""
    from airflow.sdk import conf

    return bool(conf.getboolean("muster", "cache", fallback=False))


def interpreter_path(image: str, settings: Settings) -> Path | None:
    """Return the Python of this machine that runs an image's jobs: ``MUSTER_INTERPRETER_NAME``, ``[muster] interpreter.NAME``.

    None where none is set, and where jobs go to a cluster, whose images are containers.
    """
    if not open_place(settings).here:
        return None
    if (path := settings.interpreter(image)) is not None:
        return path
    text = _setting(f"interpreter.{image}")
    return Path(text).expanduser().absolute() if text else None


def interpreter_of(image: str, settings: Settings) -> Interpreter | None:
    """Ask the Python of :func:`interpreter_path` what it is. :raises SpecError: it is no Python of use."""
    path = interpreter_path(image, settings)
    if path is None:
        return None
    from muster.images.interpreter import look_at

    return look_at(image, path)


def mlflow_url() -> str:
    """Return where people find what ``muster mlflow`` shows: ``[muster] mlflow_url``, without a slash at its end.

    Where that is not set: this machine's own, if it answers now; else empty, since a link would lead nowhere.
    """
    from muster.backends.tracking import SHOWN_AT, answers

    return _setting("mlflow_url").rstrip("/") or (SHOWN_AT if answers(SHOWN_AT) else "")


def lineage_namespace(store: Store) -> str:
    """Return the namespace of this store's volumes in lineage events: ``[muster] lineage_namespace``, or its address.

    That is ``muster://HOST:PORT`` of a store service, ``muster://HOST/FOLDER`` of a folder on one machine.
    """
    from muster.volumes.folder import FolderStore

    if configured := _setting("lineage_namespace"):
        return configured
    if isinstance(store, FolderStore):
        return f"muster://{socket.gethostname()}{store.layout.root}"
    return f"muster://{urlsplit(cast('ServedStore', store).url).netloc}"


def _number(option: str, otherwise: str, unit: str) -> float:
    text = _setting(option, otherwise)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise SpecError(f"[muster] {option} is {text!r:.40}: expected {unit}, 0 or more")
    return number


def kept_name(settings: Settings) -> str:
    """Return the name that MUSTER_HOME keeps, made on first use; what jobs of this home have in common.

    :raises SpecError: the home cannot be written.
    """
    path = settings.home / INSTANCE
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        pass
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        settings.make_home()
        temporary.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
        try:
            os.link(temporary, path)  # of two that come together one wins, and both read its name
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SpecError(f"MUSTER_HOME {path.parent} cannot be written: {error}") from error


OURS = "muster"
TYPE = "kubernetes"
_NAMESPACE = "namespace"
_PREFIX = "extra__kubernetes__"  # of a field that a form of Airflow before 2.3 wrote


def connection_id() -> str:
    """Return the connection that jobs go to, ``[muster] connection``; empty is this machine."""
    return _setting("connection")


def find_cluster(conn_id: str) -> NamedCluster:
    """Return the cluster of a connection. Nothing is asked over the network but the connection itself.

    :raises SpecError: there is no such connection, or something in it is missing or wrong; it names both.
    """
    from muster.backends.kubernetes.place import NamedCluster

    absent = (
        f"[muster] connection is {conn_id!r:.80}, and Airflow has no connection of that id: "
        "add it, or take the setting away to run jobs on this machine"
    )
    connection = airflow_connection(conn_id, absent)
    return NamedCluster(cluster_settings(connection, conn_id), partial(_access, connection, conn_id))


def airflow_connection(conn_id: str, absent: str = "") -> Connection:
    """Return a connection as Airflow has it. :raises SpecError: there is none of this id; `absent` is another message for that."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found: Connection = Connection.get(conn_id)
    except AirflowNotFoundException as error:
        advice = f"make it, in Airflow or as AIRFLOW_CONN_{conn_id.upper()}, or name another one"
        raise SpecError(absent or f"there is no Airflow connection {conn_id!r:.120}: {advice}") from error
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
