"""Tells what was changed of a route outside muster: pure; compares the route with what muster writes.

The API server fills in what a route leaves open, today's fields and those of later releases. So what is there beside
what was written is no edit by itself: only fields that are known to keep requests away, or to change them, are told.
Weights are left out: they are read as shares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from muster.backends.kubernetes.api.kinds import Document
from muster.core.text import shortened

_NARROWS = ("externalName", "headers", "method", "namespace", "port", "queryParams", "sectionName")
# Of a rule: who is served is served otherwise.
_BESIDE = ("filters", "retry", "sessionPersistence", "timeouts")
_DIVERTS = ("RequestRedirect", "URLRewrite")  # filters with which no request arrives as it was asked
_READ = "weight"
_MOST_CHARACTERS = 120


def lost(written: Document, found: Document) -> str:
    """Say where a route's spec does not lead users as muster writes it; empty where it does.

    One for any host, or for ``*.example.com``, leads those there who ask for a host of these, too.
    """
    hosts = _lost_hosts(written.get("hostnames") or [], found.get("hostnames") or [])
    rest = {name: value for name, value in written.items() if name != "hostnames"}
    return hosts or _lost(rest, found, "spec")


def beside(written: Document, found: Document) -> tuple[str, ...]:
    """Name what of a route's spec is not as muster writes it, and does not keep users away by itself."""
    hosts = [set(each.get("hostnames") or ()) for each in (written, found)]
    rest = {name: value for name, value in written.items() if name != "hostnames"}
    return (*["spec.hostnames"] * (hosts[0] != hosts[1]), *_beside(rest, found, "spec"))


def _lost_hosts(written: list[str], found: list[str]) -> str:
    if not found or any(_covers(host, ours) for host in found for ours in written):
        return ""
    return f"spec.hostnames is {_shown(found)}, not {_shown(written)}"


def _covers(host: str, ours: str) -> bool:
    return host == ours or (host.startswith("*.") and ours.endswith(host[1:]))


def _lost(written: Any, found: Any, place: str) -> str:
    """Say what of `written` is not there; for a list, every item has to be, wherever it stands."""
    if isinstance(written, Mapping):
        if not isinstance(found, Mapping):
            return f"there is no {place}"
        inside = (
            _lost(value, found.get(name), f"{place}.{name}")
            for name, value in written.items()
            if name != _READ
        )
        return next(filter(None, inside), "") or _narrowed(written, found, place)
    if isinstance(written, list):
        return _lost_items(written, found or [], place)
    return "" if written == found else f"{place} is {_shown(found)}, not {_shown(written)}"


def _lost_items(written: list[Any], found: list[Any], place: str) -> str:
    if not written and found:
        return f"{place} is {_shown(found)}, and should be empty"
    for item in written:
        tries = [_lost(item, other, f"{place}[{at}]") for at, other in enumerate(found)]
        if all(tries):
            alone = len(written) == len(found) == 1
            return tries[0] if alone else f"{place} lacks {_shown(item)}"
    return ""


def _narrowed(written: Mapping[str, Any], found: Mapping[str, Any], place: str) -> str:
    for name in _NARROWS:
        if name not in written and found.get(name):
            return f"{place}.{name} is {_shown(found[name])}, and should not be there"
    if place.endswith("selector") and set(found) - set(written):
        return f"{place} is {_shown(found)}, not {_shown(written)}"
    diverting = [each["type"] for each in found.get("filters") or () if each.get("type") in _DIVERTS]
    return f"{place}.filters has {diverting[0]}, and should not be there" if diverting else ""


def _beside(written: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(written, Mapping) and isinstance(found, Mapping):
        for name, value in found.items():
            if name in written:
                yield from _beside(written[name], value, f"{place}.{name}")
            elif name in _BESIDE and value:
                yield f"{place}.{name}"
    elif isinstance(written, list) and isinstance(found, list):
        # Who gets traffic is told by name.
        if len(found) > len(written) and not place.endswith("backendRefs"):
            yield place
        for at, (one, other) in enumerate(zip(written, found, strict=False)):
            yield from _beside(one, other, f"{place}[{at}]")


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, sort_keys=True), _MOST_CHARACTERS)
