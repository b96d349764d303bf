"""A deployment: a name that answers predictions, and the revisions behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.core.errors import SpecError
from muster.core.job import Pinned
from muster.core.names import check_label
from muster.core.resources import Resources


class RevisionState(str, Enum):
    """Where a revision is: it is loaded beside the others, asked, and only then given traffic."""

    LOADING = "loading"
    SMOKING = "smoke test"
    SERVING = "serving"
    REFUSED = "refused"
    RETIRED = "retired"


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """One request that a revision must answer rightly before it takes traffic.

    :param inputs: columns by name, one list of values each (all of one length).
    :param expect: what must hold of an output's every value: ``{"probability": {"min": 0, "max": 1}}``.
    """

    name: str
    inputs: Mapping[str, tuple[Any, ...]]
    expect: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.inputs.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise SpecError(
                f"smoke request {self.name!r:.60}: every input needs the same number of values, 1 or more"
            )
        for output, bounds in self.expect.items():
            unknown = set(bounds) - {"min", "max"}
            if unknown:
                raise SpecError(
                    f"smoke request {self.name!r:.60}: {output} expects {min(unknown)!r}; known are min and max"
                )
        object.__setattr__(self, "inputs", MappingProxyType(dict(self.inputs)))
        object.__setattr__(self, "expect", MappingProxyType(dict(self.expect)))


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """What should answer under a name.

    :param model: the version to serve.
    :param image: the locked environment of the model server; `image_digest` is its lock's.
    :param server: which of the servers in serving/ runs in it.
    :param smoke: what the new revision is asked before it takes traffic.
    :param load_timeout_seconds: loading and smoke test together.
    """

    name: str
    model: Pinned
    image: str
    image_digest: str
    server: str = "kserve"
    smoke: tuple[SmokeRequest, ...] = ()
    resources: Resources = field(default_factory=Resources)
    load_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_label("deployment", self.name)
        check_label("image", self.image)
        check_label("server", self.server)
        if not self.load_timeout_seconds > 0:
            raise SpecError(f"load_timeout_seconds is {self.load_timeout_seconds!r}: need seconds above 0")


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One model version behind a deployment, with its share of the traffic (0 to 1)."""

    model: Pinned
    state: RevisionState
    share: float = 0.0
    since: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class DeploymentStatus:
    """What answers under a name now.

    :param url: where it answers the Open Inference Protocol, ``http://127.0.0.1:8081``.
    :param ready: whether a request sent now is answered.
    :param revisions: newest first; the one that serves has share 1.
    """

    name: str
    url: str
    ready: bool
    revisions: tuple[Revision, ...] = ()
    reason: str = ""

    @property
    def champion(self) -> Revision | None:
        """The revision with the greatest share of the traffic."""
        serving = [r for r in self.revisions if r.state is RevisionState.SERVING]
        return max(serving, key=lambda r: r.share, default=None)

    def revision(self, address: str) -> Revision | None:
        """The newest revision of a version; None where it was never deployed."""
        return next((each for each in self.revisions if each.model.address == address), None)

    def settled(self, address: str) -> bool | None:
        """Whether the release of a version has come to its end: True where it serves, False where it will not."""
        revision = self.revision(address)
        if revision is None:
            return None
        if revision.state is RevisionState.SERVING:
            return True if self.ready else None
        return False if revision.state in (RevisionState.REFUSED, RevisionState.RETIRED) else None
