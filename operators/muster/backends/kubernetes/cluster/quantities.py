"""Kubernetes' quantities (``500m``, ``64Gi``) as numbers, and what a pod asks for of each resource.

The format is that of ``k8s.io/apimachinery/pkg/api/resource.Quantity``; the sum over a pod's
containers is that of the scheduler (``Sidecar containers`` in Kubernetes' documentation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from muster.core.errors import BackendError

CPU, MEMORY, DISK, PODS = "cpu", "memory", "ephemeral-storage", "pods"
GIB = 2**30

# Per resource: cores, bytes, cards.
Amounts = Mapping[str, float]

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)\Z")
_SCALES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
_SCALES |= {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)}


def is_device(name: str) -> bool:
    """Whether a resource has a domain, as ``nvidia.com/gpu``: a device plugin provides it."""
    return "/" in name


def quantity(text: object) -> float:
    """Return a quantity as a number of cores, bytes or cards. :raises BackendError: it is none."""
    match = _QUANTITY.match(str(text))
    if match is None:
        raise BackendError(f"{text!r:.40} is no quantity such as 500m or 64Gi")
    number, exponent, suffix = match.groups()
    return float(number + (exponent or "")) * _SCALES[suffix or ""]


def amounts(resources: Mapping[str, Any] | None) -> dict[str, float]:
    """Return a resource list, such as a node's ``allocatable``, as numbers."""
    return {name: quantity(text) for name, text in (resources or {}).items()}


def total(parts: Iterable[Amounts]) -> dict[str, float]:
    """Return the sum of each resource."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def times(part: Amounts, count: int) -> dict[str, float]:
    """Return `count` times as much of each resource."""
    return {name: amount * count for name, amount in part.items()}


def fits(wanted: Amounts, room: Amounts) -> bool:
    """Whether there is room for all that is wanted; what `room` does not name, it has none of."""
    return all(amount <= room.get(name, 0.0) + 1e-9 for name, amount in wanted.items())


def how_many(wanted: Amounts, room: Amounts) -> int:
    """Return how often `wanted` fits into `room`."""
    return min(
        (math.floor(room.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items() if amount > 0),
        default=1_000_000,
    )


def pod_requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return what the scheduler sets aside for a pod of this spec: 1 of :data:`PODS` among it.

    Containers and sidecars (init containers that are restarted) run together; each other init
    container runs alone with the sidecars before it, so the greatest of them counts.
    """
    together = total(map(_asked, spec.get("containers") or ()))
    sidecars: dict[str, float] = {}
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = total((sidecars, _asked(container)))
        else:
            peak = _greater(peak, total((sidecars, _asked(container))))
    needed = _greater(total((together, sidecars)), peak)
    needed = total((needed, amounts(spec.get("overhead")), {PODS: 1.0}))
    return {name: amount for name, amount in needed.items() if amount > 0}


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    """What one container requests; where it only names a limit, the API server requests that."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _greater(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def but_pods(amounts: Amounts) -> dict[str, float]:
    """Return what is asked for without :data:`PODS`: few quotas count pods, and then they cover them by name."""
    return {name: amount for name, amount in amounts.items() if name != PODS}


def pod_set_requests(pod_set: Mapping[str, Any]) -> dict[str, float]:
    """Return what all pods of one of a Workload's pod sets ask for, but for :data:`PODS`."""
    return but_pods(times(pod_requests(pod_set["template"]["spec"]), int(pod_set.get("count") or 1)))


def shown(name: str, amount: float) -> str:
    """Write an amount for people: ``12 nvidia.com/gpu``, ``2.5 cpu``, ``64 GiB memory``."""
    if name in (MEMORY, DISK):
        return f"{amount / GIB:.4g} GiB {name}"
    return f"{amount:.4g} {name}"
