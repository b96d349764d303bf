"""A deployment: a name that answers predictions, and the revisions behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.core.address import Address
from muster.core.data import Pinned
from muster.core.errors import NotFound, SpecError
from muster.core.names import check_label, check_whole
from muster.core.origin import Origin
from muster.core.resources import Resources

LOOPBACK = "127.0.0.1"
_MOST_BODY_MIB = 16.0

FINISH_SECONDS = 30.0  # the servers' GRACE_SECONDS
_LONGEST_WAIT_MS = 1000.0
CODE = "predict.py"  # the only one that can yield its answers in parts
PREDICTED = (
    CODE,
    "model.skops",
    "model.ubj",
    "model.lightgbm.txt",
    "model.pt2",
    "pipeline",
    "model.pkl",
    "model.joblib",
)
"""The files of a version, or folders, that workers make predictions of: ``muster_serving.predictors`` loads each."""

NO_LOG_OF_STREAMS = "an answer in parts has not the rows of its request, beside which a log keeps it: leave log out, or stream"


def needs_workers(files: Iterable[str]) -> bool:
    """Whether a version of these files runs in workers: it is no ONNX model, or has Python around it."""
    return not {name.partition("/")[0] for name in files}.isdisjoint(PREDICTED)


def check_streams(address: str, files: Iterable[str]) -> None:
    """Refuse a version that cannot answer in parts. :raises SpecError: it holds no predict.py."""
    if CODE not in files:
        raise SpecError(
            f"stream: {address} holds no {CODE}, whose predict could yield parts: leave stream out"
        )


class RevisionState(str, Enum):
    """Where a revision is. It starts beside the others and gets traffic only once it answers.

    A revision with traffic is STARTING again while its platform restarts it; that does not count against it.
    """

    STARTING = "starting"
    READY = "ready"
    SERVING = "serving"
    FAILED = "failed"
    REFUSED = "refused"
    RETIRED = "retired"

    @property
    def over(self) -> bool:
        """Whether the revision has ended: nothing of it runs any more."""
        return self in (RevisionState.REFUSED, RevisionState.RETIRED)


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """One request that a revision must answer correctly before it gets traffic.

    :param inputs: columns by name, one list of values each (all of one length).
    :param expect: bounds for every value of an output: ``{"probability": {"min": 0, "max": 1}}``.
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
class Batch:
    """Requests that come together are computed together.

    :param most: the most rows in one call of the predictor.
    :param wait_ms: how long a request waits for others, in milliseconds.
    """

    most: int = 64
    wait_ms: float = 5.0

    def __post_init__(self) -> None:
        check_whole("most", self.most, 2)
        if type(self.wait_ms) not in (int, float) or not 0 <= self.wait_ms <= _LONGEST_WAIT_MS:
            raise SpecError(f"wait_ms is {self.wait_ms!r}, need 0 to {_LONGEST_WAIT_MS:g} milliseconds")
        object.__setattr__(self, "wait_ms", float(self.wait_ms))


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that compute the predictions of a model which is no ONNX graph, in its own environment.

    :param image: the locked environment of the model; `image_digest` is the digest of its lock.
    :param count: how many there are in each replica; they share nothing.
    :param batch: which requests are computed together; None computes each alone.
    :param request_timeout_seconds: the longest that a call of the predictor may take; where it streams, each part, and all
        of them together.
    :param trusted: what may be loaded though it can run code: ``pickle``, ``torch.export``, or types in a skops file.
    :param stream: whether the predictor yields its answers in parts.
    :param max_requests: after so many answered requests a worker is replaced; None: never.
    """

    image: str
    image_digest: str
    count: int = 1
    batch: Batch | None = None
    request_timeout_seconds: float = 30.0
    trusted: tuple[str, ...] = ()
    stream: bool = field(default=False, metadata={"later": True})
    max_requests: int | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        check_label("image", self.image)
        if self.max_requests is not None:
            check_whole("max_requests", self.max_requests, 1)
        check_whole("workers", self.count, 1)
        if not self.request_timeout_seconds > 0:
            raise SpecError(f"request_timeout is {self.request_timeout_seconds!r} seconds: need more than 0")
        if self.stream and self.batch:
            raise SpecError(
                "stream and batch: a predictor that yields its answer in parts has one request at a time"
            )


@dataclass(frozen=True, kw_only=True)
class RequestLog:
    """What a deployment keeps of the requests that it answers, as rows of the volume ``NAME/predictions``.

    :param share: of the answered requests, above 0 to 1, chosen at random.
    :param leave_out: inputs and outputs that are not kept.
    :param hashed: inputs and outputs of which a hash is kept in place of the value; the key stays on the machine, or the claim, of those that serve.
    :param keep_partitions: the hours that stay, those that were written last; None: all. When an hour is committed, older ones are
        retired, but for pinned versions, and the next gc deletes them.
    :param partition_days: how long an hour stays after it was written, in the same way; None: for ever.
    """

    share: float = 1.0
    leave_out: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    keep_partitions: int | None = field(default=None, metadata={"later": True})
    partition_days: float | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        if (
            isinstance(self.share, bool)
            or not isinstance(self.share, (int, float))
            or not 0 < self.share <= 1
        ):
            raise SpecError(f"share is {self.share!r:.40}: need a number above 0, at most 1")
        for word in ("leave_out", "hashed"):
            names = getattr(self, word)
            if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
                raise SpecError(f"{word} is {names!r:.60}: need a list of names of inputs and outputs")
            object.__setattr__(self, word, tuple(names))
        if both := sorted(set(self.leave_out) & set(self.hashed)):
            raise SpecError(f"{both[0]!r:.60} is left out and hashed: need one of the two")
        if self.keep_partitions is not None:
            check_whole("keep_partitions", self.keep_partitions, 1)
        days = self.partition_days
        if days is not None and (type(days) not in (int, float) or not 0 < days < math.inf):
            raise SpecError(f"partition_days is {days!r:.40}: need a number of days above 0, such as 30")


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """How much a client may ask of a deployment: each client where there are tokens, else all of them together.

    A model server counts by itself: on a cluster, each replica has these limits.

    :param rate: requests for predictions a second; None: any number.
    :param burst: how many may come at once after a pause; None: as many as in one second, at least one.
    :param body_mib: the longest body, in MiB, at most 16.
    """

    rate: float | None = None
    burst: int | None = None
    body_mib: float = 16.0

    def __post_init__(self) -> None:
        for word in ("rate", "burst", "body_mib"):
            value = getattr(self, word)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise SpecError(f"{word} is {value!r:.40}: need a number")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise SpecError(f"rate is {self.rate!r}: need a number of requests a second above 0")
        if self.burst is not None and (self.rate is None or type(self.burst) is not int or self.burst < 1):
            raise SpecError(f"burst is {self.burst!r}: need a whole number of 1 or more, beside a rate")
        if self.body_mib is None or not 0 < self.body_mib <= _MOST_BODY_MIB:
            raise SpecError(f"body_mib is {self.body_mib!r}: need more than 0, at most {_MOST_BODY_MIB:g}")
        for word in ("rate", "body_mib"):
            value = getattr(self, word)
            object.__setattr__(self, word, None if value is None else float(value))

    def order(self) -> dict[str, Any]:
        """Return them as ``muster_serving.clients`` reads them."""
        burst = self.burst or (max(1, int(self.rate)) if self.rate else None)
        return {"rate": self.rate, "burst": burst, "body_bytes": int(self.body_mib * (1 << 20))}


def check_host(host: Any, *, tokens: bool) -> None:
    """Refuse what cannot be listened on, and what is beyond this machine where no token is asked for.

    :raises SpecError: the message says what to write.
    """
    from ipaddress import AddressValueError, IPv4Address

    try:
        address = IPv4Address(host if isinstance(host, str) else "")
    except AddressValueError:
        raise SpecError(
            f"host is {host!r:.60}: need an IPv4 address of this machine, such as 0.0.0.0 for all of them"
        ) from None
    if not address.is_loopback and not tokens:
        raise SpecError(
            f"host is {host!r}, which others reach, and tokens is False, so that all of them could ask: write "
            f"host={host!r}, tokens=True, and `muster deployments token make NAME CLIENT` for each client"
        )


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """What a deployment is asked to serve: it becomes one revision.

    :param model: the version to serve.
    :param image: the locked environment of the model server; `image_digest` is the digest of its lock.
    :param server: which model server in serving/ runs in it.
    :param replicas: the number of replicas, or the least where it scales; on one machine one process answers.
    :param most_replicas: the most replicas under load; None where their number is fixed.
    :param smoke: requests that every replica must answer before it gets traffic.
    :param load_timeout_seconds: how long all replicas may take to load the model.
    :param workers: the processes that compute its predictions; None for an ONNX model, which the server runs itself.
    :param log: what is kept of its requests; None: nothing.
    :param host: the IPv4 address to listen on, on one machine; a cluster is reached by its Gateway.
    :param tokens: whether each request needs a client's token.
    :param limits: how much a client may ask; None: as much as the server can take.
    :param grpc: whether it answers gRPC beside HTTP.
    :param counts_inputs: whether its server counts requests by the bins of the training rows, which a rule on drift needs.
    """

    name: str
    model: Pinned
    image: str
    image_digest: str
    server: str = "kserve"  # of documents that name none
    replicas: int = 1
    most_replicas: int | None = None
    smoke: tuple[SmokeRequest, ...] = ()
    resources: Resources = field(default_factory=Resources)
    load_timeout_seconds: float = 120.0
    workers: Workers | None = field(default=None, metadata={"later": True})
    log: RequestLog | None = field(default=None, metadata={"later": True})
    host: str = field(default=LOOPBACK, metadata={"later": True})
    tokens: bool = field(default=False, metadata={"later": True})
    limits: RequestLimits | None = field(default=None, metadata={"later": True})
    grpc: bool = field(default=False, metadata={"later": True})
    counts_inputs: bool = field(default=False, metadata={"later": True})

    def __post_init__(self) -> None:
        check_label("deployment", self.name)
        check_label("image", self.image)
        check_label("server", self.server)
        check_whole("replicas", self.replicas, 1)
        if self.most_replicas is not None and self.most_replicas < self.replicas:
            raise SpecError(f"most_replicas is {self.most_replicas!r}, below its {self.replicas} replicas")
        if not self.load_timeout_seconds > 0:
            raise SpecError(f"load_timeout is {self.load_timeout_seconds!r} seconds: need more than 0")
        check_host(self.host, tokens=self.tokens)
        if self.log and self.workers and self.workers.stream:
            raise SpecError(f"stream and log: {NO_LOG_OF_STREAMS}")

    @property
    def finish_seconds(self) -> float:
        """How long its server may take, at its end, for the requests under way: as long as an answer in parts may be."""
        if self.workers and self.workers.stream:
            return max(FINISH_SECONDS, self.workers.request_timeout_seconds)
        return FINISH_SECONDS

    def worker_setup(self) -> dict[str, Any] | None:
        """Return how its workers run, as ``muster_serving.process.start`` reads it; None where it has none.

        Where they run is added by the platform: ``python``, or ``socket``.
        """
        if self.workers is None:
            return None
        batch = self.workers.batch
        return {
            "workers": self.workers.count,
            "most": batch.most if batch else 0,
            "wait_ms": batch.wait_ms if batch else 0.0,
            "request_seconds": self.workers.request_timeout_seconds,
            "load_seconds": self.load_timeout_seconds,
            "memory_gib": self.resources.memory_gib,
            "cpus": self.resources.cpus,
            "trusted": list(self.workers.trusted),
            **({"stream": True} if self.workers.stream else {}),
            **({"max_requests": self.workers.max_requests} if self.workers.max_requests else {}),
        }

    @property
    def guarded(self) -> bool:
        """Whether its server must tell muster's own requests from those of users, who need tokens or have limits."""
        return self.tokens or self.limits is not None

    @property
    def image_digests(self) -> tuple[str, ...]:
        """The digests of the locks of the images that it needs."""
        return (self.image_digest, *((self.workers.image_digest,) if self.workers else ()))

    def runs_as(self, other: DeploymentSpec) -> bool:
        """Whether one revision can serve both specs: they differ at most in their smoke requests."""
        return replace(self, smoke=(), load_timeout_seconds=1.0) == replace(
            other, smoke=(), load_timeout_seconds=1.0
        )


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One model version behind a deployment.

    :param name: its name in this deployment, never used twice: ``r7``.
    :param percent: its share of the traffic, 0 to 100.
    :param kept: the route names it without a share: it stays, for a rollback.
    :param ready: how many of the `wanted` replicas answer; `restarts` counts the restarts of the current
        replicas.
    :param since: when it came into this state, in seconds since the epoch.
    :param reason: what it waits for, what is wrong with it, or why it has ended.
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
    """The release in progress at a deployment. The route holds it, so any process can continue it.

    :param revision: the revision that is to get the traffic.
    :param champion: the revision that had it when the release began, and gets it back; None where nothing
        served.
    :param by: who asked for it: a task instance's id, or a person.
    :param since: when the revision got its present share, in seconds since the epoch.
    :param failed: why it is rolled back; empty while it goes forward.
    :param held: it has reached the share that was asked for, and waits there until more is asked for.
    :param origin: the task instance that asked, for the sweep; None where a person asked.
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
    """The state of a deployment now.

    :param url: where it answers the Open Inference Protocol, ``http://127.0.0.1:8081``.
    :param grpc: where it answers gRPC, ``127.0.0.1:8082``; empty where it does not.
    :param ready: whether a request sent now is answered.
    :param revisions: newest first, ended ones included.
    :param release: the release in progress; None where there is none.
    :param token: changes with every write of the route: :meth:`muster.backends.base.Deployments.shift` takes it.
    :param drift: what differs from what muster wrote, and the command that restores it; empty where nothing
        does.
    :param paused: who wants what others edit of it left as it is, and why; empty where muster puts it back.
    """

    name: str
    url: str
    ready: bool
    token: str
    revisions: tuple[Revision, ...] = ()
    release: Release | None = None
    reason: str = ""
    drift: str = ""
    grpc: str = field(default="", metadata={"later": True})
    paused: str = field(default="", metadata={"later": True})

    @property
    def champion(self) -> Revision | None:
        """The revision with the greatest share of the traffic; in a tie the one that had it before the release."""
        before = self.release.champion if self.release else None
        serving = [one for one in self.revisions if one.percent]
        return max(serving, key=lambda one: (one.percent, one.name == before), default=None)

    @property
    def shares(self) -> dict[str, int]:
        """Traffic in percent by revision: the sum is 100, or 0 where nothing serves."""
        return {one.name: one.percent for one in self.revisions if one.percent}

    @property
    def volumes(self) -> set[str]:
        """The volumes of the models that it serves or keeps; of one that has ended, of those that it served."""
        found = [one for one in self.revisions if not one.state.over] or self.revisions
        return {Address.parse(one.model.address).volume for one in found}

    def called(self, name: str) -> Revision | None:
        """The revision with that name, or None."""
        return next((one for one in self.revisions if one.name == name), None)

    def revision(self, address: str) -> Revision | None:
        """The newest revision of a version; None where it was never deployed."""
        return next((one for one in self.revisions if one.model.address == address), None)


def no_revision(deployment: str, revision: str, there: Iterable[str]) -> NotFound:
    """The error about a revision that does not exist, with those that there are."""
    known = ", ".join(there) or "none"
    return NotFound(f"deployment {deployment} has no revision {revision!r:.60}; there is {known}")


ByBin = Mapping[str, Mapping[str, int]]
"""How many there are of each input in each bin."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the replicas of one revision have answered since they started, summed.

    :param requests: all predictions that were asked for; `failed` are those that the model answered with
        5xx, and those that a Gateway answered in its place, where it reports them; `refused` are those that the
        server answered with 4xx, most of them since the signature does not allow a value; `left` are those whose client did
        not wait for the end.
    :param unseen: answered requests in which a fallback stood in for a value.
    :param outside: by input, the answered requests with a value that no training row had, as far as the signature records these.
    :param dropped: answered requests that its log was to keep and could not: the disk was full, say.
    :param seconds: latency histogram of those that were not refused, Prometheus style: {upper bound in seconds: requests at
        most that slow}.
    :param asked: by input and bin of the training rows, the answered requests with a value in it, one row of each; None
        where its server does not count them. `trained` likewise the rows that the model was trained on.
    """

    requests: int = 0
    failed: int = 0
    seconds: Mapping[float, int] = field(default_factory=dict)
    refused: int = 0
    left: int = 0
    unseen: int = 0
    asked: ByBin | None = None
    trained: ByBin = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def tried(self) -> int:
        """The requests that say how good the model is: it answered them, or failed."""
        return self.requests - self.refused - self.left


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one replica to one request.

    :param replica: the platform's name of the replica.
    :param outputs: columns by name; None where the answer does not follow the protocol, and `error` says how.
    :param silent: why the replica could not be reached; its platform may know more in a moment.
    """

    replica: str
    outputs: Mapping[str, tuple[Any, ...]] | None
    error: str = ""
    silent: bool = False
