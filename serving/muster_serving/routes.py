"""The paths of a model server and their methods, the same for every server of muster."""

from __future__ import annotations

import re
from typing import NamedTuple

from muster_serving.answer import READ

ROUTED = "/routed/"  # and a revision's name, before the path: on private ports only
PAGES = ("/v2", "/v2/health/ready", "/metrics", "/openapi.json", "/docs")
BESIDE = ("/", "/v1/models", "/v2/health/live")  # which a server around it may have of its own

_PATH = re.compile(
    rf"({ROUTED}(?P<routed>[^/:]+))?"
    r"(?P<path>/(?P<protocol>v1|v2)/models/(?P<name>[^/:]+)(/versions/(?P<revision>[^/:]+))?"
    r"(?P<verb>/infer|/ready|:predict|))\Z"
)


class Call(NamedTuple):
    """What a path asks for.

    :param routed: the revision to which another process has passed it on, by the shares.
    :param revision: the revision that the client names.
    """

    path: str
    verb: str
    routed: str | None = None
    revision: str | None = None
    protocol: str = "v2"
    name: str = ""

    @property
    def predicts(self) -> bool:
        """Whether it asks for predictions."""
        return self.verb in ("/infer", ":predict")


def call_of(path: str, *, routed: bool = False) -> Call | None:
    """Return what is asked of a model; None where the path is none of a model's.

    :param routed: whether another process may have passed it on.
    """
    match = _PATH.match(path)
    return Call(**match.groupdict()) if match and (routed or not match["routed"]) else None


def allowed(path: str, call: Call | None) -> tuple[str, ...] | None:
    """Return the methods that a path takes; None where there is no such path."""
    if call:
        return ("POST",) if call.predicts else READ
    return READ if path in PAGES or path in BESIDE else None
