"""A deployment: a name that answers predictions, and the revisions behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.core.errors import SpecError
from muster.core.job import Origin, Pinned
from muster.core.names import check_label
from muster.core.resources import Resources


class RevisionState(str, Enum):
    """Where a revision is: it comes up beside the others, and only once it answers may it have traffic.

    One that has traffic is STARTING again while its platform brings it back: then that is not held against it.
    """

    STARTING = "starting"
    READY = "ready"
    SERVING = "serving"
    FAILED = "failed"
    REFUSED = "refused"
    RETIRED = "retired"

    @property
    def over(self) -> bool:
        """Whether it is gone: nothing of it runs any more."""
        return self in (RevisionState.REFUSED, RevisionState.RETIRED)


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
    """What should answer under a name: one revision of it.

    :param model: the version to serve.
    :param image: the locked environment of the model server; `image_digest` is its lock's.
    :param server: which of the servers in serving/ runs in it.
    :param replicas: how many of it there are, at least; on one machine one process answers.
    :param most_replicas: how many there may be under load; None where their number is fixed.
    :param smoke: what every replica is asked before it takes traffic.
    :param load_timeout_seconds: until all replicas have loaded the model.
    """

    name: str
    model: Pinned
    image: str
    image_digest: str
    server: str = "kserve"
    replicas: int = 1
    most_replicas: int | None = None
    smoke: tuple[SmokeRequest, ...] = ()
    resources: Resources = field(default_factory=Resources)
    load_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_label("deployment", self.name)
        check_label("image", self.image)
        check_label("server", self.server)
        if self.replicas < 1:
            raise SpecError(f"replicas is {self.replicas!r}: a deployment needs one or more")
        if self.most_replicas is not None and self.most_replicas < self.replicas:
            raise SpecError(f"most_replicas is {self.most_replicas!r}, below its {self.replicas} replicas")
        if not self.load_timeout_seconds > 0:
            raise SpecError(f"load_timeout is {self.load_timeout_seconds!r} seconds: need more than 0")

    def runs_as(self, other: DeploymentSpec) -> bool:
        """Whether one revision can be both: they differ at most in what is asked before it takes traffic."""
        return replace(self, smoke=(), load_timeout_seconds=1.0) == replace(
            other, smoke=(), load_timeout_seconds=1.0
        )


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One model version behind a deployment.

    :param name: what it is called behind this deployment, and never was any other: ``r7``.
    :param percent: its share of the traffic, 0 to 100.
    :param kept: the route names it without a share: it stays, for a rollback.
    :param ready: how many replicas answer, of `wanted`; `restarts` counts those that died, of the ones there are.
    :param since: when it came into this state, in seconds since the epoch.
    :param reason: what it waits for or suffers from, or why it is over.
    """

    name: str
    model: Pinned
    state: RevisionState
    percent: int = 0
    kept: bool = False
    ready: int = 0
    wanted: int = 1
    restarts: int = 0
    since: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Release:
    """What is under way at a deployment. It stands in the route, so that any process can go on with it.

    :param revision: which is to have the traffic.
    :param champion: which had it when this began, and gets it back; None where nothing served.
    :param by: who asked for it: a task instance's id, or a person.
    :param since: when the revision got the share that it has, in seconds since the epoch.
    :param failed: why it is taken back; empty as long as it goes forward.
    :param held: all that was asked for is done, and it waits at its share until more is asked for.
    :param origin: the task instance that asked, for the sweep; None where it was a person.
    """

    revision: str
    champion: str | None
    by: str
    since: float
    failed: str = ""
    held: bool = False
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class DeploymentStatus:
    """What answers under a name now.

    :param url: where it answers the Open Inference Protocol, ``http://127.0.0.1:8081``.
    :param ready: whether a request sent now is answered.
    :param revisions: newest first, those that are over among them.
    :param release: what is under way; None where all is settled.
    :param token: changes with every write of the route: :meth:`muster.backends.base.Deployments.shift` takes it.
    :param drift: what of it is not as muster left it, and the command that brings it back; empty where all is.
    """

    name: str
    url: str
    ready: bool
    token: str
    revisions: tuple[Revision, ...] = ()
    release: Release | None = None
    reason: str = ""
    drift: str = ""

    @property
    def champion(self) -> Revision | None:
        """The revision that has the traffic: the greatest share, and in a tie the one that had it before."""
        before = self.release.champion if self.release else None
        serving = [one for one in self.revisions if one.percent]
        return max(serving, key=lambda one: (one.percent, one.name == before), default=None)

    @property
    def shares(self) -> dict[str, int]:
        """The shares of the traffic in percent, by revision: their sum is 100, or nothing serves."""
        return {one.name: one.percent for one in self.revisions if one.percent}

    def called(self, name: str) -> Revision | None:
        """The revision of a name."""
        return next((one for one in self.revisions if one.name == name), None)

    def revision(self, address: str) -> Revision | None:
        """The newest revision of a version; None where it was never deployed."""
        return next((one for one in self.revisions if one.model.address == address), None)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the replicas of one revision have answered since they came up, added up.

    :param requests: all predictions that were asked for; `failed` those that the model is to blame for (5xx), and
        those that a Gateway answered in its place, where it tells them.
    :param seconds: how many took up to so many seconds: cumulative, by upper bound, the last is infinity.
    """

    requests: int = 0
    failed: int = 0
    seconds: Mapping[float, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one replica answered to one request.

    :param replica: which, as the platform calls it.
    :param outputs: columns by name; None where it did not answer as the protocol says, and `error` tells.
    :param silent: it could not be reached: why, its platform may know in a moment.
    """

    replica: str
    outputs: Mapping[str, tuple[Any, ...]] | None
    error: str = ""
    silent: bool = False
