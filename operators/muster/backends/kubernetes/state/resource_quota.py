"""What the API server says when a namespace's ResourceQuota keeps a Job from making its pods."""

from __future__ import annotations

import re

from muster.backends.kubernetes.cluster.quantities import fits, quantity, shown, times

# k8s.io/apiserver, plugin/resourcequota: what one pod asks for, what is in use, what there is in all.
_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: \S+, limited: (\S+)")


def never_within(said: str, *, pods: int) -> str:
    """Say in what way the quota could not hold so many pods even if it were unused; empty where it could."""
    match = _EXCEEDED.search(said)
    if match is None:
        return ""
    requested, limited = times(_listed(match[2]), pods), _listed(match[3])
    over = [name for name in sorted(requested) if not fits({name: requested[name]}, limited)]
    if not over:
        return ""
    wanted = ", ".join(_shown(name, requested[name]) for name in over)
    allowed = ", ".join(_shown(name, limited.get(name, 0.0)) for name in over)
    return f"its {pods} pods ask for {wanted}, and ResourceQuota {match[1]} allows {allowed}"


def _listed(text: str) -> dict[str, float]:
    """Read ``limits.cpu=2,requests.memory=4Gi``."""
    parts = (part.partition("=") for part in text.split(","))
    return {name: quantity(amount) for name, _, amount in parts}


def _shown(name: str, amount: float) -> str:
    """An amount for people; a quota may say whether it is of the requests or of the limits."""
    kind, dot, resource = name.partition(".")
    return (
        f"{shown(resource, amount)} ({kind})"
        if dot and kind in ("requests", "limits")
        else shown(name, amount)
    )
