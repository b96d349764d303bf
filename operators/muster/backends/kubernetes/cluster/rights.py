"""What an account needs to submit jobs and to follow them, and which of that it lacks.

The rules are those of the role that the chart makes (``helm/muster/templates/accounts.yaml``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    CLAIM,
    CLUSTER_QUEUE,
    COHORT,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    HTTP_ROUTE,
    JOB,
    JOB_SET,
    LOCAL_QUEUE,
    NODE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE_VIEW,
    RESOURCE_FLAVOR,
    SECRET,
    SERVICE,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Kind,
)
from muster.backends.kubernetes.cluster.discovery import serves

_AT_ONCE = 8
_READ = ("get", "list", "watch")
_OWN = (*_READ, "create", "delete")


@dataclass(frozen=True)
class Right:
    """One verb on one kind of object. :param whole: in the whole cluster, not in one namespace."""

    verb: str
    kind: Kind
    subresource: str = ""
    whole: bool = False

    @property
    def resource(self) -> str:
        """As a role names it: ``localqueues/pendingworkloads``."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def _rights(kinds: Iterable[Kind], verbs: Iterable[str], *, subresource: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, kind, subresource) for kind in kinds for verb in verbs)


_NEEDED: tuple[Right, ...] = (
    *_rights((JOB_SET, JOB), _OWN),
    *_rights((POD, EVENT), _READ),
    *_rights((SECRET,), ("create",)),
    *_rights((CLAIM,), ("get",)),
    *_rights((WORKLOAD, LOCAL_QUEUE), _READ),
    *_rights((QUEUE_VIEW,), ("get",), subresource="pendingworkloads"),
)
_GROUPS = _rights((POD_GROUP,), (*_READ, "create"))  # they go with their JobSet


def needed(*, kueue: bool) -> tuple[Right, ...]:
    """Return what it takes to submit, follow and end any job. :param kueue: it starts gangs whole; else PodGroups do."""
    return _NEEDED if kueue else (*_NEEDED, *_GROUPS)


_ROUTE = ("get", "list", "create", "patch", "delete")


def serving_rights(kind: Kind, *, gateway: bool) -> tuple[Right, ...]:
    """Return what it takes to deploy on a cluster, beside :func:`needed`.

    :param kind: what the serving platform makes a model server of.
    :param gateway: whether there is one.
    """
    return (
        *_rights((kind,), ("get", "list", "create", "delete")),
        *_rights((SERVICE,), ("get", "create") if gateway else _ROUTE),
        *_rights((HTTP_ROUTE,), _ROUTE if gateway else ("get",)),
        *_rights((CONFIG_MAP,), ("get", "create", "patch")),
        *_rights((DEPLOYMENT, ENDPOINT_SLICE), ("list",)),
        *_rights((POD,), ("get", "create"), subresource="proxy"),
    )


_QUEUED = (NODE, CLUSTER_QUEUE, RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS, COHORT)


def helpful(*, kueue: bool) -> tuple[Right, ...]:
    """Return those without which it is not said before a job waits that it can never run, and what its priority is.

    ``muster gpus`` needs the nodes. :param kueue: as in :func:`needed`.
    """
    return tuple(
        Right("list", kind, whole=True) for kind in (*_QUEUED, *(() if kueue else (PRIORITY_CLASS,)))
    )


def lacking(
    client: Client, rights: Iterable[Right], *, namespace: str, served: Collection[tuple[str, str]]
) -> tuple[Right, ...]:
    """Return those that these credentials do not have.

    :param served: what the cluster serves (:meth:`~.client.Client.served`): a kind
        that it does not serve needs no right.
    """
    asked = [right for right in rights if not right.kind.group or serves(served, right.kind)]

    def allowed(right: Right) -> bool:
        where = None if right.whole else namespace
        return client.allowed(right.verb, right.kind, namespace=where, subresource=right.subresource)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(right for right, yes in zip(asked, pool.map(allowed, asked), strict=True) if not yes)


def rules(rights: Iterable[Right]) -> str:
    """Write rights as a role's rules, on one line, a rule for each resource."""
    verbs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for right in rights:
        verbs[right.kind.group, right.resource].append(right.verb)
    return "; ".join(
        f'apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{", ".join(found)}]'
        for (group, resource), found in verbs.items()
    )
