"""Chooses the place: settings in, a place out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from muster.backends.base import PATIENCE_SECONDS
from muster.backends.jobs.checks import Resolve, from_environment
from muster.core.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from muster.backends.kubernetes.place import NamedCluster
    from muster.backends.place import Place
    from muster.backends.releases.deployments import Deployments
    from muster.volumes.protocols import LocalStore


def open_place(
    settings: Settings | None = None,
    *,
    resolve: Resolve = from_environment,
    patience_seconds: float = PATIENCE_SECONDS,
    cluster: Callable[[], NamedCluster] | None = None,
) -> Place:
    """Return where jobs run under `settings`, those of this process's environment if none are given.

    :param resolve: returns the values of secrets that this process has, KeyError for others.
    :param patience_seconds: how long a cluster, or its store, may be away before a call fails.
    :param cluster: finds a cluster, which comes before the one that the settings name.
    """
    settings = settings or Settings.load()
    if cluster is None and settings.cluster is not None:
        cluster = partial(_named, settings.cluster)
    if cluster is None:
        from muster.backends.local.place import MachinePlace

        return MachinePlace(settings, resolve=resolve)
    from muster.backends.kubernetes.place import ClusterPlace

    return ClusterPlace(
        cluster,
        settings=settings,
        serve_here=partial(_serve_here, settings),
        resolve=resolve,
        patience_seconds=patience_seconds,
    )


def _named(path: Path) -> NamedCluster:
    from muster.backends.kubernetes.api.access import connect
    from muster.backends.kubernetes.cluster_file import read_file
    from muster.backends.kubernetes.place import NamedCluster

    file = read_file(path)
    return NamedCluster(file.settings, lambda: connect(kubeconfig=file.kubeconfig, context=file.context))


def _serve_here(settings: Settings, store: LocalStore) -> Deployments:
    """Keep on this machine what a cluster has no platform for: neither of the two knows the other."""
    from muster.backends.local.serving.platform import local_deployments

    return local_deployments(settings, store, copies=True)
