"""Who may speak to whom under NetworkPolicies, as their API says it (networking.k8s.io/v1).

A pod that no policy selects may do anything; one that some select may do what any of those allows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class End:
    """A pod, or an address that is no pod's. :param namespace: empty where it is none."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    address: str = "10.78.1.9"


def may(source: End, target: End, port: int, policies: Iterable[Policy], *, protocol: str = "TCP") -> bool:
    """Whether a connection is let out at one end and in at the other."""
    found = list(policies)
    out = _allowed(source, target, port, protocol, found, way="Egress", field="to")
    return out and _allowed(target, source, port, protocol, found, way="Ingress", field="from")


def _allowed(
    one: End, other: End, port: int, protocol: str, policies: list[Policy], *, way: str, field: str
) -> bool:
    if not one.namespace:
        return True
    selecting = [
        each
        for each in policies
        if each["metadata"]["namespace"] == one.namespace
        and way in each["spec"]["policyTypes"]
        and _selects(each["spec"]["podSelector"], one.labels)
    ]
    rules = [rule for each in selecting for rule in each["spec"].get(way.lower()) or ()]
    return not selecting or any(
        _port(rule.get("ports"), port, protocol) and _peer(rule.get(field), other, one.namespace)
        for rule in rules
    )


def _port(ports: list[dict[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        each.get("protocol", "TCP") == protocol and each.get("port", port) == port for each in ports
    )


def _peer(peers: list[dict[str, Any]] | None, other: End, namespace: str) -> bool:
    return not peers or any(_is(peer, other, namespace) for peer in peers)


def _is(peer: dict[str, Any], other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        return ipaddress.ip_address(other.address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if not other.namespace:
        return False
    home = {"kubernetes.io/metadata.name": other.namespace}
    there = (
        _selects(peer["namespaceSelector"], home)
        if "namespaceSelector" in peer
        else other.namespace == namespace
    )
    return there and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    same = all(labels.get(name) == text for name, text in (selector.get("matchLabels") or {}).items())
    return same and all(_matches(each, labels) for each in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if expression["operator"] == "Exists":
        return expression["key"] in labels
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]
