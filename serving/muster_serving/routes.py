"""The paths of a model server and their methods, the same for every server of muster."""

from __future__ import annotations

import re
from typing import NamedTuple

from muster_serving.answer import READ

STREAM = "/generate_stream"  # Triton's and MLServer's name: the answer in parts
ROUTED = "/routed/"  # and a revision's name, before the path: on private ports only
TOKENS = "/muster/tokens"  # muster sends them here, on a cluster
PAGES = ("/v2", "/v2/health/ready", "/metrics", "/openapi.json", "/docs")
OPEN = (
    "/",
    "/v2/health/live",
    "/v2/health/ready",
)  # to all, also where tokens are needed: for who balances load
BESIDE = ("/", "/v1/models", "/v2/health/live")  # pages that the server around it may have itself

_PATH = re.compile(
    rf"({ROUTED}(?P<routed>[^/:]+))?"
    r"(?P<path>/(?P<protocol>v1|v2)/models/(?P<name>[^/:]+)(/versions/(?P<revision>[^/:]+))?"
    rf"(?P<verb>/infer|{STREAM}|/ready|:predict|))\Z"
)


class ModelPath(NamedTuple):
    """A path of a model, taken apart.

    :param routed: the revision for which another process passed the request on, by the shares.
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
        return self.verb in ("/infer", STREAM, ":predict")


def call_of(path: str, *, routed: bool = False) -> ModelPath | None:
    """Return a model's path, taken apart; None where the path is not a model's.

    :param routed: whether paths are accepted that another process passes on.
    """
    match = _PATH.match(path)
    return ModelPath(**match.groupdict()) if match and (routed or not match["routed"]) else None


def is_open(path: str, call: ModelPath | None) -> bool:
    """Whether a page is for all, also where tokens are needed: it says no more than whether something answers."""
    return path in OPEN or (call is not None and call.verb == "/ready")


def allowed(path: str, call: ModelPath | None) -> tuple[str, ...] | None:
    """Return the methods that a path takes; None where there is no such path."""
    if call:
        return ("POST",) if call.predicts else READ
    return READ if path in PAGES or path in BESIDE else None
